#include "planning/collective_matmul.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "cost/compute.h"
#include "planning/options.h"

namespace autoshard::planning {
namespace {

/// A loop takes about as long for sums in float32 as for those in bfloat16: bits of an
/// element, as `Collectives::ring_result_passes` counts them.
constexpr double passed_on_bits = 16;

/// The factors of an op that makes one block of its result, as `held`, where it makes `made`.
FactorAxes block_of(const Rule& rule, const FactorAxes& axes, const Sharding& made,
                    const Sharding& held, const Mesh& mesh) {
  FactorAxes block = axes;
  for (std::size_t d = 0; d < held.dims.size(); ++d) {
    for (AxisIndex axis : held.dims[d]) {
      if ((mask(made) >> axis) & 1u) continue;
      for (std::int32_t f : rule.results[0].dims[d]) {
        const std::int64_t blocks = num_shards(block[f], mesh) * mesh.axis_sizes[axis];
        if (rule.factors[f].size % blocks != 0) continue;
        block[f].push_back(axis);
        break;
      }
    }
  }
  return block;
}

}  // namespace

std::pair<Step, bool> as_made(const Step& step, const Compute* matmul, const Cluster& cluster,
                              const Mesh& mesh) {
  const Step made = as_compiled(step, cluster, mesh);
  if (matmul != nullptr && is_ring_of_matmuls(made, cluster, mesh, *matmul)) {
    return {as_ring_of_matmuls(made), true};
  }
  return {scattered_alone(made, cluster, mesh), false};
}

double ring_seconds(const Program& program, const OpSignature& signature,
                    const FactorAxes& axes, const Sharding& made, const Sharding& held,
                    const Step& scatter, const Cluster& cluster, const Mesh& mesh) {
  const Rule& rule = program.rules[signature.rule];
  const auto bytes = [&](const RuleTensor& tensor) {
    return program.types[tensor.type].bytes() /
           static_cast<double>(num_shards(project(tensor, axes), mesh));
  };
  const Collectives& collectives = cluster.compiler.collectives;
  const RuleTensor& result = rule.results[0];
  const auto element_bits = static_cast<double>(program.types[result.type].element_bits);
  double moved =
      collectives.ring_result_passes * bytes(result) * passed_on_bits / element_bits;
  double smaller = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < rule.operands.size(); ++k) {
    if (!signature.part.reads[k]) moved += bytes(rule.operands[k]);
    smaller = std::min(smaller, bytes(rule.operands[k]));
  }
  moved += collectives.ring_operand_passes * smaller;
  const Compute turn = compute(rule, block_of(rule, axes, made, held, mesh),
                               KernelPart::alone(rule.operands.size(), rule.results.size()),
                               program.types, mesh, cluster);
  const Compute whole = compute(rule, axes, signature.part, program.types, mesh, cluster);
  const Chip& chip = cluster.chip;
  return static_cast<double>(scatter.participants) * turn.seconds - whole.seconds +
         moved / (chip.memory_bandwidth * chip.memory_efficiency);
}

}  // namespace autoshard::planning
