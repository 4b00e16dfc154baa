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

std::vector<double> taken_bytes(const std::vector<Stored>& stored,
                                const std::vector<double>& num_shards) {
  const auto bytes_of = [&](const Stored& s) { return s.bytes / num_shards[s.value]; };
  std::vector<double> taken(stored.size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const std::int32_t lender = stored[i].lender;
    const double lent = lender < 0 ? 0 : bytes_of(stored[lender]);
    taken[i] = std::max(0.0, bytes_of(stored[i]) - lent);
  }
  return taken;
}

Peak peak(const std::vector<Stored>& stored, std::int32_t num_moments,
          const std::vector<double>& num_shards, const std::vector<Transient>& transients) {
  const auto moments = static_cast<std::size_t>(num_moments);
  const std::vector<double> taken = taken_bytes(stored, num_shards);
  std::vector<double> change(moments + 1, 0.0);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    change[stored[i].lifetime.first] += taken[i];
    change[stored[i].lifetime.last] -= taken[i];
  }
  for (const Transient& t : transients) {
    change[t.live.first] += t.bytes;
    change[t.live.last] -= t.bytes;
  }
  Peak peak;
  double now = 0;
  for (std::size_t m = 0; m < moments; ++m) {
    now += change[m];
    if (now <= peak.bytes) continue;
    peak.bytes = now;
    peak.moment = static_cast<std::int32_t>(m);
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const Lifetime& lifetime = stored[i].lifetime;
    const bool has_own = stored[i].lender < 0 || taken[i] > 0;
    if (has_own && lifetime.first <= peak.moment && peak.moment < lifetime.last) {
      peak.live.emplace_back(stored[i].value, taken[i]);
    }
  }
  std::stable_sort(peak.live.begin(), peak.live.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return peak;
}

}  // namespace autoshard
