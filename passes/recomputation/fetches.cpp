#include "recomputation/fetches.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace autoshard::recomputation {
namespace {

/// Position at which each begins to come back.
std::vector<std::int32_t> backs(const LinkedBlock& linked, std::span<const Sent> sent,
                                std::span<const double> start) {
  std::vector<std::size_t> order(sent.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Use &one = sent[a].use, &other = sent[b].use;
    return one.first != other.first ? one.first > other.first : one.number < other.number;
  });
  std::vector<std::int32_t> found(sent.size());
  const auto& op_at = linked.op_at;
  double latest = start.back();
  for (const std::size_t at : order) {
    const Sent& one = sent[at];
    latest = std::min(latest, start[op_at[one.use.first]]) - one.seconds;
    const auto op = std::upper_bound(start.begin(), start.end(), latest) - start.begin() - 1;
    const auto position = std::upper_bound(op_at.begin(), op_at.end(), op) - op_at.begin() - 1;
    found[at] = std::min(std::max(static_cast<std::int32_t>(position), one.gap.early + 1),
                         one.use.first);
  }
  return found;
}

/// For each value the number of the op that runs when it has been sent; and all seconds
/// waited.
std::pair<std::vector<std::int32_t>, double> sent_at(const Block& block,
                                                     const LinkedBlock& linked,
                                                     std::span<const Sent> sent,
                                                     std::span<const std::int32_t> backs,
                                                     std::span<const double> start) {
  const HostLink& link = linked.link;
  const auto made = [&](const Sent& one) {
    return linked.op_at[block.values[one.gap.number].maker] + 1;
  };
  std::vector<std::int32_t> over(sent.size());
  if (linked.loop) {
    for (std::size_t at = 0; at < sent.size(); ++at) {
      const double end = start[std::min(made(sent[at]), link.num_ops())] + sent[at].seconds;
      over[at] = std::lower_bound(start.begin(), start.end(), end) - start.begin();
    }
    return {std::move(over), link.table(start, {}).waited};
  }
  std::vector<Transfer> transfers;
  transfers.reserve(2 * sent.size());
  for (std::size_t at = 0; at < sent.size(); ++at) {
    const Sent& one = sent[at];
    transfers.push_back({one.seconds, made(one), link.num_ops()});
    transfers.push_back({one.seconds, linked.op_at[backs[at]], linked.op_at[one.use.first]});
  }
  const Timetable table = link.table(start, std::move(transfers));
  for (std::size_t at = 0; at < sent.size(); ++at) over[at] = table.over[2 * at];
  return {std::move(over), table.waited};
}

}  // namespace

Fetches fetches_for(const Block& block, const LinkedBlock& linked, std::span<const Sent> sent,
                    std::vector<LoopTransfer> moved, std::span<const LoopSeconds> computed,
                    std::vector<double>& change) {
  double both = 0;
  for (const Sent& one : sent) both += 2 * one.seconds;
  double seconds = both;
  for (const LoopTransfer& one : moved) seconds += one.transfer.seconds;
  if (linked.loop && !sent.empty()) {
    moved.push_back({*linked.loop, {both, linked.loop->first, linked.loop->last}});
  }
  const HostLink::Free free = linked.link.free(moved, computed);
  const std::vector<std::int32_t> back_at = backs(linked, sent, free.start);
  const auto [over, waited] = sent_at(block, linked, sent, back_at, free.start);
  Fetches found{{}, linked.link.delay(seconds, free.waited + waited)};
  const auto add = [&](std::int32_t point, double bytes) {
    change[std::min(point, block.num_points)] += bytes;
  };
  const auto& op_at = linked.op_at;
  const auto last = static_cast<std::int32_t>(block.ops.size()) - 1;
  for (std::size_t at = 0; at < sent.size(); ++at) {
    const Sent& one = sent[at];
    const Value& value = block.values[one.gap.number];
    const std::int32_t back = back_at[at];
    const auto left = std::lower_bound(op_at.begin(), op_at.end(), over[at]) - op_at.begin();
    const std::int32_t gone = std::max(static_cast<std::int32_t>(left), one.gap.early + 1);
    found.fetches.push_back({one.gap.number, std::min(gone, back), back});
    if (gone < back) {
      add(block.ops[gone].point, -value.bytes);
      add(block.ops[std::min(back, last)].point, value.bytes);
    }
    if (one.use.end > value.end) {
      add(value.end, value.bytes);
      add(one.use.end, -value.bytes);
    }
  }
  return found;
}

}  // namespace autoshard::recomputation
