/// What is computed in the kernel of a matmul besides the product.
#pragma once

#include <cstdint>

namespace autoshard {

/// An op that is computed in the kernel of a matmul, while the matrix unit is busy: its work
/// for each element of the operand that it helps to compute, or of the result.
///
/// Example: of dot(x, y) + b in 16 bits, b as large as the product: the result, 2 bytes read
/// and 2 written, 1 narrow element packed, 1 operation.
struct FusedWork {
  /// The number of the operand, or how many there are.
  std::int32_t tensor = 0;
  double bytes = 0;
  /// Results narrower than 32 bits.
  double packed = 0;
  double flops = 0;

  bool operator==(const FusedWork&) const = default;
};

}  // namespace autoshard
