/// What it costs to turn one sharding of a tensor into another.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/collectives.h"
#include "model/program.h"
#include "model/sharding.h"

namespace autoshard {

/// What every device sends, and in how many collectives.
struct Reshard {
  double bytes = 0;
  int collectives = 0;
};

/// Partial sums are reduced first: straight into `to` where `to` only cuts further than
/// `from`, else in place. The rest goes by `cheapest_path` (cost/reshard_path.h). n is the
/// number of devices of a step, s the bytes a device holds before it:
///
///   slice            0                  axes that only `to` has
///   reduce-scatter   (n-1)/n * s        partial axes that cut a dim of `to`
///   all-reduce       2 * (n-1)/n * s    the other partial axes
///   all-to-all       (n-1)/n * s        axes that change dims
///   permute          s                  axes that change their order within a dim
///   all-gather       (n-1) * s          axes that only `from` has
///
/// Ring volumes per device as in Thakur
/// et al. 2005, "Optimization of Collective Communication Operations in MPICH".
///
/// Example: 64x128 float32 on a mesh (2, 4). From rows on axis 0 to replicated: 32 KiB in
/// all, 16 KiB held, 16 KiB sent, one all-gather. A partial sum over axis 1 to replicated,
/// nothing cut: 2 * 3/4 * 32 KiB = 48 KiB, one all-reduce.
Reshard reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                AxisMask partial, const Mesh& mesh);

/// The collectives of that reshard, in their order; their `sent_bytes` sum up to its
/// bytes.
///
/// Example: as above, rows on axis 0 of (2, 4) to replicated: all_gather, axes {0}, 2
/// participants, 16 KiB held.
std::vector<Step> reshard_steps(const TensorType& type, const Sharding& from,
                                const Sharding& to, AxisMask partial, const Mesh& mesh);

/// Seconds of those collectives, one after the other.
double reshard_seconds(const TensorType& type, const Sharding& from, const Sharding& to,
                       AxisMask partial, const Mesh& mesh, const Cluster& cluster);

/// Bytes that stand for the latency of one collective, so that of two plans that move the
/// same bytes the one with fewer collectives is cheaper.
inline constexpr double bytes_per_collective = 1024;

/// `bytes + bytes_per_collective * collectives`: what sharding propagation minimises.
inline double cost(const Reshard& r) { return r.bytes + bytes_per_collective * r.collectives; }

}  // namespace autoshard
