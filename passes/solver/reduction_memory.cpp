// Memory: its points, what all options take, and options that cannot fit.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "solver/reduction.h"

namespace autoshard::solver {

void Reduction::read_memory(const Problem& problem) {
  // The live set grows at firsts and shrinks at lasts; it is maximal at a first that is
  // followed by a last. Every interval keeps at least one such point.
  std::vector<std::pair<std::int64_t, bool>> events;  // (time, is a first); lasts sort first
  for (int i = 0; i < problem.nodes(); ++i) {
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    events.emplace_back(problem.live_first[i], true);
    events.emplace_back(problem.live_last[i], false);
  }
  std::sort(events.begin(), events.end());
  for (std::size_t e = 0; e + 1 < events.size(); ++e) {
    if (events[e].second && !events[e + 1].second) points_.push_back(events[e].first);
  }
  room_.assign(points_.size(), *problem.memory_limit);
  const auto position = [this](std::int64_t time) {
    return static_cast<int>(std::lower_bound(points_.begin(), points_.end(), time) -
                            points_.begin());
  };
  for (int i = 0; i < problem.nodes(); ++i) {
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    const auto begin = problem.option_memory.begin() + problem.option_offset[i];
    nodes_[i].memory.push_back({position(problem.live_first[i]),
                                position(problem.live_last[i]),
                                {begin, begin + problem.option_count(i)}});
  }
  // Through differences: one sweep for all nodes.
  std::vector<std::int64_t> change(points_.size() + 1, 0);
  for (Node& node : nodes_) {
    for (Piece& piece : node.memory) {
      const std::int64_t least = *std::min_element(piece.bytes.begin(), piece.bytes.end());
      change[piece.first] += least;
      change[piece.last] -= least;
      for (std::int64_t& bytes : piece.bytes) bytes -= least;
    }
    level_memory(node);
  }
  std::int64_t used = 0;
  for (std::size_t t = 0; t < room_.size(); ++t) room_[t] -= used += change[t];
}

void Reduction::level_memory(Node& node) {
  for (Piece& piece : node.memory) {
    const std::int64_t least = *std::min_element(piece.bytes.begin(), piece.bytes.end());
    if (least == 0) continue;
    for (std::int64_t& bytes : piece.bytes) bytes -= least;
    for (int t = piece.first; t < piece.last; ++t) room_[t] -= least;
  }
  std::erase_if(node.memory, [](const Piece& piece) {
    return std::all_of(piece.bytes.begin(), piece.bytes.end(),
                       [](std::int64_t bytes) { return bytes == 0; });
  });
}

bool Reduction::restrict_memory(bool& any) {
  any = false;
  if (room_.empty()) return true;
  const auto tightest = std::min_element(room_.begin(), room_.end());
  if (*tightest < 0) {
    diagnosis_ = "memory: at point " + std::to_string(points_[tightest - room_.begin()]) +
                 " the smallest allowed options exceed the limit by " +
                 std::to_string(-*tightest) + " bytes";
    return false;
  }
  // least[l][t]: smallest room in [t, t + 2^l).
  std::vector<std::vector<std::int64_t>> least = {room_};
  for (std::size_t width = 1; 2 * width <= room_.size(); width *= 2) {
    const std::vector<std::int64_t>& half = least.back();
    std::vector<std::int64_t> next(room_.size() - 2 * width + 1);
    for (std::size_t t = 0; t < next.size(); ++t) next[t] = std::min(half[t], half[t + width]);
    least.push_back(std::move(next));
  }
  std::vector<int> kept;
  for (int v = 0; v < nodes(); ++v) {
    Node& node = nodes_[v];
    if (!node.alive || node.memory.empty()) continue;
    const int k = static_cast<int>(node.cost.size());
    std::vector<char> fits(k, 1);
    for (const Piece& piece : node.memory) {
      const int level = std::bit_width(static_cast<unsigned>(piece.last - piece.first)) - 1;
      const std::int64_t room =
          std::min(least[level][piece.first], least[level][piece.last - (1 << level)]);
      for (int s = 0; s < k; ++s) fits[s] &= piece.bytes[s] <= room;
    }
    kept.clear();
    for (int s = 0; s < k; ++s) {
      if (fits[s]) kept.push_back(s);
    }
    if (static_cast<int>(kept.size()) == k) continue;
    any = true;
    if (kept.empty()) {
      diagnosis_ = "memory: no option of node " + std::to_string(v) +
                   " fits, even if all others " + "take their smallest; tightest point " +
                   std::to_string(points_[tightest - room_.begin()]);
      return false;
    }
    keep_options(v, kept);
  }
  return true;
}

}  // namespace autoshard::solver
