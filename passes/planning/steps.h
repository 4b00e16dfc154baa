/// The steps of what a plan sends, as the cost network and the report of a plan charge them.
#pragma once

#include <vector>

#include "cost/collectives.h"
#include "cost/reshard.h"
#include "model/cluster.h"
#include "model/sharding.h"
#include "planning/options.h"

namespace autoshard::planning {

/// What a slice costs that no collective makes, in seconds: part of a kernel's launch, for
/// some slices end a fusion, and most are read by a kernel that runs anyway. 0 for everything
/// else. What a loop begins with is no kernel's: see `stored_slice_seconds`.
double slice_seconds(const std::vector<Step>& steps, const Sharding& from, const Sharding& to,
                     AxisMask partial, const Cluster& cluster);

/// Seconds a byte of a slice that is written: it is read as well.
double stored_slice_seconds(const Cluster& cluster);

/// Seconds to read or write a byte beside ops.
double pass_seconds(const Cluster& cluster);

/// The sum over the steps, in seconds, each as the compiler makes it.
double seconds_of(const std::vector<Step>& steps, const Cluster& cluster, const Mesh& mesh);

/// The exchange with neighbours that a halo needs.
Step halo_step(const Halo& halo, const Mesh& mesh);

/// A partial sum of rank 0, such as a loss: 4 bytes, all of its cost is latency.
inline const TensorType scalar_type{{}, 32};

/// The steps that reduce a partial sum of rank 0 over `partial`.
std::vector<Step> scalar_steps(const Mesh& mesh, AxisMask partial);

}  // namespace autoshard::planning
