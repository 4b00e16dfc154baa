#include "micro_batch/times.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "micro_batch/classifier.h"
#include "micro_batch/sinking.h"

namespace autoshard::micro_batch {
namespace {

using importer::Block;
using importer::ModuleStructure;
using importer::OpStructure;

class Analysis {
 public:
  Analysis(const ModuleStructure& module, std::int32_t main, const Batch& batch,
           const std::function<OpCut(std::int32_t)>& describe)
      : module_(module),
        main_(module.regions[module.ops[main].first_region]),
        batch_(batch),
        all_(module, batch.micro_batches, describe),
        maker_(module.num_values, -1),
        is_named_(module.ops.size()) {
    for (const std::int32_t op : batch.each) is_named_[op] = true;
    for (std::int32_t op = main_.first_op; op < main_.last_op; op = module.ops[op].end) {
      ops_.push_back(op);
      for (std::int32_t inner = op; inner < module.ops[op].end; ++inner) {
        const OpStructure& read = module.ops[inner];
        for (std::int32_t k = 0; k < read.num_results; ++k) maker_[read.first_result + k] = op;
        for (const Block& inside : all_.blocks(inner)) {
          for (std::int32_t k = 0; k < inside.num_arguments; ++k) {
            maker_[inside.first_argument + k] = op;
          }
        }
      }
    }
  }

  Times find() {
    for (const std::int32_t number : batch_.arguments) {
      all_.time[main_.first_argument + number] = {Time::slice, 0, 1};
    }
    for (auto op = ops_.begin(); op != ops_.end();) {
      try {
        all_.read(*op, 0);
        ++op;
      } catch (const CannotCut& why) {
        op = std::lower_bound(ops_.begin(), ops_.end(), change(*op, why));
      }
    }
    sink(all_, main_);
    return result();
  }

 private:
  /// Compute what fails, or the sum that it reads, otherwise: as the user says, or before. The
  /// first op that is to be read again.
  std::int32_t change(std::int32_t op, const CannotCut& why) {
    const bool reads_sum = why.why == Why::mixes && why.op == op;
    const std::vector<std::int32_t> chain = leads_to(op, reads_sum);
    bool is_new = false;
    std::int32_t sum = -1, heavy = -1;
    for (const std::int32_t number : chain) {
      for (std::int32_t inner = number; inner < module_.ops[number].end; ++inner) {
        const bool adds = all_.begins_sum[inner] != 0;
        if (adds && sum < 0) sum = inner;
        if (heavy < 0 && all_.cut_of(inner).is_heavy) heavy = inner;
        const bool fails = inner == why.op && why.why == Why::no_sum;
        if ((!adds && !fails) || !is_named_[inner]) continue;
        all_.is_each[inner] = is_new = true;
      }
    }
    if (!is_new) {
      for (const std::int32_t number : chain) is_new |= !all_.is_whole[number];
      if (heavy >= 0 || !is_new) throw Refused(why.why, why.op, sum, heavy);
      for (const std::int32_t number : chain) all_.is_whole[number] = true;
    }
    return std::min(op, *std::min_element(chain.begin(), chain.end()));
  }

  /// Ops of `main` that differ between micro-batches and lead to `op`, the nearest first, with
  /// itself; or those that lead to the sums that it reads.
  std::vector<std::int32_t> leads_to(std::int32_t op, bool reads_sum) const {
    std::vector<std::int32_t> found;
    std::vector<char> is_found(module_.ops.size());
    const auto follow = [&](std::int32_t number, bool only_sums) {
      const std::int32_t last = module_.ops[number].end - 1;
      const std::int32_t end =
          module_.ops[last].first_operand + module_.ops[last].num_operands;
      for (std::int32_t at = module_.ops[number].first_operand; at < end; ++at) {
        const std::int32_t value = module_.operands[at], maker = maker_[value];
        const Time time = all_.time[value].time;
        const bool is_sum = time == Time::addend || time == Time::after;
        if (maker < 0 || maker == number || is_found[maker] || (only_sums && !is_sum))
          continue;
        if (time == Time::before && !all_.is_made_in_loop(value)) continue;
        is_found[maker] = true;
        found.push_back(maker);
      }
    };
    if (!reads_sum) found.push_back(op);
    follow(op, reads_sum);
    for (std::size_t at = reads_sum ? 0 : 1; at < found.size(); ++at) follow(found[at], false);
    return found;
  }

  Times result() {
    Times times;
    times.where.assign(module_.ops.size(), Where::before);
    place(times);
    for (std::size_t op = 0; op < module_.ops.size(); ++op) {
      if (all_.is_whole[op]) times.whole.push_back(static_cast<std::int32_t>(op));
    }
    for (const std::int32_t op : ops_) {
      if (times.where[op] == Where::loop) in_loop(op, times);
    }
    leave(times);
    check_order(times);
    return times;
  }

  /// What runs before the loop reads nothing that is made later, what is in it nothing behind
  /// it.
  void check_order(const Times& times) {
    for (const std::int32_t op : ops_) {
      const bool passes = all_.cut_of(op).kind == OpKind::identity;
      const OpStructure& last = module_.ops[module_.ops[op].end - 1];
      for (std::int32_t at = module_.ops[op].first_operand;
           at < last.first_operand + last.num_operands; ++at) {
        const std::int32_t maker = maker_[module_.operands[at]];
        const Where made = maker < 0 ? Where::before : times.where[maker];
        if (made > times.where[op] && !(passes && times.where[op] == Where::loop)) {
          throw std::logic_error("op " + std::to_string(op) + " reads what op " +
                                 std::to_string(maker) + " makes later");
        }
      }
    }
  }

