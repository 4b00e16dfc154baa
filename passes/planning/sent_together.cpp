#include "planning/sent_together.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "memory/loop_nest.h"
#include "memory/program_index.h"
#include "planning/dependences.h"

namespace autoshard::planning {
namespace {

/// Ops that are looked at for a way from one sum to another; farther ones are taken to wait.
constexpr std::size_t most_ops_between = 200;

class SentTogether {
 public:
  explicit SentTogether(const Program& program)
      : program_(program),
        loops_(program),
        maker_(program.values.size(), no_op),
        found_(program.values.size(), 1),
        of_scalar_sums_(program.ops.size(), 1) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (std::int32_t v : program.ops[i].results) {
        if (v != no_value) maker_[v] = static_cast<std::int32_t>(i);
      }
    }
  }

  Together run() {
    const std::vector<bool> leads =
        leading_to_matmuls(program_, std::vector<bool>(program_.ops.size(), false));
    add_siblings(leads);
    add_late(leads);
    add_early(made_of_arguments(program_));
    return {std::move(found_), std::move(of_scalar_sums_)};
  }

 private:
  Work work(std::size_t i) const { return program_.rules[program_.ops[i].rule].work; }
  bool sums(std::size_t i) const { return work(i) == Work::matmul || work(i) == Work::reduce; }

  /// What ops of one loop read that are not themselves made of arguments alone.
  void add_early(const std::vector<bool>& is_early) {
    std::map<std::int32_t, std::set<std::int32_t>> read;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      const bool goes_on = std::all_of(op.results.begin(), op.results.end(),
                                       [&](auto v) { return v == no_value || is_early[v]; });
      if (goes_on) continue;
      for (std::int32_t v : op.operands) {
        if (v != no_value && is_early[v] && !program_.values[v].is_free) {
          read[loops_.of_op(static_cast<std::int32_t>(i))].insert(v);
        }
      }
    }
    // Gathers of what enters a loop as it is stand before the loop.
    for (const Join& join : program_.joins) {
      const bool is_before_loops = join.trips == 1 && is_early[join.source] &&
                                   is_early[join.target] && join.source != join.target;
      if (is_before_loops) read[no_loop].insert(join.source);
    }
    for (const auto& [loop, values] : read) {
      for (std::int32_t v : values) found_[v] = static_cast<std::int32_t>(values.size());
    }
  }

  void add_late(const std::vector<bool>& leads) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> sums_of;
    std::vector<std::int32_t> made;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      for (std::int32_t v : program_.ops[i].results) {
        if (v == no_value || leads[v] || program_.ops[i].is_unread) continue;
        if (sums(i)) {
          const std::int32_t bits = program_.types[program_.values[v].type].element_bits;
          sums_of[{loops_.of_op(static_cast<std::int32_t>(i)), bits}].push_back(v);
        } else {
          made.push_back(v);
        }
      }
    }
    std::size_t most = 1;
    for (const auto& [key, values] : sums_of) {
      most = std::max(most, values.size());
      for (std::int32_t v : values) found_[v] = static_cast<std::int32_t>(values.size());
    }
    for (std::int32_t v : made) found_[v] = static_cast<std::int32_t>(most);
  }

  void add_siblings(const std::vector<bool>& leads) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> beside;
    const auto close = [&](std::vector<std::int32_t>& group) {
      for (std::int32_t i : group) {
        of_scalar_sums_[i] = static_cast<std::int32_t>(group.size());
        for (std::int32_t v : program_.ops[i].results) {
          if (v != no_value) found_[v] = static_cast<std::int32_t>(group.size());
        }
      }
      group.clear();
    };
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      const bool leads_on = std::any_of(op.results.begin(), op.results.end(),
                                        [&](auto v) { return v != no_value && leads[v]; });
      const bool is_scalar = std::all_of(op.results.begin(), op.results.end(),
                                         [](auto v) { return v == no_value; });
      if (work(i) != Work::reduce || op.is_unread || !(leads_on || is_scalar)) continue;
      const auto index = static_cast<std::int32_t>(i);
      std::vector<std::int32_t>& group = beside[{op.rule, loops_.of_op(index)}];
      if (!group.empty() && waits(index, group)) close(group);
      group.push_back(index);
    }
    for (auto& [key, group] : beside) close(group);
  }

  /// Whether `op` is computed from any of the earlier ops of `group`.
  bool waits(std::int32_t op, const std::vector<std::int32_t>& group) const {
    std::set<std::int32_t> seen{op};
    std::vector<std::int32_t> open{op};
    while (!open.empty()) {
      const std::int32_t at = open.back();
      open.pop_back();
      for (std::int32_t v : program_.ops[at].operands) {
        const std::int32_t before = v == no_value ? no_op : maker_[v];
        if (before < group.front() || !seen.insert(before).second) continue;
        if (std::find(group.begin(), group.end(), before) != group.end()) return true;
        if (seen.size() > most_ops_between) return true;
        open.push_back(before);
      }
    }
    return false;
  }

  const Program& program_;
  const LoopNest loops_;
  /// By value: the op that makes it.
  std::vector<std::int32_t> maker_;
  std::vector<std::int32_t> found_, of_scalar_sums_;
};

}  // namespace

Together sent_together(const Program& program, const Compiler& compiler) {
  if (compiler.collectives.joined_bytes == 0 && compiler.collectives.tuple_bytes == 0) {
    return {};
  }
  return SentTogether(program).run();
}

}  // namespace autoshard::planning
