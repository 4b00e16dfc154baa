/// From where on what is gathered takes memory.
#pragma once

#include <cstdint>
#include <vector>

#include "compilers/compiler.h"
#include "memory/program_memory.h"
#include "planning/classes.h"

namespace autoshard::planning {

/// Where gathers begin: where they are read, or, with `Schedule::hides_gathers`, at the matmul
/// before in the same loop.
class GatherPoints {
 public:
  GatherPoints(const Program& program, const ProgramMemory& memory, const Compiler& compiler);

  /// The point from which on what is read at `point` is there.
  std::int32_t first(std::int32_t point) const {
    return before_.empty() ? point : before_[point];
  }
  /// While a copy is there that is gathered.
  LiveRange live(const Copy& copy) const { return {first(copy.live.first), copy.live.last}; }

 private:
  /// By program point; empty if gathers begin where they are read.
  std::vector<std::int32_t> before_;
};

}  // namespace autoshard::planning
