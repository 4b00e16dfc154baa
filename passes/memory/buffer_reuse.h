/// Values that use the memory of a result of the program until that is made.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/buffer.h"

namespace autoshard {

/// A result that has a buffer of its own from end to end.
struct ResultBuffer {
  /// Index among all buffers.
  std::int32_t index;
  /// The program point at which the result is made.
  std::int32_t made;
};

/// A result has a buffer for the whole program, and what is free again before the result is
/// made may use it if it is not larger: the largest values first, each in the smallest result.
/// Sets `Buffer::reused`; `num_points` is the length of the whole program.
///
/// Example: the buffer of a result of 8 bytes that is made at point 5 is used by a value of 8
/// bytes that lives at [1, 3), and by one of 4 bytes at [3, 5), but by none that lives at
/// [4, 6).
void reuse_results(const std::vector<ResultBuffer>& results, std::int32_t num_points,
                   std::vector<Buffer>& buffers);

}  // namespace autoshard
