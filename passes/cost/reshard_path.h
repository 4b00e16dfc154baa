/// The cheapest path from one sharding to another (a reshard), over the steps that a
/// partitioner can make.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/collectives.h"
#include "model/sharding.h"

namespace autoshard {

/// What a device sends on a path, as a part of the whole tensor, and in how many collectives.
struct PathCost {
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
/// python/autoshard/exporter/steps.py writes the steps of `reshard_path` into the program, so
/// that XLA makes one collective of each.
///
/// On meshes of at most three axes the search has them all, split into their primes if there
/// are no more than three of those. On others it has the axes that move: not those with which
/// a dim begins before and after. If more than four move, the path is that of
/// `steps_in_order`.
///
/// `dims` are the sizes of the tensor's dims: no step splits one unevenly. A mesh without
/// all-to-all has paths of the other steps. Searches are kept by thread, up to a limit
/// (cost/reshard_search.h).
///
/// Example: mesh (2, 4), from [{1}, {}] to [{}, {1}]: one all-to-all, 3/4 * 1/4 = 3/16.
PathCost cheapest_path(const std::vector<std::int64_t>& dims, const Sharding& from,
                       const Sharding& to, const Mesh& mesh);

/// The collectives on the cheapest path, with the held bytes of a tensor of `bytes`. They sum
/// up to `cheapest_path`. Steps of a part of an axis have that axis in their mask. Of gathers
/// in a row, one a dim, the one over the fewest devices is first, then the one of the most
/// major axis. Any order sends the same bytes in all; this one sends the fewest over slow
/// links.
///
/// Example: mesh (4, 2), from [{0}, {1}] to [{}, {}]: a gather over axis 1, of an eighth, then
/// one over axis 0.
std::vector<Step> steps_of_cheapest_path(const std::vector<std::int64_t>& dims,
                                         const Sharding& from, const Sharding& to,
                                         const Mesh& mesh, double bytes);

/// The shardings on the cheapest path, one a step, `to` last; empty if there is nothing to do.
/// The same search, but of paths that cost the same it takes the one that it reached first, so
/// that the path does not depend on anything else. `mesh` has the axes that move, at most
/// `max_moving`, and `dims` at most twice as many dims that they cut; no step splits one
/// unevenly. Throws `std::invalid_argument`.
///
/// Example: mesh (2, 4), from [{1}, {}] to [{0}, {}] of 8x8: a cut, a permute and a gather
/// lead through [{1, 0}, {}] and [{0, 1}, {}].
std::vector<Sharding> reshard_path(const std::vector<std::int64_t>& dims, const Sharding& from,
                                   const Sharding& to, const Mesh& mesh);

/// A path by rules instead of a search, for any number of axes. As long as something is left,
/// the first of these that is possible: cut along the free axis that comes next in its dim;
/// move the minor axes of a dim to where they belong; cut along any free axis that `to` has;
/// move minor axes of a dim with too many blocks to one with too few; permute, so that more
/// axes are where they belong; gather a minor axis, of those that `to` does not have if there
/// are any. And the same with all cuts first; the cheaper of both.
///
/// On a mesh without all-to-all it gathers every axis that moves, then cuts.
///
/// Never cheaper than `cheapest_path`, but for the bytes that it pays for fewer steps.
std::vector<Step> steps_in_order(const std::vector<std::int64_t>& dims, const Sharding& from,
                                 const Sharding& to, const Mesh& mesh, double bytes);

}  // namespace autoshard
