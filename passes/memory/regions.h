/// How loops nest, and how long what is read in one has to live.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory/stored.h"
#include "model/program.h"

namespace autoshard {

/// No loop.
inline constexpr std::int32_t no_region = -1;

/// The innermost loop around every op, and how loops nest.
class Regions {
 public:
  explicit Regions(const Program& program)
      : of_op_(program.ops.size(), no_region), parent_(program.loops.size(), no_region) {
    for (const Loop& loop : program.loops) moments_.push_back({loop.first_op, loop.last_op});
    for (std::size_t i = program.loops.size(); i-- > 0;) {
      const Loop& loop = program.loops[i];
      const auto index = static_cast<std::int32_t>(i);
      if (loop.first_op < loop.last_op) parent_[i] = of_op_[loop.first_op];
      std::fill(of_op_.begin() + loop.first_op, of_op_.begin() + loop.last_op, index);
    }
  }

  std::int32_t of_op(std::int32_t op) const { return of_op_[op]; }
  std::int32_t parent(std::int32_t region) const { return parent_[region]; }
  Lifetime moments(std::int32_t region) const { return moments_[region]; }

  /// Ops run in another order now; those of a loop still run one after the other.
  void reorder(const std::vector<std::int32_t>& moment_of_op) {
    for (Lifetime& loop : moments_) {
      const Lifetime ops = loop;
      if (ops.first < ops.last) loop = {moment_of_op[ops.first], 0};
      for (std::int32_t i = ops.first; i < ops.last; ++i) {
        loop.first = std::min(loop.first, moment_of_op[i]);
        loop.last = std::max(loop.last, moment_of_op[i] + 1);
      }
    }
  }

  bool contains(std::int32_t outer, std::int32_t inner) const {
    while (inner != no_region && inner != outer) inner = parent_[inner];
    return inner == outer;
  }

  /// When a value that lives in `home` is free again, read at `moment` in region `reader`: a
  /// value from outside is needed in every trip.
  std::int32_t end_of_read(std::int32_t moment, std::int32_t reader, std::int32_t home) const {
    std::int32_t end = moment + 1;
    for (std::int32_t r = reader; r != no_region && !contains(r, home); r = parent_[r]) {
      end = std::max(end, moments_[r].last);
    }
    return end;
  }

 private:
  std::vector<std::int32_t> of_op_, parent_;
  std::vector<Lifetime> moments_;
};

}  // namespace autoshard
