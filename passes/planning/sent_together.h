/// Which collectives a compiler joins, so that they share their latency.
#pragma once

#include <cstdint>
#include <vector>

#include "compilers/compiler.h"
#include "model/program.h"

namespace autoshard::planning {

/// How many collectives run as one with that of a value, or of an op that sums to a scalar,
/// itself included, as long as they are small; empty where the compiler joins none.
struct Together {
  std::vector<std::int32_t> of_values = {};
  std::vector<std::int32_t> of_scalar_sums = {};
};

/// None of those that run as one waits for another:
///
/// - gathers of what is made of arguments alone, for ops of one loop, or before loops
/// (weights);
/// - sums that nothing but updates reads (gradients), and what is made of them, in one loop;
/// - sums of one rule that stand beside each other (a mean, and a mean of squares), those to
/// scalars among them (the norms of several gradients).
Together sent_together(const Program& program, const Compiler& compiler);

}  // namespace autoshard::planning
