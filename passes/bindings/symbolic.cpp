#include "cost/symbolic.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "planning/symbolic_programming.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

void bind_symbolic(nb::module_& module) {
  using planning::SymbolicCandidate;
  using planning::SymbolicChoice;

  nb::class_<SymbolicCandidate>(module, "SymbolicCandidate",
                                "A cut of a matmul at one level, and what it costs.")
      .def_ro("cut", &SymbolicCandidate::cut)
      .def_ro("factor", &SymbolicCandidate::factor,
              "What is cut; -1 for none, and for what is not possible.")
      .def_ro("op_cost", &SymbolicCandidate::op_cost)
      .def_ro("reshard_cost", &SymbolicCandidate::reshard_cost);

  nb::class_<SymbolicChoice>(module, "SymbolicChoice",
                             "The choice of one matmul at one level; see "
                             "passes/planning/symbolic_programming.h.")
      .def_ro("op", &SymbolicChoice::op)
      .def_prop_ro("axis", [](const SymbolicChoice& c) { return c.level.axis; })
      .def_prop_ro("parts", [](const SymbolicChoice& c) { return c.level.parts; })
      .def_prop_ro("sizes",
                   [](const SymbolicChoice& c) {
                     return std::array<double, 4>{c.sizes.batch, c.sizes.i, c.sizes.k,
                                                  c.sizes.j};
                   })
      .def_ro("has_batch", &SymbolicChoice::has_batch)
      .def_ro("candidates", &SymbolicChoice::candidates)
      .def_ro("chosen", &SymbolicChoice::chosen);

  module.def(
      "symbolic_matmul_costs",
      [](const std::array<double, 4>& sizes, bool has_batch, double mem_coeff,
         std::int64_t parts) {
        return matmul_costs({sizes[0], sizes[1], sizes[2], sizes[3]}, has_batch, mem_coeff,
                            parts);
      },
      "sizes"_a, "has_batch"_a, "mem_coeff"_a, "parts"_a = 2,
      "Elements that each cut costs, in the order batch, expert, i, j, k, none; sizes are "
      "(batch, i, k, j).");

  module.def(
      "symbolic_reshard",
      [](const std::vector<std::int64_t>& shape, const Dims& from, const Dims& to,
         const std::vector<std::int64_t>& axis_sizes) {
        const auto all = static_cast<AxisMask>((1ull << axis_sizes.size()) - 1);
        return symbolic_reshard(shape, sharding_of(from), sharding_of(to), Mesh{axis_sizes},
                                all);
      },
      "shape"_a, "from_dims"_a, "to_dims"_a, "axis_sizes"_a,
      "Elements charged for going from one sharding to another.");
}

}  // namespace autoshard
