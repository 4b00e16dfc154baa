#include "planning/fills.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "memory/loop_nest.h"
#include "memory/program_index.h"

namespace autoshard::planning {
namespace {

/// By loop, type and bytes.
class AlikeFills {
 public:
  void add(std::int32_t loop, std::int32_t type, double bytes, std::int32_t point) {
    alike_[{loop, type, bytes}].push_back(point);
  }

  std::vector<Fills> all() const {
    std::vector<Fills> found;
    for (auto [of, points] : alike_) {
      std::sort(points.begin(), points.end());
      found.push_back({std::get<0>(of), std::get<2>(of), std::move(points)});
    }
    return found;
  }

 private:
  std::map<std::tuple<std::int32_t, std::int32_t, double>, std::vector<std::int32_t>> alike_;
};

}  // namespace

std::vector<Fills> scattered_over(const ProgramOnMesh& on, const Assignment& assignment) {
  const LoopNest loops(on.program);
  AlikeFills alike;
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    const Op& op = on.program.ops[i];
    const Rule& rule = on.program.rules[op.rule];
    if (rule.work != Work::indexed || rule.in_place_operand < 0 || op.is_unread) continue;
    const std::int32_t begins = op.operands[rule.in_place_operand];
    if (begins == no_value || !on.program.values[begins].is_free) continue;
    const FactorAxes& axes = assignment.axes(on.classes.class_of_op[i]);
    alike.add(loops.of_op(static_cast<std::int32_t>(i)), rule.results[0].type,
              on.local_bytes(rule.results[0].type, project(rule.results[0], axes)),
              on.memory.point[i]);
  }
  return alike.all();
}

std::vector<Fills> looped_over(const ProgramOnMesh& on, const Assignment& assignment) {
  const ProgramIndex index(on.program);
  AlikeFills alike;
  for (const Join& join : on.program.joins) {
    if (!index.is_free(join.source) || !index.is_carried(join.target)) continue;
    const CarriedSlot& slot = index.slot_of(join.target);
    const std::int32_t sharding_class = on.classes.class_of_value[join.target];
    if (join.source == slot.yielded || sharding_class < 0) continue;
    const std::int32_t type = on.program.values[join.target].type;
    alike.add(index.loops.parent(slot.loop), type,
              on.local_bytes(type, assignment.sharding(sharding_class)),
              on.memory.live[on.memory.alias[join.target]].first);
  }
  return alike.all();
}

}  // namespace autoshard::planning
