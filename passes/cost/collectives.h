/// Seconds of a collective over a set of mesh axes.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/compute.h"
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

/// One collective of a reshard.
struct Step {
  CollectiveKind kind;
  /// The axes whose devices take part; of an axis that only takes part with some of its
  /// primes, `participants` is smaller than the product of the axis sizes.
  AxisMask axes;
  std::int64_t participants;
  /// Bytes that a device holds before the step.
  double held_bytes;
  /// Bytes read and written to lay out a tensor so that the dim that is gathered, scattered or
  /// exchanged comes first; 0 where it does.
  double transposed_bytes = 0;
  /// How many of the two dims of an all-to-all, the one that it cuts and the one that it makes
  /// whole, lie behind others.
  int inner_dims = 0;
  /// Elements narrower than 32 bits that a device holds.
  double narrow_elements = 0;

  /// Bytes that a device sends, by ring algorithms (cost/reshard.h).
  double sent_bytes() const;
};

/// Seconds of one collective; the formulas are in docs/design/cost_model.md and
/// collectives.cpp.
///
/// Example: all-gather over a ring of 16 v5e chips, 1 MiB held each, 45 GB/s a link, 1 us:
/// max(16/2 us, 15 MiB / (2 * 45 GB/s)) = 175 us.
double seconds(const Step& step, const Cluster& cluster, const Mesh& mesh);

/// What the compiler of the cluster makes of a step. Some write collectives of all devices of
/// a slice of a torus as an all-reduce, from `Collectives::whole_slice_devices` on:
/// reduce-scatters always (and cut the sum), all-gathers on slices of three dims (of shards
/// put into zeros), and on slices of two dims up to `whole_plane_bytes`. Everything else is
/// what it was. docs/design/cost_model.md has what was compiled.
///
/// Example: all-gather over v5p:4x4x4, 1 MiB held each -> all-reduce, 64 MiB held.
Step as_compiled(const Step& step, const Cluster& cluster, const Mesh& mesh);

/// Seconds of `as_compiled`. Where that reduces to gather, the whole is filled with zeros
/// first, at a share of the memory's rate. Where one device's part is put behind another's
/// (`parts_in_turn`), what has to be transposed for that is read and written; so is what a
/// device holds before an all-to-all of an inner dim, or after it (`exchanges_outermost`),
/// with what packing takes (`packed_bytes`); and a kernel takes what was reduced out of the
/// one buffer in which small all-reduces are joined.
///
/// Example: 64 MiB gathered over v5p:4x4x4 (2.77 TB/s) -> 245 us, and 243 us for the zeros.
double compiled_seconds(const Step& step, const Cluster& cluster, const Mesh& mesh);

/// Seconds of latency that a step does not take since `together` steps run as one, itself
/// included: its part is that of its bytes in a joined buffer (`joined_bytes`), at least an
/// equal one. All-reduces, and what is all-reduced to be scattered, have `tuple_bytes` as
/// well. What transfers hide is not saved. 0 of kinds that are not joined.
///
/// Example: all-reduce of 4 KiB over h100:8, one of 100 -> 0.99 * 25.8 us.
double shared_latency(const Step& step, std::int32_t together, const Cluster& cluster,
                      const Mesh& mesh);

/// Some compilers reduce over a whole slice, and cut the sum, where they do not scatter in a
/// ring of matmuls (`reduced_slice_devices`): that step as an all-reduce, any other as it is.
Step scattered_alone(const Step& step, const Cluster& cluster, const Mesh& mesh);

/// Some compilers scatter the partial sums of a matmul while it multiplies, if that hides the
/// transfer: a loop makes one block a turn and passes it on, in both directions, with one turn
/// more than a ring needs. So from `ring_devices` on, below those of `whole_slice_devices`;
/// the step is still a reduce-scatter, of
/// (n+1)/n of its bytes. `matmul`: the whole one, on one device.
bool is_ring_of_matmuls(const Step& step, const Cluster& cluster, const Mesh& mesh,
                        const Compute& matmul);
/// The reduce-scatter with `held_bytes` so that it sends what the loop does.
Step as_ring_of_matmuls(const Step& step);

}  // namespace autoshard
