#include "micro_batch/sinking.h"

#include <optional>

namespace autoshard::micro_batch {
namespace {

using importer::Block;
using importer::ModuleStructure;
using importer::OpStructure;

/// Which operands read each value, and of which ops.
class Readers {
 public:
  explicit Readers(const ModuleStructure& module)
      : first_(module.num_values + 1), op_of(module.operands.size()) {
    for (const std::int32_t value : module.operands) ++first_[value + 1];
    for (std::size_t v = 1; v < first_.size(); ++v) first_[v] += first_[v - 1];
    places_.resize(module.operands.size());
    std::vector<std::int32_t> next(first_.begin(), first_.end() - 1);
    for (std::size_t op = 0; op < module.ops.size(); ++op) {
      const OpStructure& read = module.ops[op];
      for (std::int32_t k = 0; k < read.num_operands; ++k) {
        const std::int32_t place = read.first_operand + k;
        places_[next[module.operands[place]]++] = place;
        op_of[place] = static_cast<std::int32_t>(op);
      }
    }
  }

  std::span<const std::int32_t> of(std::int32_t value) const {
    return {places_.data() + first_[value],
            static_cast<std::size_t>(first_[value + 1] - first_[value])};
  }

 private:
  std::vector<std::int32_t> first_, places_;

 public:
  std::vector<std::int32_t> op_of;
};

class Sinking {
 public:
  explicit Sinking(Classifier& classifier)
      : all_(classifier), module_(classifier.module), readers_(classifier.module) {}

  void block(const Block& block) {
    std::vector<std::int32_t> ops;
    for (std::int32_t op = block.first_op; op < block.last_op; op = module_.ops[op].end) {
      ops.push_back(op);
    }
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) read(*op);
  }

 private:
  void read(std::int32_t op) {
    const OpCut& rule = all_.cut_of(op);
    if (all_.is_whole[op] || rule.is_free) return;
    if (!is_before(op)) {
      if (rule.kind == OpKind::loop || rule.kind == OpKind::branches) inside(op);
      return;
    }
    if (rule.kind == OpKind::plain) plain(op);
    if (rule.kind == OpKind::loop && loop(op)) inside(op);
  }

  bool is_before(std::int32_t op) const {
    for (std::int32_t k = 0; k < module_.ops[op].num_results; ++k) {
      if (all_.time[all_.result(op, k)].time != Time::before) return false;
    }
    return true;
  }

  /// The regions of what runs in the loop, and what it carries along unchanged.
  void inside(std::int32_t op) {
    for (const Block& one : all_.blocks(op)) block(one);
    if (all_.cut_of(op).kind == OpKind::loop) invariants(op);
  }

  /// The part of a value that all of its readers take; none if they differ, or nobody reads
  /// it.
  std::optional<Part> part_read(std::int32_t value, std::int32_t but = -1) const {
    std::optional<Part> found;
    for (const std::int32_t place : readers_.of(value)) {
      if (place == but) continue;
      const Part& part = all_.part[place];
      if (part.dim < 0 || (found && !(*found == part))) return std::nullopt;
      found = part;
    }
    return found;
  }

  void become_slice(std::int32_t value, const Part& part) {
    all_.time[value] = {Time::slice, part.dim, part.stride};
    for (const std::int32_t place : readers_.of(value)) all_.part[place] = {};
  }

  void plain(std::int32_t op) {
    const OpCut& rule = all_.cut_of(op);
    const OpStructure& made = module_.ops[op];
    const bool has_rule = static_cast<std::int32_t>(rule.results.size()) == made.num_results &&
                          static_cast<std::int32_t>(rule.operands.size()) == made.num_operands;
    if (made.num_results == 0 || !has_rule) return;
    std::optional<Classifier::FactorCut> cut;
    for (std::int32_t k = 0; k < made.num_results; ++k) {
      const std::int32_t value = all_.result(op, k);
      const std::optional<Part> part = part_read(value);
      if (!part) return;
      try {
        const Classifier::FactorCut here = all_.factor_of(op, rule.results[k], *part);
        if (cut && (cut->factor != here.factor || cut->stride != here.stride)) return;
        cut = here;
      } catch (const CannotCut&) {
        return;  // it stays whole, and its readers take their part
      }
    }
    if (rule.factors[cut->factor].kind != FactorKind::pass_through) return;
    for (std::int32_t k = 0; k < made.num_results; ++k) {
      become_slice(all_.result(op, k), *part_read(all_.result(op, k)));
    }
    for (std::int32_t k = 0; k < made.num_operands; ++k) {
      all_.part[made.first_operand + k] = all_.part_of(op, rule.operands[k], *cut);
    }
    all_.in_loop[op] = true;
  }

  /// A loop whose results are read in parts only, as that of a random number generator.
  bool loop(std::int32_t op) {
    const OpStructure& made = module_.ops[op];
    std::vector<ValueTime> wanted(made.num_results);
    bool has_any = false;
    for (std::int32_t k = 0; k < made.num_results; ++k) {
      const std::int32_t value = all_.result(op, k);
      if (readers_.of(value).empty()) continue;
      const std::optional<Part> part = part_read(value);
      if (!part) return false;
      wanted[k] = {Time::slice, part->dim, part->stride};
      has_any = true;
    }
    if (!has_any) return false;
    try {
      all_.read_loop(op, 0, wanted);
    } catch (const CannotCut&) {
      all_.set_before(op);
      return false;
    }
    for (std::int32_t k = 0; k < made.num_results; ++k) {
      if (wanted[k].time == Time::slice && !(all_.time[all_.result(op, k)] == wanted[k])) {
        all_.set_before(op);
        return false;
      }
    }
    for (std::int32_t k = 0; k < made.num_results; ++k) {
      if (wanted[k].time != Time::slice) continue;
      become_slice(all_.result(op, k), {wanted[k].dim, wanted[k].stride});
    }
    all_.in_loop[op] = true;
    return true;
  }

  /// What a loop only reads, part by part, and hands on as it is, is carried as slices.
  void invariants(std::int32_t op) {
    const Block &condition = all_.blocks(op)[0], &body = all_.blocks(op)[1];
    for (std::int32_t k = 0; k < body.num_arguments; ++k) {
      const std::int32_t argument = body.first_argument + k;
      const std::int32_t yielded = module_.ops[body.last_op].first_operand + k;
      if (all_.time[argument].time != Time::before || module_.operands[yielded] != argument ||
          !readers_.of(condition.first_argument + k).empty()) {
        continue;
      }
      const std::optional<Part> part = part_read(argument, yielded);
      const std::int32_t made = all_.result(op, k);
      if (!part || !(readers_.of(made).empty() || part_read(made) == part)) continue;
      become_slice(argument, *part);
      all_.time[condition.first_argument + k] = all_.time[argument];
      become_slice(made, *part);
      all_.part[module_.ops[op].first_operand + k] = *part;
    }
  }

  Classifier& all_;
  const ModuleStructure& module_;
  Readers readers_;
};

}  // namespace

void sink(Classifier& classifier, const Block& block) { Sinking(classifier).block(block); }

}  // namespace autoshard::micro_batch
