#include "planning/gather_points.h"

#include <cstddef>

#include "memory/loop_nest.h"

namespace autoshard::planning {

GatherPoints::GatherPoints(const Program& program, const ProgramMemory& memory,
                           const Compiler& compiler) {
  if (!compiler.schedule.hides_gathers) return;
  const LoopNest loops(program);
  const auto points = static_cast<std::size_t>(memory.num_points);
  std::vector<std::int32_t> loop_at(points, -1);
  std::vector<bool> is_matmul(points, false);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const std::int32_t point = memory.point[i];
    loop_at[point] = loops.of_op(static_cast<std::int32_t>(i));
    if (program.rules[program.ops[i].rule].work == Work::matmul) is_matmul[point] = true;
  }
  before_.resize(points);
  std::vector<std::int32_t> latest(program.loops.size() + 1, -1);
  for (std::size_t p = 0; p < points; ++p) {
    std::int32_t& last = latest[loop_at[p] + 1];
    before_[p] = last < 0 ? static_cast<std::int32_t>(p) : last;
    if (is_matmul[p]) last = static_cast<std::int32_t>(p);
  }
}

}  // namespace autoshard::planning
