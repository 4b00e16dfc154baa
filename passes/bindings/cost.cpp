#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "cost/collectives.h"
#include "cost/compute.h"
#include "cost/redistribution.h"
#include "cost/reshard_path.h"

namespace nb = nanobind;

namespace autoshard {
namespace {

using Dims = std::vector<std::vector<std::int32_t>>;
/// (kind, axes, participants, bytes that a device holds before)
using StepTuple = std::tuple<int, AxisMask, std::int64_t, double>;
/// (factors of each dim, element bits); no factors at all: rank 0.
using TensorTuple = std::pair<Dims, std::int64_t>;

Sharding sharding(const Dims& dims) {
  Sharding result;
  for (const auto& axes : dims) result.dims.emplace_back(axes.begin(), axes.end());
  return result;
}

std::vector<StepTuple> step_tuples(const std::vector<Step>& steps) {
  std::vector<StepTuple> tuples;
  for (const Step& s : steps) {
    tuples.emplace_back(static_cast<int>(s.kind), s.axes, s.participants, s.held_bytes);
  }
  return tuples;
}

CollectiveKind collective_kind(int kind) {
  if (kind < 0 || kind > static_cast<int>(CollectiveKind::permute)) {
    throw nb::value_error("a collective kind is 0 to 4");
  }
  return static_cast<CollectiveKind>(kind);
}

/// The tensors of a rule, and their types behind those in `types`.
std::vector<RuleTensor> rule_tensors(const std::vector<TensorTuple>& tensors,
                                     const std::vector<std::int64_t>& factor_sizes,
                                     std::vector<TensorType>& types) {
  std::vector<RuleTensor> result;
  for (const auto& [dims, bits] : tensors) {
    if (dims.empty()) {
      result.push_back({no_type, {}});
      continue;
    }
    TensorType type{{}, bits};
    for (const auto& factors : dims) {
      std::int64_t size = 1;
      for (std::int32_t f : factors) size *= factor_sizes.at(f);
      type.dims.push_back(size);
    }
    result.push_back({static_cast<std::int32_t>(types.size()), dims});
    types.push_back(std::move(type));
  }
  return result;
}

}  // namespace

void bind_cost(nb::module_& module) {
  module.def(
      "redistribution",
      [](const std::vector<std::int64_t>& shape, std::int64_t element_bits, const Dims& from,
         const Dims& to, AxisMask partial, const std::vector<std::int64_t>& axis_sizes,
         bool may_scatter) {
        const Redistribution r =
            redistribution({shape, element_bits}, sharding(from), sharding(to), partial,
                           Mesh{axis_sizes}, may_scatter);
        return std::make_pair(r.bytes, r.collectives);
      },
      nb::arg("shape"), nb::arg("element_bits"), nb::arg("from_dims"), nb::arg("to_dims"),
      nb::arg("partial_axes"), nb::arg("axis_sizes"), nb::arg("may_scatter") = true,
      "(bytes a device sends, collectives) to go from one sharding to another.");

  module.def(
      "redistribution_steps",
      [](const std::vector<std::int64_t>& shape, std::int64_t element_bits, const Dims& from,
         const Dims& to, AxisMask partial, const std::vector<std::int64_t>& axis_sizes,
         bool may_scatter, bool all_to_all) {
        return step_tuples(redistribution_steps({shape, element_bits}, sharding(from),
                                                sharding(to), partial,
                                                Mesh{axis_sizes, all_to_all}, may_scatter));
      },
      nb::arg("shape"), nb::arg("element_bits"), nb::arg("from_dims"), nb::arg("to_dims"),
      nb::arg("partial_axes"), nb::arg("axis_sizes"), nb::arg("may_scatter") = true,
      nb::arg("all_to_all") = true,
      "Its collectives in order: (kind, axes as bits, participants, bytes held before), kinds "
      "as in passes/cost/collectives.h.");

  module.def(
      "redistribution_steps_in_order",
      [](const std::vector<std::int64_t>& shape, std::int64_t element_bits, const Dims& from,
         const Dims& to, const std::vector<std::int64_t>& axis_sizes, bool all_to_all) {
        return step_tuples(steps_in_order(shape, sharding(from), sharding(to),
                                          Mesh{axis_sizes, all_to_all},
                                          TensorType{shape, element_bits}.bytes()));
      },
      nb::arg("shape"), nb::arg("element_bits"), nb::arg("from_dims"), nb::arg("to_dims"),
      nb::arg("axis_sizes"), nb::arg("all_to_all") = true,
      "The same by rules instead of a search, for tests.");

  module.def(
      "redistribution_seconds",
      [](const std::vector<std::int64_t>& shape, std::int64_t element_bits, const Dims& from,
         const Dims& to, AxisMask partial, const Cluster& cluster,
         const std::vector<std::int64_t>& axis_sizes, bool may_scatter) {
        const Mesh mesh{axis_sizes};
        check(cluster, mesh);
        return redistribution_seconds({shape, element_bits}, sharding(from), sharding(to),
                                      partial, mesh, cluster, may_scatter);
      },
      nb::arg("shape"), nb::arg("element_bits"), nb::arg("from_dims"), nb::arg("to_dims"),
      nb::arg("partial_axes"), nb::arg("cluster"), nb::arg("axis_sizes"),
      nb::arg("may_scatter") = true, "Seconds of those collectives, one after the other.");

  module.def(
      "collective_seconds",
      [](int kind, AxisMask axes, std::int64_t participants, double held_bytes,
         const Cluster& cluster, const std::vector<std::int64_t>& axis_sizes) {
        const Mesh mesh{axis_sizes};
        check(cluster, mesh);
        return seconds({collective_kind(kind), axes, participants, held_bytes}, cluster, mesh);
      },
      nb::arg("kind"), nb::arg("axes"), nb::arg("participants"), nb::arg("held_bytes"),
      nb::arg("cluster"), nb::arg("axis_sizes"),
      "Seconds of one collective: 0 all-gather, 1 reduce-scatter, 2 all-reduce, 3 all-to-all, "
      "4 permute; `axes` has one bit a mesh axis.");

  module.def(
      "collective_as_compiled",
      [](int kind, AxisMask axes, std::int64_t participants, double held_bytes,
         const Cluster& cluster, const std::vector<std::int64_t>& axis_sizes) {
        const Mesh mesh{axis_sizes};
        check(cluster, mesh);
        const Step step = as_compiled({collective_kind(kind), axes, participants, held_bytes},
                                      cluster, mesh);
        return std::make_pair(static_cast<int>(step.kind), step.held_bytes);
      },
      nb::arg("kind"), nb::arg("axes"), nb::arg("participants"), nb::arg("held_bytes"),
      nb::arg("cluster"), nb::arg("axis_sizes"),
      "(kind, bytes held before) of the collective that the cluster's compiler writes; kinds "
      "and axes as in `collective_seconds`.");

  module.def(
      "collective_compiled_seconds",
      [](int kind, AxisMask axes, std::int64_t participants, double held_bytes,
         const Cluster& cluster, const std::vector<std::int64_t>& axis_sizes) {
        const Mesh mesh{axis_sizes};
        check(cluster, mesh);
        return compiled_seconds({collective_kind(kind), axes, participants, held_bytes},
                                cluster, mesh);
      },
      nb::arg("kind"), nb::arg("axes"), nb::arg("participants"), nb::arg("held_bytes"),
      nb::arg("cluster"), nb::arg("axis_sizes"),
      "Seconds of what the cluster's compiler writes, with what it does to prepare it.");

  module.def(
      "compute",
      [](int work, int arithmetic, double flops, const std::vector<std::int64_t>& factor_sizes,
         const std::vector<TensorTuple>& operands, const std::vector<TensorTuple>& results,
         const Dims& factor_axes, const std::vector<bool>& reads,
         const std::vector<bool>& writes, const std::vector<double>& operand_bytes,
         const std::vector<double>& result_bytes, const Cluster& cluster,
         const std::vector<std::int64_t>& axis_sizes) {
        const Mesh mesh{axis_sizes};
        check(cluster, mesh);
        if (reads.size() != operands.size() || writes.size() != results.size() ||
            factor_axes.size() != factor_sizes.size()) {
          throw nb::value_error("one flag a tensor, one axis list a factor");
        }
        if (work < 0 || work > static_cast<int>(Work::kernel) || arithmetic < 0 ||
            arithmetic >= num_arithmetics) {
          throw nb::value_error("no such work or arithmetic");
        }
        std::vector<TensorType> types;
        Rule rule;
        for (std::int64_t size : factor_sizes) {
          rule.factors.push_back({size, FactorKind::pass_through});
        }
        rule.operands = rule_tensors(operands, factor_sizes, types);
        rule.results = rule_tensors(results, factor_sizes, types);
        rule.work = static_cast<Work>(work);
        rule.arithmetic = static_cast<Arithmetic>(arithmetic);
        rule.flops = flops;
        rule.operand_bytes = operand_bytes;
        rule.result_bytes = result_bytes;
        const Compute c =
            compute(rule, sharding(factor_axes).dims, reads, writes, types, mesh, cluster);
        return std::make_tuple(c.flops, c.bytes, c.seconds);
      },
      nb::arg("work"), nb::arg("arithmetic"), nb::arg("flops"), nb::arg("factor_sizes"),
      nb::arg("operands"), nb::arg("results"), nb::arg("factor_axes"), nb::arg("reads"),
      nb::arg("writes"), nb::arg("operand_bytes"), nb::arg("result_bytes"), nb::arg("cluster"),
      nb::arg("axis_sizes"),
      "(flops, bytes, seconds) of one device for an op; tensors are (factors of each dim, "
      "element bits), kinds as in passes/model/program.h.");
}

}  // namespace autoshard
