#include "cost/collectives.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace autoshard {
namespace {

constexpr int max_dims = 16;

/// What a step uses of one physical dim.
struct Reach {
  const PhysicalDim* dim;
  /// Devices along it that take part.
  double n;
  /// Groups that share each link: devices between two neighbours of a group belong to others.
  double sharing;

  bool is_torus() const { return dim->kind == LinkKind::ring || dim->kind == LinkKind::line; }
  /// The group goes all the way round.
  bool wraps() const {
    return dim->kind == LinkKind::ring && n * sharing == static_cast<double>(dim->size);
  }
  /// Bytes/s that a device receives over both its links, or over the one it has at the end of
  /// a line.
  double rate() const { return (wraps() ? 2 : 1) * dim->bandwidth / sharing; }
  /// Seconds until what the farthest device sent has arrived.
  double latency() const {
    return dim->latency * (wraps() ? n * sharing / 2 : (n - 1) * sharing);
  }
};

/// The physical dims of a step, fastest first.
struct Reaches {
  std::array<Reach, max_dims> list;
  int count = 0;

  double size(int first, int last) const {
    double n = 1;
    for (int i = first; i < last; ++i) n *= list[i].n;
    return n;
  }
  /// Neighbouring dims of a torus work together, as one tier; so do switches and networks that
  /// are not parted by a torus. Returns the end of the tier that begins at `first`.
  int end_of_tier(int first) const {
    int last = first + 1;
    while (last < count && list[last].is_torus() == list[first].is_torus()) ++last;
    return last;
  }
};

[[noreturn]] void fail(const std::string& what) {
  throw std::logic_error("collective: " + what);
}

/// Fewer `participants` than devices along the axes: the slow dims keep theirs, since nothing
/// says which part of an axis it is.
Reaches reaches(const Step& step, const Cluster& cluster, const Mesh& mesh) {
  const int num_dims = static_cast<int>(cluster.dims.size());
  if (num_dims > max_dims) fail(std::to_string(num_dims) + " physical dims");
  std::array<std::int64_t, max_dims> n, sharing;
  n.fill(1);
  sharing.fill(1);
  // The parts of a dim come in the order of the axes, from major to minor.
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    const bool takes_part = (step.axes >> axis) & 1u;
    for (const AxisPart& part : cluster.axes[axis]) {
      if (takes_part) {
        n[part.dim] *= part.size;
      } else if (n[part.dim] > 1) {
        sharing[part.dim] *= part.size;
      }
    }
  }
  std::int64_t left = step.participants;
  for (int d = 0; d < num_dims; ++d) {
    n[d] = std::gcd(n[d], left);
    left /= n[d];
  }
  if (left != 1) {
    fail(std::to_string(step.participants) + " devices cannot be a part of " +
         std::to_string(devices_along(step.axes, mesh)));
  }
  Reaches result;
  for (int d = num_dims - 1; d >= 0; --d) {
    if (n[d] == 1) continue;
    result.list[result.count++] = {&cluster.dims[d], static_cast<double>(n[d]),
                                   static_cast<double>(sharing[d])};
  }
  return result;
}

double ceil_log2(double n) {
  double rounds = 0;
  for (double reached = 1; reached < n; reached *= 2) ++rounds;
  return rounds;
}

/// `bytes` that every device receives (n-1)/n of, over all links of the torus dims
/// [first, last) at once.
double all_links_seconds(const Reaches& over, int first, int last, double bytes) {
  const double n = over.size(first, last);
  double rate = 0, latency = 0;
  for (int i = first; i < last; ++i) {
    rate += over.list[i].rate();
    latency += over.list[i].latency();
  }
  return std::max(latency, bytes * (n - 1) / n / rate);
}

/// The same in both directions of one ring through all devices of several torus dims, which
/// takes two links of each and is as fast as the slowest.
double one_ring_seconds(const Reaches& over, int first, int last, double bytes) {
  const double n = over.size(first, last);
  double rate = 0, hop = 0;
  for (int i = first; i < last; ++i) {
    const Reach& r = over.list[i];
    const double here = 2 * r.dim->bandwidth / r.sharing;
    rate = i == first ? here : std::min(rate, here);
    hop = std::max(hop, r.dim->latency * r.sharing);
  }
  return std::max(hop * n / 2, bytes * (n - 1) / n / rate);
}

