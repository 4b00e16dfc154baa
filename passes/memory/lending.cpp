#include "memory/lending.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace autoshard {
namespace {

/// So many results, the smallest ones that are large enough, are asked for their storage.
constexpr int most_lenders = 32;

}  // namespace

void lend(const std::vector<Lender>& lenders, std::int32_t moments,
          std::vector<Stored>& stored) {
  struct Result {
    double bytes;
    std::int32_t index;
    /// When it is taken: last moments by first ones.
    std::map<std::int32_t, std::int32_t> taken;
    bool is_free(const Lifetime& live) const {
      const auto next = taken.lower_bound(live.first);
      if (next != taken.end() && next->first < live.last) return false;
      return next == taken.begin() || std::prev(next)->second <= live.first;
    }
  };
  std::vector<Result> results;
  std::int32_t latest = 0;
  for (const auto& [index, made] : lenders) {
    results.push_back({stored[index].bytes, index, {{made, moments}}});
    latest = std::max(latest, made);
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const Result& a, const Result& b) { return a.bytes < b.bytes; });
  std::vector<std::int32_t> guests;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const bool may_fit = stored[i].bytes > 0 && stored[i].lifetime.last <= latest &&
                         stored[i].bytes <= results.back().bytes;
    if (may_fit) guests.push_back(static_cast<std::int32_t>(i));
  }
  std::stable_sort(guests.begin(), guests.end(), [&](std::int32_t a, std::int32_t b) {
    return stored[a].bytes > stored[b].bytes;
  });
  for (std::int32_t guest : guests) {
    const Stored& wants = stored[guest];
    auto lender =
        std::lower_bound(results.begin(), results.end(), wants.bytes,
                         [](const Result& a, double bytes) { return a.bytes < bytes; });
    for (int tried = 0; lender != results.end() && tried < most_lenders; ++lender, ++tried) {
      if (!lender->is_free(wants.lifetime)) continue;
      lender->taken.emplace(wants.lifetime.first, wants.lifetime.last);
      stored[guest].lender = lender->index;
      break;
    }
  }
}

}  // namespace autoshard
