/// Which ops and values of a program wait for which.
#pragma once

#include <cstdint>
#include <vector>

#include "model/program.h"

namespace autoshard::planning {

/// By value: a matmul, or an op of its own kind, is computed from it. Ops that `is_left_out`
/// marks do not count.
///
/// Example: of y = dot(x, w), z = y + 1 it holds for x and w, not for y.
std::vector<bool> leading_to_matmuls(const Program& program,
                                     const std::vector<bool>& is_left_out);

/// By value: no matmul, reduction or op of its own kind is behind it, in this trip of a loop
/// or an earlier one.
///
/// Example: a weight, one layer's slice of it, and either as another type.
std::vector<bool> made_of_arguments(const Program& program);

/// By value: the op behind which it can be made at the earliest if elementwise ops and views
/// are made again; -1 for what is computed from arguments alone.
std::vector<std::int32_t> there_after(const Program& program);

/// By op: the first op that waits for it behind a barrier, also by what is computed from it;
/// -1: none does.
std::vector<std::int32_t> waited_for(const Program& program);

/// Whether both operands and the result of a matmul have a dim in common.
bool is_batched(const Rule& rule);

}  // namespace autoshard::planning
