/// Seconds of a collective over a set of mesh axes.
#pragma once

#include <cstdint>
#include <vector>

#include "model/cluster.h"
#include "model/mesh.h"
#include "model/sharding.h"

namespace autoshard {

enum class CollectiveKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  permute,
};

/// One collective of a redistribution.
struct Step {
  CollectiveKind kind;
  /// The axes whose devices take part; of an axis that only takes part with some of its
  /// primes, `participants` is smaller than the product of the axis sizes.
  AxisMask axes;
  std::int64_t participants;
  /// Bytes that a device holds before the step.
  double held_bytes;

  /// Bytes that a device sends, by ring algorithms (cost/redistribution.h).
  double sent_bytes() const;
};

/// Seconds of one collective; the formulas are in docs/cost_model.md and collectives.cpp.
///
/// Example: all-gather over a ring of 16 v5e chips, 1 MiB held each, 45 GB/s a link, 1 us:
/// max(16/2 us, 15 MiB / (2 * 45 GB/s)) = 175 us.
double seconds(const Step& step, const Cluster& cluster, const Mesh& mesh);

}  // namespace autoshard
