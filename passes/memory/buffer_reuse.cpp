#include "memory/buffer_reuse.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace autoshard {
namespace {

/// A value is tried in so many results, the smallest ones that are large enough.
constexpr int most_tried = 32;

/// A result, and when other values use its buffer.
struct Reusable {
  double bytes;
  std::int32_t index;
  /// Points behind the last one by first points.
  std::map<std::int32_t, std::int32_t> taken;

  bool is_free(const LiveRange& live) const {
    const auto next = taken.lower_bound(live.first);
    if (next != taken.end() && next->first < live.last) return false;
    return next == taken.begin() || std::prev(next)->second <= live.first;
  }
};

}  // namespace

void reuse_results(const std::vector<ResultBuffer>& results, std::int32_t num_points,
                   std::vector<Buffer>& buffers) {
  std::vector<Reusable> reusable;
  std::int32_t latest = 0;
  for (const auto& [index, made] : results) {
    reusable.push_back({buffers[index].bytes, index, {{made, num_points}}});
    latest = std::max(latest, made);
  }
  std::stable_sort(reusable.begin(), reusable.end(),
                   [](const Reusable& a, const Reusable& b) { return a.bytes < b.bytes; });
  std::vector<std::int32_t> reusing;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const bool may_fit = buffers[i].bytes > 0 && buffers[i].live.last <= latest &&
                         buffers[i].bytes <= reusable.back().bytes;
    if (may_fit) reusing.push_back(static_cast<std::int32_t>(i));
  }
  std::stable_sort(reusing.begin(), reusing.end(), [&](std::int32_t a, std::int32_t b) {
    return buffers[a].bytes > buffers[b].bytes;
  });
  for (std::int32_t buffer : reusing) {
    const Buffer& wants = buffers[buffer];
    auto result =
        std::lower_bound(reusable.begin(), reusable.end(), wants.bytes,
                         [](const Reusable& a, double bytes) { return a.bytes < bytes; });
    for (int tried = 0; result != reusable.end() && tried < most_tried; ++result, ++tried) {
      if (!result->is_free(wants.live)) continue;
      result->taken.emplace(wants.live.first, wants.live.last);
      buffers[buffer].reused = result->index;
      break;
    }
  }
}

}  // namespace autoshard
