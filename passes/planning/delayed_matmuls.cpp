#include "planning/delayed_matmuls.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "planning/dependences.h"

namespace autoshard::planning {
namespace {

/// What the ops of a loop read.
struct LoopReads {
  /// By value: a matmul that is waited for is computed from it.
  std::vector<bool> drives;
  /// By alias: when a matmul first needs it, or what is computed from it, and how many readers
  /// drive such a matmul.
  std::vector<std::int32_t> first_need, driving_readers;
  /// (program point, op) of batched matmuls, in order.
  std::vector<std::pair<std::int32_t, std::int32_t>> matmuls;
};

LoopReads reads_in(const ProgramOnMesh& on, const GradientSums& gradients, std::int32_t loop,
                   const std::vector<bool>& is_waited_for) {
  const Program& program = on.program;
  const std::vector<std::int32_t>& alias = on.memory.alias;
  LoopReads reads{std::vector<bool>(program.values.size(), false),
                  std::vector<std::int32_t>(program.values.size(), never),
                  std::vector<std::int32_t>(program.values.size(), 0),
                  {}};
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    if (gradients.loops.of_op(static_cast<std::int32_t>(i)) != loop) continue;
    const Op& op = program.ops[i];
    const bool is_delayed = gradients.is_delayed[i];
    bool does_drive = false;
    std::int32_t need = never;
    for (std::int32_t v : op.results) {
      if (v == no_value) continue;
      need = std::min(need, reads.first_need[alias[v]]);
      does_drive = does_drive || reads.drives[v] ||
                   (is_matmul(program, i) && !is_delayed && is_waited_for[v]);
    }
    if (is_matmul(program, i)) need = on.memory.point[i];
    for (std::int32_t v : op.operands) {
      if (v == no_value) continue;
      if (does_drive) reads.drives[v] = true;
      const bool is_view =
          !op.results.empty() && op.results[0] != no_value && alias[op.results[0]] == alias[v];
      if (is_view || is_delayed) continue;
      reads.first_need[alias[v]] = std::min(reads.first_need[alias[v]], need);
      if (does_drive) ++reads.driving_readers[alias[v]];
    }
    if (!is_delayed && is_batched(program.rules[op.rule])) {
      reads.matmuls.emplace_back(on.memory.point[i], static_cast<std::int32_t>(i));
    }
  }
  std::sort(reads.matmuls.begin(), reads.matmuls.end());
  return reads;
}

/// When the last operand of an op is made, or what it is computed from as it is read.
std::int32_t newest_operand(const ProgramOnMesh& on, const std::vector<std::int32_t>& there,
                            std::int32_t op) {
  std::int32_t newest = -1;
  for (std::int32_t v : on.program.ops[op].operands) {
    if (v == no_value) continue;
    newest = std::max(newest, on.memory.live[on.memory.alias[v]].first);
    if (there[v] >= 0) newest = std::max(newest, on.memory.point[there[v]]);
  }
  return newest;
}

}  // namespace

std::vector<DelayedRead> delayed_batched_matmuls(const ProgramOnMesh& on,
                                                 const GradientSums& gradients,
                                                 std::int32_t loop, bool hides_gathers,
                                                 const std::vector<bool>& is_waited_for,
                                                 const std::vector<std::int32_t>& there) {
  const std::vector<std::int32_t>& alias = on.memory.alias;
  const LoopReads reads = reads_in(on, gradients, loop, is_waited_for);
  std::vector<DelayedRead> delayed;
  for (std::size_t n = 0; n < reads.matmuls.size(); ++n) {
    const auto [point, op] = reads.matmuls[n];
    const std::int32_t made = on.program.ops[op].results[0];
    if (made == no_value || (hides_gathers && !reads.drives[made])) continue;
    for (std::size_t k = n + 1; k < reads.matmuls.size(); ++k) {
      if (reads.matmuls[k].first >= reads.first_need[alias[made]]) break;
      const std::int32_t newest = newest_operand(on, there, reads.matmuls[k].second);
      if (newest <= point) continue;
      for (std::int32_t v : on.program.ops[op].operands) {
        if (v == no_value || on.program.values[v].is_free) continue;
        const std::int32_t itself = reads.drives[made] || is_waited_for[made] ? 1 : 0;
        if (reads.driving_readers[alias[v]] > itself) {
          delayed.push_back({alias[v], point, newest});
        }
      }
      break;
    }
  }
  return delayed;
}

}  // namespace autoshard::planning
