#include "planning/fills.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "memory/fusion_rules.h"
#include "memory/loop_nest.h"
#include "memory/program_index.h"

namespace autoshard::planning {
namespace {

/// A loop, a type, and bytes of a device.
using Alike = std::tuple<std::int32_t, std::int32_t, double>;

class AlikeFills {
 public:
  void add(const Alike& of, std::int32_t point) { alike_[of].push_back(point); }
  bool has(const Alike& of) const { return alike_.contains(of); }

  std::vector<Fills> all() const {
    std::vector<Fills> found;
    for (auto [of, points] : alike_) {
      std::sort(points.begin(), points.end());
      found.push_back({std::get<0>(of), std::get<2>(of), std::move(points)});
    }
    return found;
  }

 private:
  std::map<Alike, std::vector<std::int32_t>> alike_;
};

/// What an operand or result of op `i` is on a device.
Alike alike(const ProgramOnMesh& on, const Assignment& assignment, const LoopNest& loops,
            std::size_t i, const RuleTensor& tensor) {
  const FactorAxes& axes = assignment.axes(on.classes.class_of_op[i]);
  return {loops.of_op(static_cast<std::int32_t>(i)), tensor.type,
          on.local_bytes(tensor.type, project(tensor, axes))};
}

/// Whether an op adds two values or multiplies them: of zeros nobody does that.
bool is_linear(const Op& op, const Rule& rule) {
  return op.operands.size() == 2 && !rule.part_operands.empty();
}

/// When elementwise kernels read zeros, by what these are: the first and the last of them.
std::map<Alike, LiveRange> zeros_read(const ProgramOnMesh& on, const Assignment& assignment) {
  const LoopNest loops(on.program);
  std::map<Alike, LiveRange> found;
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    const Op& op = on.program.ops[i];
    const Rule& rule = on.program.rules[op.rule];
    if (rule.work != Work::elementwise || op.is_unread || is_linear(op, rule)) continue;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t v = op.operands[k];
      if (v == no_value || !on.program.values[v].is_zero) continue;
      const std::int32_t point = on.memory.point[i];
      LiveRange& live = found
                            .try_emplace(alike(on, assignment, loops, i, rule.operands[k]),
                                         LiveRange{point, point + 1})
                            .first->second;
      live = {std::min(live.first, point), std::max(live.last, point + 1)};
    }
  }
  return found;
}

}  // namespace

std::vector<Fills> scattered_over(const ProgramOnMesh& on, const Assignment& assignment) {
  const LoopNest loops(on.program);
  AlikeFills fills, zeros;
  for (std::size_t i = 0; i < on.program.ops.size(); ++i) {
    const Op& op = on.program.ops[i];
    const Rule& rule = on.program.rules[op.rule];
    if (rule.work != Work::indexed || rule.in_place_operand < 0 || op.is_unread) continue;
    const std::int32_t begins = op.operands[rule.in_place_operand];
    if (begins == no_value || !on.program.values[begins].is_free) continue;
    const Alike of = alike(on, assignment, loops, i, rule.results[0]);
    fills.add(of, on.memory.point[i]);
    if (on.program.values[begins].is_zero) zeros.add(of, on.memory.point[i]);
  }
  for (const auto& [of, live] : zeros_read(on, assignment)) {
    if (zeros.has(of)) fills.add(of, live.last);
  }
  return fills.all();
}

std::vector<Transient> zeros_beside_windows(const ProgramOnMesh& on,
                                            const Assignment& assignment) {
  const ProgramIndex index(on.program);
  std::map<Alike, LiveRange> zeros = zeros_read(on, assignment);
  std::vector<Transient> found;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (index.op(i).is_unread || !is_scatter_to_maxima(index, i)) continue;
    const auto read = zeros.find(alike(on, assignment, index.loops,
                                       static_cast<std::size_t>(i), index.rule(i).results[0]));
    if (read == zeros.end()) continue;
    found.push_back({read->second, std::get<2>(read->first)});
    zeros.erase(read);
  }
  return found;
}

std::vector<Fills> looped_over(const ProgramOnMesh& on, const Assignment& assignment) {
  const ProgramIndex index(on.program);
  AlikeFills fills;
  for (const Join& join : on.program.joins) {
    if (!index.is_free(join.source) || !index.is_carried(join.target)) continue;
    const CarriedSlot& slot = index.slot_of(join.target);
    const std::int32_t sharding_class = on.classes.class_of_value[join.target];
    if (join.source == slot.yielded || sharding_class < 0) continue;
    const std::int32_t type = on.program.values[join.target].type;
    fills.add({index.loops.parent(slot.loop), type,
               on.local_bytes(type, assignment.sharding(sharding_class))},
              on.memory.live[on.memory.alias[join.target]].first);
  }
  return fills.all();
}

}  // namespace autoshard::planning
