#include "planning/alike_ops.h"

#include <array>
#include <bit>
#include <cstddef>
#include <stdexcept>

#include "model/hash_index.h"

namespace autoshard::planning {

AlikeOps alike_ops(const Program& program, const PlanTable& plan, const OpNumbers& ops) {
  const std::size_t num_ops = program.ops.size();
  for (const std::size_t size : {plan.op_seconds.size(), plan.cuts.op_strategy.size(),
                                 ops.kinds.size(), ops.places.size(), ops.spots.size()}) {
    if (size != num_ops) throw std::invalid_argument("alike_ops: columns differ in length");
  }
  const auto key_of = [&](std::size_t op) {
    return std::array{static_cast<std::uint64_t>(ops.kinds[op]),
                      static_cast<std::uint64_t>(ops.places[op]),
                      static_cast<std::uint64_t>(plan.cuts.op_strategy[op]),
                      std::bit_cast<std::uint64_t>(plan.op_seconds[op]),
                      std::bit_cast<std::uint64_t>(program.ops[op].trips)};
  };
  AlikeOps found;
  found.group_of.reserve(num_ops);
  std::vector<std::int32_t> in_spot;
  HashIndex groups;
  for (std::size_t op = 0; op < num_ops; ++op) {
    const auto key = key_of(op);
    const std::int32_t group = groups.find_or_insert(
        autoshard::hash_of(key),
        [&](int known) { return key_of(static_cast<std::size_t>(found.first[known])) == key; },
        [&found] { return static_cast<int>(found.first.size()); });
    const auto spot = static_cast<std::size_t>(ops.spots[op]);
    if (spot >= in_spot.size()) in_spot.resize(spot + 1);
    if (static_cast<std::size_t>(group) == found.first.size()) {
      found.first.push_back(static_cast<std::int32_t>(op));
      found.count.push_back(0);
      found.occurrence.push_back(in_spot[spot]);
    }
    found.group_of.push_back(group);
    ++found.count[group];
    ++in_spot[spot];
  }
  return found;
}

}  // namespace autoshard::planning
