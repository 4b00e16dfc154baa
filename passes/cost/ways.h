/// The cheapest way from one sharding to another, over the steps a partitioner can make.
#pragma once

#include <cstdint>
#include <vector>

#include "model/sharding.h"

namespace autoshard {

/// What a device sends on the way, as a part of the whole tensor, and in how many collectives.
struct Way {
  double volume = 0;
  int collectives = 0;
};

/// Dijkstra's search over shardings. One step, on a tensor of which a device holds the part s
/// before it:
///
///   cut a dim along a free axis          0
///   gather the minor axes of a dim       (n-1) * s
///   move them behind another dim's axes  (n-1)/n * s      all-to-all
///   change which device holds which      s                permute; blocks keep their size
///
/// python/autoshard/exporter/steps.py writes the same steps into the program, so that XLA
/// makes one collective of each. Axes are split into their primes if the mesh has at most
/// three, so that parts of an axis move alone; a mesh of more than three axes has no ways
/// here.
///
/// `dims` are the sizes of the tensor's dims: no step splits one unevenly. Results are kept
/// for the life of the thread.
///
/// Example: mesh (2, 4), from [{1}, {}] to [{}, {1}]: one all-to-all, 3/4 * 1/4 = 3/16.
Way cheapest_way(const std::vector<std::int64_t>& dims, const Sharding& from,
                 const Sharding& to, const Mesh& mesh);

/// Whether `cheapest_way` can be asked about this mesh.
bool has_ways(const Mesh& mesh);

}  // namespace autoshard
