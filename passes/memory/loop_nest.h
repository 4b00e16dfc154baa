/// How the loops of a program nest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/program.h"

namespace autoshard {

/// What is in no loop.
inline constexpr std::int32_t no_loop = -1;

/// The innermost loop around every op, and the loop around every loop.
///
/// Example: loop 1 has the ops [0, 6), loop 0 in it the ops [2, 4): of_op(3) = 0, of_op(5) =
/// 1, parent(0) = 1, parent(1) = no_loop.
class LoopNest {
 public:
  explicit LoopNest(const Program& program)
      : of_op_(program.ops.size(), no_loop), parent_(program.loops.size(), no_loop) {
    for (std::size_t i = program.loops.size(); i-- > 0;) {
      const Loop& loop = program.loops[i];
      const auto index = static_cast<std::int32_t>(i);
      if (loop.first_op < loop.last_op) parent_[i] = of_op_[loop.first_op];
      std::fill(of_op_.begin() + loop.first_op, of_op_.begin() + loop.last_op, index);
    }
  }

  std::int32_t of_op(std::int32_t op) const { return of_op_[op]; }
  std::int32_t parent(std::int32_t loop) const { return parent_[loop]; }

  /// Whether `inner` is `outer` or nests in it. Everything is in `no_loop`.
  bool contains(std::int32_t outer, std::int32_t inner) const {
    while (inner != no_loop && inner != outer) inner = parent_[inner];
    return inner == outer;
  }

 private:
  std::vector<std::int32_t> of_op_, parent_;
};

}  // namespace autoshard