/// A reduce-scatter or all-gather, and an all-reduce.
struct Both {
  double gather = 0, all_reduce = 0;
};

/// The torus dims [first, last), as compiled for TPUs, the only ones that are built so. Only
/// squares and cubes of 2 gather and scatter over all links, and only groups of whole dims
/// reduce so.
Both torus_seconds(const Reaches& over, int first, int last, double bytes) {
  const double all_links = all_links_seconds(over, first, last, bytes);
  if (last - first == 1) return {all_links, 2 * all_links};
  const double one_ring = one_ring_seconds(over, first, last, bytes);
  bool are_pairs = true, are_whole = true;
  for (int i = first; i < last; ++i) {
    are_pairs = are_pairs && over.list[i].dim->size == 2;
    are_whole = are_whole && over.list[i].n == static_cast<double>(over.list[i].dim->size);
  }
  const double gather = are_pairs ? all_links : one_ring;
  return {gather, 2 * (are_whole ? std::min(all_links, gather) : gather)};
}

/// The dims [first, last), all switched or networks. In turn, each on what the faster dims
/// left; as one ring through all devices, which enters and leaves every node once; or, to
/// reduce, by a tree of nodes and of devices within them.
Both switched_seconds(const Reaches& over, int first, int last, double bytes) {
  double in_turn = 0, ring_latency = 0, tree_latency = 0, rate = 0, n = 1;
  for (int i = first; i < last; ++i) {
    const Reach& r = over.list[i];
    const double bandwidth = r.dim->bandwidth, alpha = r.dim->latency;
    in_turn += (r.n - 1) * alpha + bytes / n * (r.n - 1) / r.n / bandwidth;
    rate = i == first ? bandwidth : std::min(rate, n * bandwidth);
    ring_latency = (r.n - 1) * alpha + r.n * ring_latency;
    tree_latency += 2 * ceil_log2(r.n) * alpha;
    n *= r.n;
  }
  const double one_ring = ring_latency + bytes * (n - 1) / n / rate;
  const double gather = std::min(in_turn, one_ring);
  return {gather, std::min(2 * gather, tree_latency + 2 * bytes / rate)};
}

/// Seconds for `bytes` before a reduce-scatter or behind an all-gather. Tier by tier: slow
/// links see the shard that the fast ones leave.
Both tiered_seconds(const Reaches& over, double bytes) {
  Both total;
  for (int first = 0, last; first < over.count; first = last) {
    last = over.end_of_tier(first);
    Both tier;
    if (over.list[first].is_torus()) {
      tier = torus_seconds(over, first, last, bytes);
    } else {
      tier = switched_seconds(over, first, last, bytes);
    }
    total.gather += tier.gather;
    total.all_reduce += tier.all_reduce;
    bytes /= over.size(first, last);
  }
  return total;
}

/// Every pair of devices exchanges its share of the `bytes` of each device, over the slowest
/// dim in which it differs; all tiers work at once.
double all_to_all_seconds(const Reaches& over, double bytes) {
  double slowest = 0;
  for (int first = 0, last; first < over.count; first = last) {
    last = over.end_of_tier(first);
    const double here = bytes / over.size(last, over.count);
    double latency = 0, transfer = 0;
    for (int i = first; i < last; ++i) {
      const Reach& r = over.list[i];
      if (r.is_torus()) {
        latency += r.latency();
        // Half of the devices send half of what they hold across the middle.
        const double half = std::floor(r.n / 2);
        transfer = std::max(transfer, here * half * (r.n - half) / r.n / r.rate());
      } else {
        const double sent = here / over.size(i + 1, last) * (r.n - 1) / r.n;
        slowest = std::max(slowest, (r.n - 1) * r.dim->latency + sent / r.dim->bandwidth);
      }
    }
    slowest = std::max({slowest, latency, transfer});
  }
  return slowest;
}

/// Each device sends all it holds to a neighbour.
double permute_seconds(const Reaches& over, double bytes) {
  double slowest = 0;
  for (int i = 0; i < over.count; ++i) {
    const Reach& r = over.list[i];
    const double hops = r.is_torus() ? r.sharing : 1;
    slowest = std::max(slowest, hops * (r.dim->latency + bytes / r.dim->bandwidth));
  }
  return slowest;
}

