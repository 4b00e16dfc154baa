#include "pipeline/works.h"

#include <map>
#include <set>
#include <span>
#include <utility>

namespace autoshard::pipeline {
namespace {

using Key = std::pair<std::int32_t, std::int32_t>;  ///< level and stage

struct Seen {
  double seconds = 0, deferred_seconds = 0;
  std::set<Key> after;
};

/// Which of the places of an op one reads that is made at `reader`.
std::size_t place_read(std::span<const Place> places, const Place& reader) {
  std::size_t found = 0;
  bool is_own = false;
  for (std::size_t k = 0; k < places.size(); ++k) {
    if (places[k].stage != reader.stage) continue;
    if (is_own && places[k].level > reader.level && places[found].level <= reader.level) break;
    found = k;
    is_own = true;
  }
  return found;
}

}  // namespace

std::vector<StageWork> works_of(const Ops& ops, const Loop& loop,
                                const std::vector<Place>& places,
                                const std::vector<double>& seconds) {
  const importer::Block& block = ops.module.regions[ops.module.ops[loop.op].first_region + 1];
  std::vector<std::size_t> first(ops.module.ops.size() + 1, places.size());
  for (std::size_t k = places.size(); k-- > 0;) first[places[k].op] = k;
  for (std::size_t op = first.size() - 1; op-- > 0;) {
    if (first[op] == places.size()) first[op] = first[op + 1];
  }
  const auto of = [&](std::int32_t op) {
    return std::span(places).subspan(first[op], first[op + 1] - first[op]);
  };
  std::vector<char> is_awaited(places.size(), 0);
  std::map<Key, Seen> seen;
  const std::vector<std::int32_t> inside = ops.ops_of(block);
  for (std::size_t n = inside.size(); n-- > 0;) {
    const std::int32_t op = inside[n];
    if (of(op).empty()) continue;
    const std::vector<std::int32_t> reads = ops.reads(op);
    for (std::size_t k = first[op]; k < first[op + 1]; ++k) {
      const Place& own = places[k];
      Seen& work = seen[{own.level, own.stage}];
      work.seconds += seconds[op];
      if (!is_awaited[k]) work.deferred_seconds += seconds[op];
      for (const std::int32_t value : reads) {
        const std::int32_t maker = ops.owner(value);
        if (maker <= loop.op || of(maker).empty()) continue;
        const std::size_t read = first[maker] + place_read(of(maker), own);
        const Place& other = places[read];
        if (is_awaited[k] || other.stage != own.stage) is_awaited[read] = true;
        if (other.stage != own.stage || other.level != own.level) {
          work.after.insert({other.level, other.stage});
        }
      }
    }
  }
  std::map<Key, std::int32_t> numbers;
  for (const auto& [key, work] : seen) {
    numbers.emplace(key, static_cast<std::int32_t>(numbers.size()));
  }
  std::vector<StageWork> found;
  for (const auto& [key, work] : seen) {
    StageWork one{key.second, key.first, work.seconds, work.deferred_seconds, {}};
    for (const Key& other : work.after) one.after.push_back(numbers.at(other));
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace autoshard::pipeline
