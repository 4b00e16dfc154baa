/// Which elementwise kernels are one that writes all of their results.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "memory/fusions.h"

namespace autoshard {

/// Joins kernels by what they share (`Fusion::several_results`), told of ops from the last to
/// the first while their roots are found.
///
/// Example: of a = x * y, b = a + 1, c = a - x, both b and c are stored. They are one kernel
/// that reads x and y, and a is never in memory.
class SeveralResults {
 public:
  SeveralResults(const FusionInput& input, Fusions& fusions);

  /// Op `i` has found its roots.
  void note(std::int32_t i);

  /// Whether the kernels that read op `i`, whose ends are `roots`, are one or become one now:
  /// each writes as many elements as `i` and computes them from those of `i` one by one, and
  /// none waits for what another kernel makes from a result of theirs. Not so where `i` is no
  /// such op.
  bool join(std::int32_t i, const std::vector<std::int32_t>& roots);

  /// Whether ops that end kernels are results of one.
  bool are_one(const std::vector<std::int32_t>& roots) const;

 private:
  std::int32_t last_of(std::int32_t root) const;
  std::vector<std::int32_t> members_of(const std::vector<std::int32_t>& roots) const;
  bool computes_each(std::int32_t i) const;
  bool is_in_order(std::int32_t value) const;
  bool is_read_one_by_one(std::int32_t i) const;
  bool is_within(std::int32_t op, const std::vector<std::int32_t>& members) const;
  bool waits_for_another(const std::vector<std::int32_t>& members) const;

  const FusionInput& input_;
  Fusions& fusions_;
  /// By op: the ops on the longest way to it that end a kernel whatever reads them.
  std::vector<std::int32_t> level_;
  /// By op: each element is computed from one of each operand, and so on up to its roots.
  std::vector<bool> is_one_by_one_;
  /// By the last of kernels that are one: all of them, in order.
  std::map<std::int32_t, std::vector<std::int32_t>> members_;
};

}  // namespace autoshard