  /// Where ops run; what is known before the loop, but not read in there, waits.
  void place(Times& times) const {
    std::vector<char> is_read(module_.num_values);
    for (auto at = ops_.rbegin(); at != ops_.rend(); ++at) {
      const std::int32_t op = *at;
      bool is_before = false, waits = false;
      for (std::int32_t k = 0; k < module_.ops[op].num_results; ++k) {
        is_before |= is_read[all_.result(op, k)] != 0;
        waits |= all_.time[all_.result(op, k)].time == Time::after;
      }
      times.where[op] = all_.in_loop[op]      ? Where::loop
                        : is_before && !waits ? Where::before
                                              : Where::after;
      if (times.where[op] == Where::after) continue;
      const std::int32_t last = module_.ops[op].end - 1;
      const std::int32_t end =
          module_.ops[last].first_operand + module_.ops[last].num_operands;
      for (std::int32_t k = module_.ops[op].first_operand; k < end; ++k) {
        is_read[module_.operands[k]] = true;
      }
    }
  }

  void slices_of(std::int32_t op, Times& times) const {
    const OpStructure& made = module_.ops[op];
    for (std::int32_t k = 0; k < made.num_results; ++k) {
      const ValueTime& time = all_.time[made.first_result + k];
      if (time.time == Time::slice) times.slices.push_back({op, -1, k, time.dim, time.stride});
      if (time.time == Time::after) times.passed.push_back({op, k});
    }
    for (std::int32_t region = 0; region < made.num_regions; ++region) {
      const Block& inside = module_.regions[made.first_region + region];
      for (std::int32_t k = 0; k < inside.num_arguments; ++k) {
        const ValueTime& time = all_.time[inside.first_argument + k];
        if (time.time != Time::slice) continue;
        times.slices.push_back({op, region, k, time.dim, time.stride});
      }
    }
  }

  void in_loop(std::int32_t op, Times& times) {
    std::vector<std::int32_t> around;
    for (std::int32_t inner = op; inner < module_.ops[op].end; ++inner) {
      while (!around.empty() && module_.ops[around.back()].end <= inner) around.pop_back();
      slices_of(inner, times);
      const OpStructure& read = module_.ops[inner];
      bool counts = false;
      for (std::int32_t k = 0; k < read.num_operands; ++k) {
        const std::int32_t place = read.first_operand + k;
        const std::int32_t value = module_.operands[place], maker = maker_[value];
        const bool is_argument = maker < 0 && all_.time[value].time == Time::slice;
        const Part part = is_argument ? Part{all_.time[value].dim, all_.time[value].stride}
                                      : all_.part[place];
        if (part.dim >= 0) times.needs.push_back({inner, k, part.dim, part.stride});
        if (all_.is_once[place]) times.once.push_back({inner, k});
        counts |= part.dim >= 0 || all_.is_once[place];
        if (all_.time[value].time == Time::after) continue;  // it passes a barrier by
        if (maker < 0 || times.where[maker] != Where::loop)
          times.captured.push_back({inner, k});
      }
      if (all_.is_each[inner]) times.each.push_back(inner);
      if (counts) {
        times.counting.insert(times.counting.end(), around.begin(), around.end());
      }
      const OpKind kind = all_.cut_of(inner).kind;
      if (kind == OpKind::loop || kind == OpKind::branches) around.push_back(inner);
    }
    std::sort(times.counting.begin(), times.counting.end());
    times.counting.erase(std::unique(times.counting.begin(), times.counting.end()),
                         times.counting.end());
  }

  /// What is made in the loop and read behind it.
  void leave(Times& times) const {
    std::vector<char> is_read(module_.num_values);
    const auto read = [&](std::int32_t first, std::int32_t last) {
      const std::int32_t end =
          module_.ops[last].first_operand + module_.ops[last].num_operands;
      for (std::int32_t k = module_.ops[first].first_operand; k < end; ++k) {
        is_read[module_.operands[k]] = true;
      }
    };
    for (const std::int32_t op : ops_) {
      if (times.where[op] == Where::after) read(op, module_.ops[op].end - 1);
    }
    read(main_.last_op, main_.last_op);
    for (const std::int32_t op : ops_) {
      if (times.where[op] != Where::loop) continue;
      for (std::int32_t k = 0; k < module_.ops[op].num_results; ++k) {
        const std::int32_t value = all_.result(op, k);
        if (!is_read[value]) continue;
        switch (all_.time[value].time) {
          case Time::addend:
            times.sums.push_back({op, k});
            break;
          case Time::slice:
            times.stacks.push_back({op, k});
            break;
          case Time::before:
            times.last.push_back({op, k});
            break;
          case Time::each:
            times.means.push_back({op, k});
            break;
          case Time::after:
            break;  // of a barrier: the operand itself
        }
      }
    }
  }

  const ModuleStructure& module_;
  const Block& main_;
  const Batch& batch_;
  Classifier all_;
  /// Op of `main` that makes a value, in its regions too; -1: an argument.
  std::vector<std::int32_t> maker_;
  std::vector<char> is_named_;
  std::vector<std::int32_t> ops_;
};

}  // namespace

Times times_of(const ModuleStructure& module, std::int32_t main, const Batch& batch,
               const std::function<OpCut(std::int32_t)>& describe) {
  return Analysis(module, main, batch, describe).find();
}

}  // namespace autoshard::micro_batch
