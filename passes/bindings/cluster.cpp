#include "model/cluster.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace autoshard {
namespace {

/// (size, kind, bandwidth, latency)
using DimTuple = std::tuple<std::int64_t, int, double, double>;
/// (dim, size) of each part of an axis
using AxisParts = std::vector<std::pair<std::int32_t, std::int64_t>>;

Cluster make_cluster(const Chip& chip, const std::vector<DimTuple>& dims,
                     const std::vector<AxisParts>& axes, double overlap) {
  Cluster cluster{chip, {}, {}, overlap};
  for (const auto& [size, kind, bandwidth, latency] : dims) {
    if (kind < 0 || kind > static_cast<int>(LinkKind::network)) {
      throw InvalidCluster("cluster: unknown link kind " + std::to_string(kind));
    }
    cluster.dims.push_back({size, static_cast<LinkKind>(kind), bandwidth, latency});
  }
  Mesh mesh;
  for (const AxisParts& parts : axes) {
    std::int64_t axis_size = 1;
    cluster.axes.emplace_back();
    for (const auto& [dim, size] : parts) {
      cluster.axes.back().push_back({dim, size});
      axis_size *= size;
    }
    mesh.axis_sizes.push_back(axis_size);
  }
  check(cluster, mesh);
  return cluster;
}

}  // namespace

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

  nb::class_<Cluster>(module, "Cluster",
                      "Rates of a device and links of every mesh axis; see "
                      "passes/model/cluster.h. Raises ValueError.")
      .def(
          "__init__",
          [](Cluster* self, const std::array<double, num_arithmetics>& matmul_flops,
             double vector_flops, double memory_bytes, double memory_bandwidth,
             std::int64_t tile_rows, std::int64_t tile_columns, double matmul_efficiency,
             double memory_efficiency, double launch_seconds,
             const std::vector<DimTuple>& dims, const std::vector<AxisParts>& axes,
             double overlap, const std::map<std::string, double>& compiler) {
            const Chip chip{matmul_flops,      vector_flops,      memory_bytes,
                            memory_bandwidth,  tile_rows,         tile_columns,
                            matmul_efficiency, memory_efficiency, launch_seconds};
            Cluster made = make_cluster(chip, dims, axes, overlap);
            made.compiler = compiler_of(compiler);
            new (self) Cluster(std::move(made));
          },
          nb::kw_only(), nb::arg("matmul_flops"), nb::arg("vector_flops"),
          nb::arg("memory_bytes"), nb::arg("memory_bandwidth"), nb::arg("tile_rows"),
          nb::arg("tile_columns"), nb::arg("matmul_efficiency"), nb::arg("memory_efficiency"),
          nb::arg("launch_seconds"), nb::arg("dims"), nb::arg("axes"),
          nb::arg("overlap") = 0.0, nb::arg("compiler") = std::map<std::string, double>{})
      .def_prop_ro("dims",
                   [](const Cluster& cluster) {
                     std::vector<DimTuple> dims;
                     for (const PhysicalDim& dim : cluster.dims) {
                       dims.emplace_back(dim.size, static_cast<int>(dim.kind), dim.bandwidth,
                                         dim.latency);
                     }
                     return dims;
                   })
      .def_prop_ro("axes",
                   [](const Cluster& cluster) {
                     std::vector<AxisParts> axes;
                     for (const auto& parts : cluster.axes) {
                       axes.emplace_back();
                       for (const AxisPart& part : parts) {
                         axes.back().emplace_back(part.dim, part.size);
                       }
                     }
                     return axes;
                   })
      .def_ro("overlap", &Cluster::overlap)
      .def_prop_ro("memory_bytes",
                   [](const Cluster& cluster) { return cluster.chip.memory_bytes; });
}

}  // namespace autoshard
