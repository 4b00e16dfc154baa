#include "recomputation/effects.h"

#include <algorithm>
#include <cstddef>

namespace autoshard::recomputation {

Effects::Effects(const Block& block, std::vector<double> live, double limit,
                 const CloneRules& rules, std::vector<Member> members,
                 std::optional<LinkedBlock> linked)
    : block_(block),
      live_(std::move(live)),
      limit_(limit),
      rules_(rules),
      members_(std::move(members)),
      linked_(std::move(linked)),
      delay_(linked_ ? linked_->link.delay() : 0.0) {}

Effect Effects::decided(std::span<const Fate> fates, const StackChanges& stacks,
                        bool with_batches) const {
  std::vector<Dropped> again, sent;
  for (std::size_t at = 0; at < members_.size(); ++at) {
    if (fates[at] == Fate::again) again.push_back(members_[at].gap);
    if (fates[at] == Fate::host) sent.push_back(members_[at].gap);
  }
  Effect found;
  found.clones = clones_for(block_, again, sent, rules_, with_batches);
  std::vector<double>& change = found.clones.change;
  found.answer.seconds = found.clones.seconds + stacks.seconds;
  for (const auto& [point, bytes] : stacks.change) {
    change[std::min(point, block_.num_points)] += bytes;
  }
  const bool sends = !sent.empty() || !stacks.moved.empty() || !stacks.computed.empty();
  if (linked_ && sends) {  // else the link is as the program itself leaves it
    // Values that nobody reads again need not come back.
    std::vector<const Use*> use_of(block_.values.size());
    for (const Use& use : found.clones.uses) use_of[use.number] = &use;
    std::vector<Sent> read;
    for (std::size_t at = 0; at < members_.size(); ++at) {
      const Member& one = members_[at];
      if (fates[at] != Fate::host || !use_of[one.gap.number]) continue;
      read.push_back({one.gap, *use_of[one.gap.number], one.send_seconds});
    }
    Fetches made = fetches_for(block_, *linked_, read, stacks.moved, stacks.computed, change);
    found.answer.seconds += made.delay - delay_;
    found.fetches = std::move(made.fetches);
  }
  double bytes = 0;
  for (std::size_t point = 0; point < live_.size(); ++point) {
    bytes += change[point];
    found.answer.excess += std::max(0.0, live_[point] + bytes - limit_);
  }
  return found;
}

Effect Effects::effect(std::span<const Fate> fates, const StackChanges& stacks) const {
  Effect found = decided(fates, stacks, true);
  found.live = live_;
  double bytes = 0;
  for (std::size_t point = 0; point < live_.size(); ++point) {
    bytes += found.clones.change[point];
    found.live[point] += bytes;
  }
  return found;
}

Answer Effects::answer(std::span<const Fate> fates, const StackChanges& stacks) const {
  return decided(fates, stacks, false).answer;
}

double Effects::least_excess(std::span<const Fate> fates) const {
  std::vector<double> change(live_.size() + 1);
  for (std::size_t at = 0; at < members_.size(); ++at) {
    if (fates[at] == Fate::keep) continue;
    const Dropped& gap = members_[at].gap;
    const Value& value = block_.values[gap.number];
    const std::int32_t end = std::min(value.end, block_.num_points);
    change[std::min(block_.ops[std::max(gap.early, 0)].point + 1, end)] -= value.bytes;
    change[end] += value.bytes;
  }
  double bytes = 0, excess = 0;
  for (std::size_t point = 0; point < live_.size(); ++point) {
    bytes += change[point];
    excess += std::max(0.0, live_[point] + bytes - limit_);
  }
  return excess;
}

}  // namespace autoshard::recomputation
