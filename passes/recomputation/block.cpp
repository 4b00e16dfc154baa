#include "recomputation/block.h"

#include <algorithm>
#include <cstddef>
#include <optional>

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

std::vector<Gap> gaps_of(const Block& block, const std::vector<bool>& stays) {
  const auto num_ops = static_cast<std::int32_t>(block.ops.size());
  std::vector<bool> is_fused(block.ops.size());
  for (std::int32_t op = 0; op < num_ops; ++op) {
    const auto results = block.results[op];
    is_fused[op] = !results.empty() &&
                   std::all_of(results.begin(), results.end(), [&](std::int32_t number) {
                     return block.values[number].storage == Storage::fused;
                   });
  }
  std::vector<Gap> found;
  for (std::size_t at = 0; at < block.values.size(); ++at) {
    const auto number = static_cast<std::int32_t>(at);
    const Value& value = block.values[at];
    const auto readers = block.demanders[number];
    if (value.storage != Storage::stored || readers.empty() || readers.back() == num_ops - 1)
      continue;
    if (value.in_program >= 0 && stays[value.in_program]) continue;
    // Ops that fusions make run with those that read them.
    Gap widest;
    std::int32_t early = value.maker;
    std::optional<std::int32_t> width;
    for (const std::int32_t late : readers) {
      if (is_fused[late]) continue;
      const std::int32_t first = block.ops[std::max(early, 0)].point;
      const std::int32_t end = block.ops[late].point;
      if (!width || end - first > *width) {
        width = end - first;
        widest = {{number, early, late, (first + end) / 2}, first + 1, end};
      }
      early = late;
    }
    if (width) found.push_back(widest);
  }
  return found;
}

}  // namespace autoshard::recomputation
