#include "memory/peak.h"

#include <algorithm>
#include <cstddef>

namespace autoshard {

std::vector<double> shards_of(const std::vector<Sharding>& shardings, const Mesh& mesh) {
  std::vector<double> shards;
  shards.reserve(shardings.size());
  for (const Sharding& sharding : shardings) {
    shards.push_back(static_cast<double>(num_shards(sharding, mesh)));
  }
  return shards;
}

std::vector<double> taken_bytes(const std::vector<Buffer>& buffers,
                                const std::vector<double>& num_shards) {
  const auto bytes_of = [&](const Buffer& b) { return b.bytes / num_shards[b.value]; };
  std::vector<double> taken(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::int32_t reused = buffers[i].reused;
    const double there = reused < 0 ? 0 : bytes_of(buffers[reused]);
    taken[i] = std::max(0.0, bytes_of(buffers[i]) - there);
  }
  return taken;
}

Peak peak(const std::vector<Buffer>& buffers, std::int32_t num_points,
          const std::vector<double>& num_shards, const std::vector<Transient>& transients) {
  const auto points = static_cast<std::size_t>(num_points);
  const std::vector<double> taken = taken_bytes(buffers, num_shards);
  std::vector<double> change(points + 1, 0.0);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    change[buffers[i].live.first] += taken[i];
    change[buffers[i].live.last] -= taken[i];
  }
  for (const Transient& t : transients) {
    change[t.live.first] += t.bytes;
    change[t.live.last] -= t.bytes;
  }
  Peak peak;
  double now = 0;
  for (std::size_t p = 0; p < points; ++p) {
    now += change[p];
    if (now <= peak.bytes) continue;
    peak.bytes = now;
    peak.point = static_cast<std::int32_t>(p);
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const LiveRange& live = buffers[i].live;
    const bool has_own = buffers[i].reused < 0 || taken[i] > 0;
    if (has_own && live.first <= peak.point && peak.point < live.last) {
      peak.live.emplace_back(buffers[i].value, taken[i]);
    }
  }
  std::stable_sort(peak.live.begin(), peak.live.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return peak;
}

}  // namespace autoshard
