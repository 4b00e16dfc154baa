#include "recomputation/block.h"

#include <algorithm>
#include <cstddef>

namespace autoshard::recomputation {
namespace {

/// A chain of so many fused ops is looked at op by op: rows of it would grow with its square.
constexpr std::size_t most_sources = 256;

}  // namespace

void set_sources(Block& block, std::int32_t position) {
  const auto is_fused = [&](std::int32_t number) {
    return block.values[number].storage == Storage::fused;
  };
  const auto results = block.results[position];
  if (std::none_of(results.begin(), results.end(), is_fused)) return;
  std::vector<std::int32_t> found;
  bool are_many = false;
  for (const std::int32_t operand : block.operands[position]) {
    if (block.values[operand].storage == Storage::free) continue;
    found.push_back(operand);
    const auto behind = block.sources[operand];
    found.insert(found.end(), behind.begin(), behind.end());
    are_many |= block.values[operand].has_many_sources;
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  are_many |= found.size() > most_sources;
  for (const std::int32_t result : results) {
    if (!is_fused(result)) continue;
    block.values[result].has_many_sources = are_many;
    if (!are_many) block.sources.set(result, found);
  }
}

}  // namespace autoshard::recomputation
