/// What it costs to turn one sharding of a tensor into another.
#pragma once

#include <cstdint>

#include "model/program.h"
#include "model/sharding.h"

namespace autoshard {

/// Which axes the tensor's values are still partial sums over, one bit per axis.
using AxisMask = std::uint32_t;

/// What every device sends, and in how many collectives.
struct Redistribution {
  double bytes = 0;
  int collectives = 0;
};

/// Without partial sums the cheapest way of `cheapest_way` (cost/ways.h), on meshes that have
/// one. Partial sums are reduced first: straight into `to` where `to` only cuts further than
/// `from` and `may_scatter` is set, else in place. n is the number of devices of a step, s the
/// bytes a device holds before it:
///
///   slice            0                  axes that only `to` has; first, so that s shrinks
///   reduce-scatter   (n-1)/n * s        partial axes that cut a dim of `to`
///   all-reduce       2 * (n-1)/n * s    the other partial axes
///   all-to-all       (n-1)/n * s        axes that change dims, each pair of dims at once
///   permute          s                  axes that change their order within a dim
///   all-gather       (n-1) * s          axes that only `from` has; last, while s is small
///
/// In this order, and so at most, on meshes without ways. Ring volumes per device as in Thakur
/// et al. 2005, "Optimization of Collective Communication Operations in MPICH".
///
/// Example: 64x128 float32 on a mesh (2, 4). From rows on axis 0 to replicated: 32 KiB in
/// all, 16 KiB held, 16 KiB sent, one all-gather. A partial sum over axis 1 to replicated,
/// nothing cut: 2 * 3/4 * 32 KiB = 48 KiB, one all-reduce.
Redistribution redistribution(const TensorType& type, const Sharding& from, const Sharding& to,
                              AxisMask partial, const Mesh& mesh, bool may_scatter = true);

/// Bytes that stand for the latency of one collective, so that of two plans that move the
/// same bytes the one with fewer collectives is cheaper.
inline constexpr double bytes_per_collective = 1024;

/// `bytes + bytes_per_collective * collectives`: what sharding propagation minimises.
inline double cost(const Redistribution& r) {
  return r.bytes + bytes_per_collective * r.collectives;
}

}  // namespace autoshard
