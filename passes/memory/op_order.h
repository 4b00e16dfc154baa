/// The order in which a compiler runs the ops of a program.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/buffer.h"
#include "memory/fused_program.h"

namespace autoshard {

struct OpOrder {
  /// By op: the program point at which it runs if it is a root. A fusion runs at the point of
  /// its root.
  std::vector<std::int32_t> point;
  /// By root: that of the matmul whose kernel computes it beside the product and writes both,
  /// or `no_op`.
  std::vector<std::int32_t> matmul;
  /// By loop: from its first op to its last one.
  std::vector<LiveRange> loops;

  /// The point from which on a value that lives in `home` is free again, read at `point` in
  /// the loop `reader`: a value from outside is needed in every trip.
  std::int32_t end_of_read(const LoopNest& nest, std::int32_t point, std::int32_t reader,
                           std::int32_t home) const;
};

/// Decides it. JAX puts all updates of an optimizer behind the whole backward pass, where all
/// gradients live at once; schedulers run an op as soon as its operands are there if that
/// frees at least what it makes. So does elementwise work in the kernel of a matmul, and all
/// other ops run in the order of the program.
///
/// Example: g1 = .., g2 = .., p1 = p1 - g1 (in place), p2 = p2 - g2 run as g1, p1, g2, p2.
OpOrder order_of(const FusedProgram& fused, const Fusion& rules);

}  // namespace autoshard
