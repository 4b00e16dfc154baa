#include "pipeline/levels.h"

#include <algorithm>
#include <limits>

namespace autoshard::pipeline {

std::vector<std::int32_t> levels_of(const Line& line, const std::vector<std::int32_t>& stage) {
  std::vector<std::int32_t> level(line.size(), 0);
  for (std::int32_t node = 0; node < line.size(); ++node) {
    for (const std::int32_t value : line.reads[node]) {
      const std::int32_t maker = line.values[value].maker;
      if (maker < 0) continue;
      level[node] = std::max(level[node], level[maker] + (stage[maker] != stage[node]));
    }
  }
  constexpr std::int32_t never = std::numeric_limits<std::int32_t>::max();
  for (std::int32_t node = line.size(); node-- > 0;) {
    std::int32_t latest = never, of_any = never;
    for (const std::int32_t value : line.makes[node]) {
      for (const std::int32_t reader : line.values[value].readers) {
        const std::int32_t most = level[reader] - (stage[reader] != stage[node]);
        of_any = std::min(of_any, most);
        if (!line.is_forward[node] || line.is_forward[reader]) latest = std::min(latest, most);
      }
    }
    latest = std::min(latest, of_any);
    if (latest != never) level[node] = std::max(level[node], latest);
  }
  return level;
}

}  // namespace autoshard::pipeline
