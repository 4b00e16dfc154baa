/// What loops add up: parts of sums over devices that may be reduced behind a loop, not in
/// every trip of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory/buffer.h"
#include "memory/program_memory.h"
#include "model/program.h"

namespace autoshard::planning {

/// An op whose result is added up by a loop, through ops that may be done to parts of it.
struct SummedOp {
  std::int32_t op;
  /// What the outermost loop carries, and its trips.
  std::int32_t sum;
  double trips;
  /// Bytes of the sum, and of one of its elements, over those of the op's first result. Of a
  /// stack that a loop over layers fills the first is as many times as much.
  double bytes, bits;
  /// While the sum is there.
  LiveRange live;
};

/// All of them, in the order of the program: those that may leave parts as far as the program
/// without a plan shows. Whether all parts of a sum are over the same devices is not looked
/// at.
///
/// Example: 8 trips, in each sum += convert(dot(x, dy)), bfloat16 to float32: the dot, 8
/// trips, twice its bytes and bits.
std::vector<SummedOp> summed_ops(const Program& program, const ProgramMemory& memory);

/// By how many bytes a part of a result of `bytes` that ops make in `made` blocks is more than
/// what a device holds of it where the sum is in `held` blocks; 0 if it is less.
inline double more_of_part(double bytes, double made, double held) {
  return std::max(0.0, bytes / made - bytes / held);
}

}  // namespace autoshard::planning
