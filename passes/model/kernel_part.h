/// What an op does in its kernel.
#pragma once

#include <cstdint>
#include <vector>

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

/// A factor that a broadcast makes, and one that it reads, which a view of its result joins in
/// one dim: where a device has more than one of both, the broadcast is a kernel of its own.
struct Repeat {
  std::int32_t made = -1;
  std::int32_t beside = -1;
  /// Tiles of the result over those of as many elements in tiles of all rows.
  double tiles = 0;

  bool is_there() const { return made >= 0; }
  bool operator==(const Repeat&) const = default;
};

/// An op's part of the kernel that computes it.
struct KernelPart {
  /// By operand: how many kernels read it from memory here, and not in an earlier op; 0: it
  /// comes from the kernel itself.
  std::vector<std::int32_t> reads;
  /// By result: it is written to memory.
  std::vector<bool> writes;
  /// The others in the kernel of a matmul; else empty.
  std::vector<FusedWork> fused = {};
  /// By operand, then by result: bytes in memory over those of the elements; empty: 1 of all.
  std::vector<double> padding = {};
  /// Whether a kernel of its own ends in the op, if it writes anything.
  bool is_launched = true;
  /// Whether what the kernel packs (`Fusion::packed_bytes`) is counted here, and not in an
  /// earlier op of it or with the product that it computes.
  bool packs = true;
  /// How many kernels compute it.
  std::int32_t times = 1;
  /// Operations of the vector units in the op's kernel for each byte that it moves, rounded to
  /// a quarter of a power of two, at least 1: where memory takes longer, ops take the time of
  /// what they move, and else that of what they compute. 0: the kernel has one op, or a
  /// product: each op takes the longer of both.
  double intensity = 0;
  /// What a view joins of the result of a broadcast; nothing of other ops.
  Repeat repeat = {};

  double padding_of(std::size_t tensor) const { return padding.empty() ? 1 : padding[tensor]; }

  /// An op that is a kernel alone.
  static KernelPart alone(std::size_t operands, std::size_t results) {
    return {std::vector<std::int32_t>(operands, 1), std::vector<bool>(results, true)};
  }
};

}  // namespace autoshard
