#include "planning/estimate.h"

#include <algorithm>

#include "cost/compute.h"
#include "planning/classes.h"
#include "planning/options.h"
#include "planning/seconds.h"
#include "planning/sent_together.h"

namespace autoshard::planning {
namespace {

/// Puts the axes of one tensor on those factors of it that are not `known` yet. Of a result
/// that is `scattered`, over these axes, some are on none: those of the sum, and those that
/// cut what was scattered once more.
void lift(const Rule& rule, const RuleTensor& tensor, const Sharding& sharding,
          AxisMask scattered, const Mesh& mesh, FactorAxes& axes, std::vector<bool>& known) {
  if (sharding.dims.size() != tensor.dims.size()) {
    throw InvalidProgram("a strategy of another rank than its tensor");
  }
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    std::size_t at = 0;
    std::int64_t left = 0;
    const auto start = [&] {
      left = at < tensor.dims[d].size() ? rule.factors[tensor.dims[d][at]].size : 0;
    };
    start();
    for (AxisIndex axis : sharding.dims[d]) {
      if ((scattered >> axis) & 1u) continue;
      const std::int64_t size = mesh.axis_sizes[axis];
      while (left == 1 && at < tensor.dims[d].size()) {
        ++at;
        start();
      }
      if (left == 0 || left % size != 0) {
        if (scattered != 0) continue;
        throw InvalidProgram("a strategy that no factors of the op make");
      }
      left /= size;
      const std::int32_t factor = tensor.dims[d][at];
      const bool is_cut = rule.factors[factor].kind != FactorKind::need_replication;
      if (!known[factor] && (is_cut || scattered == 0)) axes[factor].push_back(axis);
    }
  }
  for (const auto& dim : tensor.dims) {
    for (std::int32_t factor : dim) known[factor] = true;
  }
}

}  // namespace

FactorAxes factors_of(const Rule& rule, const std::vector<const Sharding*>& operands,
                      const std::vector<const Sharding*>& results, const Mesh& mesh) {
  FactorAxes axes(rule.factors.size());
  std::vector<bool> known(rule.factors.size());
  for (std::size_t k = 0; k < rule.operands.size(); ++k) {
    if (operands[k]) lift(rule, rule.operands[k], *operands[k], 0, mesh, axes, known);
  }
  // A scattered result has axes that its own factors do not, those of partial sums, on any
  // dim, also on one that no factor makes. Whoever reads it says so.
  const AxisMask scattered = partial_axes(rule, axes);
  for (std::size_t k = 0; k < rule.results.size(); ++k) {
    if (!results[k]) continue;
    bool is_open = false;
    for (const auto& dim : rule.results[k].dims) {
      for (std::int32_t factor : dim) is_open |= !known[factor];
    }
    if (is_open) lift(rule, rule.results[k], *results[k], scattered, mesh, axes, known);
  }
  return axes;
}

PlanCosts estimate(const Program& program, const Cluster& cluster, const Plan& plan,
                   const ProgramMemory& memory) {
  check(program);
  check(cluster, program.mesh);
  verify(program, program.mesh, plan);
  const Classes classes = classes_of(
      program, &memory,
      {-1, search_copy_distance(program), sent_together(program, cluster.compiler)});
  const ProgramOnMesh on{program, program.mesh, classes, memory, cluster};
  return costs_of(on, assignment_of(program, classes, SecondsCosts(on), plan), plan);
}

}  // namespace autoshard::planning
