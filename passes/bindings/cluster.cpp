#include "model/cluster.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

void bind_cluster(nb::module_& module) {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const InvalidCluster& invalid) {
      PyErr_SetString(PyExc_ValueError, invalid.what());
    } catch (const InvalidCompiler& invalid) {
      PyErr_SetString(PyExc_ValueError, invalid.what());
    }
  });

  module.def(
      "compiler_answers", [] { return answers_of(Compiler{}); },
      "Every answer that analyses ask a compiler for, by name, as of one that is not known; "
      "see passes/compilers/compiler.h.");

  nb::class_<PhysicalDim>(module, "PhysicalDim",
                          "One physical direction of a machine; see passes/model/cluster.h.")
      .def(nb::init<std::int64_t, LinkKind, double, double>(), "size"_a, "kind"_a,
           "bandwidth"_a, "latency"_a)
      .def_ro("size", &PhysicalDim::size)
      .def_ro("kind", &PhysicalDim::kind)
      .def_ro("bandwidth", &PhysicalDim::bandwidth)
      .def_ro("latency", &PhysicalDim::latency);

  nb::class_<AxisPart>(module, "AxisPart",
                       "The part of a physical dim that a mesh axis covers.")
      .def(nb::init<std::int32_t, std::int64_t>(), "dim"_a, "size"_a)
      .def_ro("dim", &AxisPart::dim)
      .def_ro("size", &AxisPart::size);

  nb::class_<Cluster>(module, "Cluster",
                      "Rates of a device and links of every mesh axis; see "
                      "passes/model/cluster.h. Raises ValueError.")
      .def(
          "__init__",
          [](Cluster* self, const std::array<double, num_arithmetics>& matmul_flops,
             double vector_flops, double exponentials, double memory_bytes,
             double memory_bandwidth, std::int64_t tile_rows, std::int64_t tile_columns,
             double matmul_efficiency, double memory_efficiency,
             double attention_gradient_efficiency, double launch_seconds,
             std::vector<PhysicalDim> dims, std::vector<std::vector<AxisPart>> axes,
             double overlap_slowdown, double overlap,
             const std::map<std::string, double>& compiler,
             const std::pair<double, double>& corrections) {
            const Chip chip{matmul_flops,      vector_flops,
                            exponentials,      memory_bytes,
                            memory_bandwidth,  tile_rows,
                            tile_columns,      matmul_efficiency,
                            memory_efficiency, attention_gradient_efficiency,
                            launch_seconds,    overlap_slowdown};
            Cluster made{
                chip,    std::move(dims),       std::move(axes),
                overlap, compiler_of(compiler), {corrections.first, corrections.second}};
            check(made, covered_mesh(made));
            new (self) Cluster(std::move(made));
          },
          nb::kw_only(), "matmul_flops"_a, "vector_flops"_a, "exponentials"_a = 1e12,
          "memory_bytes"_a, "memory_bandwidth"_a, "tile_rows"_a, "tile_columns"_a,
          "matmul_efficiency"_a, "memory_efficiency"_a,
          "attention_gradient_efficiency"_a = 1.0, "launch_seconds"_a, "dims"_a, "axes"_a,
          "overlap_slowdown"_a = 1.0, "overlap"_a = 0.0,
          "compiler"_a = std::map<std::string, double>{},
          "corrections"_a = std::pair{1.0, 1.0},
          "Rates of the matrix units are in the order of `Arithmetic`; corrections are of "
          "products and of other ops.")
      .def_ro("dims", &Cluster::dims)
      .def_ro("axes", &Cluster::axes)
      .def_ro("overlap", &Cluster::overlap)
      .def_prop_ro("memory_bytes",
                   [](const Cluster& cluster) { return cluster.chip.memory_bytes; });
}

}  // namespace autoshard