/// From `fewest` devices on, as a compiler answers; 0: from no number on.
bool reaches_number(std::int64_t devices, std::int64_t fewest) {
  return fewest > 0 && devices >= fewest;
}

/// All devices of a slice of a torus take part; also several slices.
bool is_whole_slice(const Reaches& over, const Cluster& cluster) {
  double slice = 1, reached = 1;
  for (const PhysicalDim& dim : cluster.dims) {
    if (dim.kind != LinkKind::network) slice *= static_cast<double>(dim.size);
  }
  for (int i = 0; i < over.count; ++i) {
    if (over.list[i].dim->kind != LinkKind::network) reached *= over.list[i].n;
  }
  return has_torus(cluster) && reached == slice;
}

Step as_all_reduce(const Step& step) {
  const double held = step.kind == CollectiveKind::all_gather
                          ? step.held_bytes * static_cast<double>(step.participants)
                          : step.held_bytes;
  return {CollectiveKind::all_reduce, step.axes, step.participants, held};
}

}  // namespace

double Step::sent_bytes() const {
  const auto n = static_cast<double>(participants);
  switch (kind) {
    case CollectiveKind::all_gather:
      return (n - 1) * held_bytes;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return (n - 1) / n * held_bytes;
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) / n * held_bytes;
    case CollectiveKind::permute:
      return held_bytes;
  }
  fail("unknown kind");
}

double seconds(const Step& step, const Cluster& cluster, const Mesh& mesh) {
  if (step.participants <= 1 || step.held_bytes <= 0) return 0;
  const Reaches over = reaches(step, cluster, mesh);
  switch (step.kind) {
    case CollectiveKind::all_gather:
      return tiered_seconds(over, step.held_bytes * static_cast<double>(step.participants))
          .gather;
    case CollectiveKind::reduce_scatter:
      return tiered_seconds(over, step.held_bytes).gather;
    case CollectiveKind::all_reduce:
      return tiered_seconds(over, step.held_bytes).all_reduce;
    case CollectiveKind::all_to_all:
      return all_to_all_seconds(over, step.held_bytes);
    case CollectiveKind::permute:
      return permute_seconds(over, step.held_bytes);
  }
  fail("unknown kind");
}

Step as_compiled(const Step& step, const Cluster& cluster, const Mesh& mesh) {
  const bool gathers = step.kind == CollectiveKind::all_gather;
  if (!gathers && step.kind != CollectiveKind::reduce_scatter) return step;
  const Collectives& rules = cluster.compiler.collectives;
  if (!reaches_number(step.participants, rules.whole_slice_devices)) return step;
  const Reaches over = reaches(step, cluster, mesh);
  const double slices =
      over.count > 0 && over.list[over.count - 1].dim->kind == LinkKind::network
          ? over.list[over.count - 1].n
          : 1;
  if (!is_whole_slice(over, cluster) || static_cast<double>(step.participants) / slices <
                                            static_cast<double>(rules.whole_slice_devices)) {
    return step;
  }
  if (!gathers) return as_all_reduce(step);
  const double whole = step.held_bytes * static_cast<double>(step.participants);
  const auto torus_dims =
      std::count_if(cluster.dims.begin(), cluster.dims.end(), [](const PhysicalDim& dim) {
        return dim.kind == LinkKind::ring || dim.kind == LinkKind::line;
      });
  return torus_dims < 3 && whole > rules.whole_plane_bytes ? step : as_all_reduce(step);
}

double compiled_seconds(const Step& step, const Cluster& cluster, const Mesh& mesh) {
  const Step made = as_compiled(step, cluster, mesh);
  const bool fills =
      step.kind == CollectiveKind::all_gather && made.kind == CollectiveKind::all_reduce;
  const Chip& chip = cluster.chip;
  const Collectives& rules = cluster.compiler.collectives;
  const double zeros =
      fills ? made.held_bytes / (rules.zero_fill_share * chip.memory_bandwidth) : 0;
  double moved = rules.parts_in_turn ? step.transposed_bytes : 0;
  if (rules.exchanges_outermost) {
    const double packed = cluster.compiler.fusion.packed_bytes * step.narrow_elements;
    moved += step.inner_dims * (2 * step.held_bytes + packed);
  }
  const double transposed =
      moved > 0 ? moved / (chip.memory_bandwidth * chip.memory_efficiency) : 0;
  const bool is_joined = step.kind == CollectiveKind::all_reduce &&
                         step.held_bytes <= rules.joined_bytes &&
                         step.held_bytes > rules.alone_bytes;
  const double taken_out = is_joined ? chip.launch_seconds : 0;
  return seconds(made, cluster, mesh) + zeros + transposed + taken_out;
}

