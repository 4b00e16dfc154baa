/// The machines a program runs on: one chip's rates, and the links of every mesh axis.
///
/// Python builds a `Cluster` from a name or a file (python/autoshard/cluster/), where every
/// constant has its source; the core only computes with it.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "compilers/compiler.h"
#include "model/mesh.h"
#include "model/program.h"

namespace autoshard {

/// One JAX device: a chip, or the half of one that has two.
struct Chip {
  /// Peak FLOP/s of the matrix units, by arithmetic.
  std::array<double, num_arithmetics> matmul_flops;
  /// FLOP/s of everything else.
  double vector_flops;
  /// Exponentials a second.
  double exponentials;
  /// Bytes that a program may use, and bytes/s.
  double memory_bytes;
  double memory_bandwidth;
  /// Matrix operands are padded to these: rows of the left one; columns of the right one and
  /// the contracted dim.
  std::int64_t tile_rows;
  std::int64_t tile_columns;
  /// Share of the peak that well-shaped matmuls reach, and of the memory bandwidth, 0 to 1.
  double matmul_efficiency;
  double memory_efficiency;
  /// What matmuls in the gradient of attention of a library reach of the rate of well-shaped
  /// ones, 0 to 1.
  double attention_gradient_efficiency;
  /// Seconds to start one op that is not fused: a kernel, or a step of one program.
  double launch_seconds;
  /// Times as long that it computes while a collective runs beside; 1 or more.
  double overlap_slowdown = 1;
};

enum class LinkKind : std::uint8_t {
  ring,      ///< neighbours, with wraparound
  line,      ///< neighbours, no wraparound
  switched,  ///< all devices of a group reach each other at full rate: NVLink, HCCS
  network,   ///< between nodes or slices; every device has its share of the host's cards
};

/// One physical direction of the machine: a torus dim, the devices of a node, the nodes.
struct PhysicalDim {
  std::int64_t size;
  LinkKind kind;
  /// Bytes/s of one link, one way; for `switched` and `network`: of one device, one way.
  double bandwidth;
  /// Seconds of one hop (ring, line) or of one step of a collective (switched, network).
  double latency;
};

/// A part of a physical dim that a mesh axis covers: `size` divides that of the dim.
struct AxisPart {
  std::int32_t dim;
  std::int64_t size;
};

/// What a compiler made of ops of one program over what the model says, in seconds.
struct Corrections {
  /// Seconds of matmuls, convolutions and kernels, and of all else, times as many.
  double products = 1;
  double others = 1;
};

struct Cluster {
  Chip chip;
  /// Slowest first: the last dim is the fastest to reach.
  std::vector<PhysicalDim> dims;
  /// One list a mesh axis; the product of the sizes is that of the axis. Dims come in any
  /// order, the parts of one dim from major to minor.
  /// Example: `data=8,model=4` on a torus of 4x8 may be {{1, 8}}, {{0, 4}}: `model` lies on x.
  std::vector<std::vector<AxisPart>> axes;
  /// Share of communication that is hidden behind compute, 0 to 1.
  double overlap = 0;
  /// What is known of the compiler for the chip.
  Compiler compiler = {};
  Corrections corrections = {};
};

/// Whether any devices are neighbours on a ring or a line. A question about links, not about
/// who compiles for them.
bool has_torus(const Cluster& cluster);

/// The mesh of the axes that the cluster covers: the size of each is that of its parts
/// together.
Mesh covered_mesh(const Cluster& cluster);

/// A cluster that breaks its own rules.
struct InvalidCluster : std::logic_error {
  using std::logic_error::logic_error;
};

/// Checks rates, sizes and that the axes of `mesh` are covered. Throws `InvalidCluster`.
void check(const Cluster& cluster, const Mesh& mesh);

}  // namespace autoshard
