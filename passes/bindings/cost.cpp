#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "cost/collectives.h"
#include "cost/compute.h"
#include "cost/reshard.h"
#include "cost/reshard_path.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {
namespace {

using Sizes = std::vector<std::int64_t>;

Mesh checked_mesh(const Sizes& axis_sizes, const Cluster& cluster) {
  Mesh mesh{axis_sizes};
  check(cluster, mesh);
  return mesh;
}

}  // namespace

void bind_cost(nb::module_& module) {
  nb::class_<Reshard>(module, "Reshard", "What every device sends.")
      .def_ro("bytes", &Reshard::bytes)
      .def_ro("collectives", &Reshard::collectives);

  nb::class_<Step>(module, "Step",
                   "One collective of a reshard; see passes/cost/collectives.h.")
      .def(nb::init<CollectiveKind, AxisMask, std::int64_t, double>(), "kind"_a, "axes"_a,
           "participants"_a, "held_bytes"_a)
      .def_ro("kind", &Step::kind)
      .def_ro("axes", &Step::axes, "One bit a mesh axis.")
      .def_ro("participants", &Step::participants)
      .def_ro("held_bytes", &Step::held_bytes, "By a device before the step.")
      .def_prop_ro("sent_bytes", &Step::sent_bytes, "By a device, on a ring.");

  nb::class_<Compute>(module, "Compute", "What one device does for an op, once.")
      .def_ro("flops", &Compute::flops)
      .def_ro("bytes", &Compute::bytes)
      .def_ro("seconds", &Compute::seconds);

  module.def(
      "reshard",
      [](const Sizes& shape, std::int64_t element_bits, const Dims& from, const Dims& to,
         AxisMask partial, const Sizes& axis_sizes) {
        return reshard({shape, element_bits}, sharding_of(from), sharding_of(to), partial,
                       Mesh{axis_sizes});
      },
      "shape"_a, "element_bits"_a, "from_dims"_a, "to_dims"_a, "partial_axes"_a,
      "axis_sizes"_a, "What it takes to go from one sharding to another.");

  module.def(
      "reshard_steps",
      [](const Sizes& shape, std::int64_t element_bits, const Dims& from, const Dims& to,
         AxisMask partial, const Sizes& axis_sizes, bool all_to_all) {
        return reshard_steps({shape, element_bits}, sharding_of(from), sharding_of(to),
                             partial, Mesh{axis_sizes, all_to_all});
      },
      "shape"_a, "element_bits"_a, "from_dims"_a, "to_dims"_a, "partial_axes"_a,
      "axis_sizes"_a, "all_to_all"_a = true, "Its collectives in order.");

  module.def(
      "reshard_path",
      [](const Sizes& shape, const Dims& from, const Dims& to, const Sizes& axis_sizes,
         bool all_to_all) {
        std::vector<Dims> path;
        for (const Sharding& step : reshard_path(shape, sharding_of(from), sharding_of(to),
                                                 Mesh{axis_sizes, all_to_all})) {
          Dims& dims = path.emplace_back();
          for (const AxisList& axes : step.dims) dims.emplace_back(axes.begin(), axes.end());
        }
        return path;
      },
      "shape"_a, "from_dims"_a, "to_dims"_a, "axis_sizes"_a, "all_to_all"_a = true,
      "The shardings on the cheapest path, one a step; the axes are those that move.");

  module.def(
      "reshard_steps_in_order",
      [](const Sizes& shape, std::int64_t element_bits, const Dims& from, const Dims& to,
         const Sizes& axis_sizes, bool all_to_all) {
        return steps_in_order(shape, sharding_of(from), sharding_of(to),
                              Mesh{axis_sizes, all_to_all},
                              TensorType{shape, element_bits}.bytes());
      },
      "shape"_a, "element_bits"_a, "from_dims"_a, "to_dims"_a, "axis_sizes"_a,
      "all_to_all"_a = true, "The same by rules instead of a search, for tests.");

  module.def(
      "reshard_seconds",
      [](const Sizes& shape, std::int64_t element_bits, const Dims& from, const Dims& to,
         AxisMask partial, const Cluster& cluster, const Sizes& axis_sizes) {
        const Mesh mesh = checked_mesh(axis_sizes, cluster);
        return reshard_seconds({shape, element_bits}, sharding_of(from), sharding_of(to),
                               partial, mesh, cluster);
      },
      "shape"_a, "element_bits"_a, "from_dims"_a, "to_dims"_a, "partial_axes"_a, "cluster"_a,
      "axis_sizes"_a, "Seconds of those collectives, one after the other.");

  module.def(
      "collective_seconds",
      [](const Step& step, const Cluster& cluster, const Sizes& axis_sizes) {
        return seconds(step, cluster, checked_mesh(axis_sizes, cluster));
      },
      "step"_a, "cluster"_a, "axis_sizes"_a, "Seconds of one collective.");

  module.def(
      "collective_as_compiled",
      [](const Step& step, const Cluster& cluster, const Sizes& axis_sizes) {
        return as_compiled(step, cluster, checked_mesh(axis_sizes, cluster));
      },
      "step"_a, "cluster"_a, "axis_sizes"_a,
      "The collective that the cluster's compiler writes.");

  module.def(
      "collective_compiled_seconds",
      [](const Step& step, const Cluster& cluster, const Sizes& axis_sizes) {
        return compiled_seconds(step, cluster, checked_mesh(axis_sizes, cluster));
      },
      "step"_a, "cluster"_a, "axis_sizes"_a,
      "Seconds of what the cluster's compiler writes, with what it does to prepare it.");

  nb::class_<FusedWork>(module, "FusedWork",
                        "An op in the kernel of a matmul; see passes/model/kernel_part.h.")
      .def(
          "__init__",
          [](FusedWork* self, std::int32_t tensor, double bytes, double packed, double flops) {
            new (self) FusedWork{tensor, bytes, packed, flops};
          },
          "tensor"_a, "bytes"_a, "packed"_a = 0.0, "flops"_a = 0.0)
      .def_ro("tensor", &FusedWork::tensor)
      .def_ro("bytes", &FusedWork::bytes)
      .def_ro("packed", &FusedWork::packed)
      .def_ro("flops", &FusedWork::flops);

  module.def("aligned_share", &aligned_share, "count"_a, "bits"_a, "worst"_a,
             "What accesses to rows of `count` elements reach of those to rows that begin at "
             "multiples of 16 bytes; see passes/cost/compute.h.");
  module.def(
      "compute",
      [](const Rule& rule, const std::vector<TensorType>& types, const Dims& factor_axes,
         const std::vector<std::int32_t>& reads, const std::vector<bool>& writes,
         const Cluster& cluster, const Sizes& axis_sizes, const std::vector<FusedWork>& fused,
         const std::vector<double>& padding) {
        const Mesh mesh = checked_mesh(axis_sizes, cluster);
        if (reads.size() != rule.operands.size() || writes.size() != rule.results.size() ||
            factor_axes.size() != rule.factors.size()) {
          throw nb::value_error("one flag a tensor, one axis list a factor");
        }
        const bool are_tensors =
            std::all_of(fused.begin(), fused.end(), [&](const FusedWork& work) {
              return work.tensor >= 0 &&
                     static_cast<std::size_t>(work.tensor) <= rule.operands.size();
            });
        if (!are_tensors) throw nb::value_error("work for no tensor of the rule");
        if (!padding.empty() && padding.size() != reads.size() + writes.size()) {
          throw nb::value_error("padding: one number a tensor, or none");
        }
        return compute(rule, sharding_of(factor_axes).dims, {reads, writes, fused, padding},
                       types, mesh, cluster);
      },
      "rule"_a, "types"_a, "factor_axes"_a, "reads"_a, "writes"_a, "cluster"_a, "axis_sizes"_a,
      "fused"_a = std::vector<FusedWork>(), "padding"_a = std::vector<double>(),
      "One device's part of an op; see passes/cost/compute.h. The rule's tensors have their "
      "types by number.");
}

}  // namespace autoshard