double shared_latency(const Step& step, std::int32_t together, const Cluster& cluster,
                      const Mesh& mesh) {
  const Collectives& rules = cluster.compiler.collectives;
  const bool is_reduced =
      step.kind == CollectiveKind::reduce_scatter || step.kind == CollectiveKind::all_reduce;
  const bool is_joined = is_reduced || step.kind == CollectiveKind::all_gather;
  const bool in_tuples =
      scattered_alone(step, cluster, mesh).kind == CollectiveKind::all_reduce;
  const bool is_alone =
      step.kind == CollectiveKind::all_reduce && step.held_bytes <= rules.alone_bytes;
  const double most =
      std::max(is_alone ? 0 : rules.joined_bytes, in_tuples ? rules.tuple_bytes : 0);
  if (most == 0 || together <= 1 || !is_joined || step.held_bytes <= 0) return 0;
  const double whole =
      step.held_bytes *
      (step.kind == CollectiveKind::all_gather ? static_cast<double>(step.participants) : 1);
  const double part = std::max(whole / most, 1.0 / together);
  if (part >= 1) return 0;
  const Step made = as_compiled(step, cluster, mesh);
  Step empty = made, long_one = made;
  empty.held_bytes = std::numeric_limits<double>::min();
  // So long that latency does not count.
  constexpr double times = 1e9;
  long_one.held_bytes *= times;
  const double waited =
      seconds(made, cluster, mesh) - seconds(long_one, cluster, mesh) / times;
  return std::clamp(waited, 0.0, (1 - part) * seconds(empty, cluster, mesh));
}

Step scattered_alone(const Step& step, const Cluster& cluster, const Mesh& mesh) {
  const std::int64_t fewest = cluster.compiler.collectives.reduced_slice_devices;
  if (step.kind != CollectiveKind::reduce_scatter ||
      !reaches_number(step.participants, fewest)) {
    return step;
  }
  return is_whole_slice(reaches(step, cluster, mesh), cluster) ? as_all_reduce(step) : step;
}

bool is_ring_of_matmuls(const Step& step, const Cluster& cluster, const Mesh& mesh,
                        const Compute& matmul) {
  const Collectives& rules = cluster.compiler.collectives;
  if (step.kind != CollectiveKind::reduce_scatter ||
      !reaches_number(step.participants, rules.ring_devices) ||
      reaches_number(step.participants, rules.whole_slice_devices)) {
    return false;
  }
  const Reaches over = reaches(step, cluster, mesh);
  double slowest = 0, widest = 0;
  for (int i = 0; i < over.count; ++i) {
    const Reach& r = over.list[i];
    if (!r.is_torus()) return false;
    slowest = std::max(slowest, step.held_bytes / (2 * r.dim->bandwidth));
    widest = std::max(widest, r.n);
  }
  // Squares of 2 x 2 scatter in one step, unless they are all there is.
  std::int64_t devices = 1;
  for (const PhysicalDim& dim : cluster.dims) devices *= dim.size;
  const bool is_square = widest <= 2 && step.participants < devices;
  if (is_square) return false;
  const Chip& chip = cluster.chip;
  if (is_whole_slice(over, cluster)) {
    return matmul.multiplying_seconds * chip.matmul_efficiency *
               static_cast<double>(step.participants) >=
           rules.ring_slice_share * slowest;
  }
  return matmul.seconds * chip.matmul_efficiency >= rules.ring_matmul_share * slowest;
}

Step as_ring_of_matmuls(const Step& step) {
  const auto n = static_cast<double>(step.participants);
  Step sent = step;
  sent.held_bytes *= (n + 1) / (n - 1);
  return sent;
}

}  // namespace autoshard
