// Options that cannot fit are removed.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "solver/presolve.h"

namespace autoshard::solver {

bool restrict_memory(Reduction& reduction, bool& any) {
  any = false;
  if (reduction.room.empty()) return true;
  const auto tightest = std::min_element(reduction.room.begin(), reduction.room.end());
  if (*tightest < 0) {
    reduction.diagnosis = "memory: at point " +
                          std::to_string(reduction.points[tightest - reduction.room.begin()]) +
                          " the smallest allowed options exceed the limit by " +
                          std::to_string(-*tightest) + " bytes";
    return false;
  }
  // least[l][t]: smallest room in [t, t + 2^l).
  std::vector<std::vector<std::int64_t>> least = {reduction.room};
  for (std::size_t width = 1; 2 * width <= reduction.room.size(); width *= 2) {
    const std::vector<std::int64_t>& half = least.back();
    std::vector<std::int64_t> next(reduction.room.size() - 2 * width + 1);
    for (std::size_t t = 0; t < next.size(); ++t) next[t] = std::min(half[t], half[t + width]);
    least.push_back(std::move(next));
  }
  std::vector<int> kept;
  for (int v = 0; v < reduction.count(); ++v) {
    Reduction::Node& node = reduction.nodes[v];
    if (!node.alive || node.memory.empty()) continue;
    const int k = static_cast<int>(node.cost.size());
    std::vector<char> fits(k, 1);
    for (const Reduction::Piece& piece : node.memory) {
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
      reduction.diagnosis =
          "memory: no option of node " + std::to_string(v) + " fits, even if all others " +
          "take their smallest; tightest point " +
          std::to_string(reduction.points[tightest - reduction.room.begin()]);
      return false;
    }
    reduction.keep_options(v, kept);
  }
  return true;
}

}  // namespace autoshard::solver
