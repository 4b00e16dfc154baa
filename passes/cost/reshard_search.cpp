#include "cost/reshard_search.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace autoshard {
namespace {

/// Cost of each step, so that the shorter of two paths that move the same is taken.
constexpr double step_penalty = 1e-4;
/// Searches are dropped when they have reached so many shardings, of some 140 bytes each.
constexpr std::size_t most_reached = 1 << 18;

}  // namespace

ReshardSearch::ReshardSearch(const ReshardState& from, std::vector<std::int64_t> capacity,
                             std::vector<std::int64_t> sizes, bool has_all_to_all,
                             bool is_in_turn)
    : capacity_(std::move(capacity)),
      sizes_(std::move(sizes)),
      participants_(std::size_t{1} << sizes_.size(), 1),
      has_all_to_all_(has_all_to_all),
      is_in_turn_(is_in_turn) {
  for (std::size_t parts = 1; parts < participants_.size(); ++parts) {
    const auto first = static_cast<std::size_t>(std::countr_zero(parts));
    participants_[parts] = sizes_[first] * participants_[parts & (parts - 1)];
  }
  for (std::size_t d = 0; d < capacity_.size(); ++d) {
    if (!fits(from, d)) return;
  }
  reach(from, 0, {}, {CollectiveKind::permute, 0, 1, 0}, nullptr);
}

std::vector<ReshardState> ReshardSearch::states_to(const ReshardState& target) {
  std::vector<ReshardState> states;
  for (const Entry* e = &settle(target); e->previous != nullptr; e = e->previous) {
    states.push_back(e->state);
  }
  std::reverse(states.begin(), states.end());
  return states;
}

std::vector<Step> ReshardSearch::steps_to(const ReshardState& target) {
  std::vector<Step> steps;
  for (const Entry* e = &settle(target); e->previous != nullptr; e = e->previous) {
    if (e->step.participants > 1) steps.push_back(e->step);
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

const ReshardSearch::Entry& ReshardSearch::settle(const ReshardState& target) {
  const std::uint64_t wanted = target.key();
  while (true) {
    if (const int found = find(wanted); found >= 0 && better_than_[found] == done) {
      return entries_[found];
    }
    if (queue_.empty()) throw std::logic_error("reshard: no path to a sharding");
    const Queued next = queue_.top();
    queue_.pop();
    if (next.cost > better_than_[next.entry]) continue;
    better_than_[next.entry] = done;
    expand(entries_[next.entry]);
  }
}

void ReshardSearch::reach(const ReshardState& state, double cost, const PathCost& path,
                          const Step& step, const Entry* previous) {
  const std::uint64_t key = state.key();
  int entry = find(key);
  if (entry < 0) {
    entry = static_cast<int>(entries_.size());
    index_.insert(hash_of(key), entry);
    entries_.push_back({state, cost, path, step, previous});
    keys_.push_back(key);
    better_than_.push_back(cost);
  } else {
    if (better_than_[entry] <= cost) return;
    better_than_[entry] = cost;
    Entry& known = entries_[entry];
    known.cost = cost;
    known.path = path;
    known.step = step;
    known.previous = previous;
  }
  queue_.push({cost, entry, is_in_turn_ ? ++turns_ : 0});
}

void ReshardSearch::step(const ReshardState& next, const Entry& start, CollectiveKind kind,
                         AxisMask parts, double held) {
  const Step made{kind, parts, participants_[parts], held};
  const double moved = made.sent_bytes();
  reach(next, start.cost + moved + step_penalty,
        {start.path.volume + moved, start.path.collectives + 1}, made, &start);
}

void ReshardSearch::expand(const Entry& start) {
  const ReshardState& state = start.state;
  std::int64_t pieces = 1;
  AxisMask used = 0;
  for (std::size_t d = 0; d < state.rank; ++d) {
    pieces *= blocks(state, d);
    for (std::size_t k = 0; k < state.length[d]; ++k) used |= 1u << state.parts[d][k];
  }
  const double held = 1.0 / static_cast<double>(pieces);
  for (std::size_t d = 0; d < state.rank; ++d) {
    for (std::size_t part = 0; part < sizes_.size(); ++part) {
      if ((used >> part) & 1u) continue;
      ReshardState next = state;
      next.push(d, static_cast<AxisIndex>(part));
      if (!fits(next, d)) continue;
      reach(next, start.cost + step_penalty, start.path, {CollectiveKind::permute, 0, 1, 0},
            &start);
    }
    for (std::size_t keep = 0; keep < state.length[d]; ++keep) {
      AxisMask minor = 0;
      for (std::size_t k = keep; k < state.length[d]; ++k) minor |= 1u << state.parts[d][k];
      ReshardState gathered = state;
      gathered.length[d] = static_cast<std::uint8_t>(keep);
      step(gathered, start, CollectiveKind::all_gather, minor, held);
      for (std::size_t taker = 0; has_all_to_all_ && taker < state.rank; ++taker) {
        if (taker == d) continue;
        ReshardState moved = gathered;
        for (std::size_t k = keep; k < state.length[d]; ++k) {
          moved.push(taker, state.parts[d][k]);
        }
        if (fits(moved, taker)) step(moved, start, CollectiveKind::all_to_all, minor, held);
      }
    }
  }
  ReshardState permuted;
  permuted.rank = state.rank;
  permute(state, permuted, 0, 1, blocks(state, 0), 0, start, held);
}

void ReshardSearch::permute(const ReshardState& state, ReshardState& next, std::size_t d,
                            std::int64_t made, std::int64_t wanted, AxisMask used,
                            const Entry& start, double held) {
  if (made == wanted) {
    if (d + 1 < state.rank) {
      permute(state, next, d + 1, 1, blocks(state, d + 1), used, start, held);
      return;
    }
    AxisMask moved = 0;
    for (std::size_t dim = 0; dim < state.rank; ++dim) {
      if (!next.has_same_dim(state, dim)) moved |= moved_parts(state, next, dim);
    }
    if (moved != 0) step(next, start, CollectiveKind::permute, moved, held);
    return;
  }
  for (std::size_t part = 0; part < sizes_.size(); ++part) {
    const std::int64_t size = sizes_[part];
    if (((used >> part) & 1u) || wanted % (made * size) != 0) continue;
    next.push(d, static_cast<AxisIndex>(part));
    permute(state, next, d, made * size, wanted, used | (1u << part), start, held);
    --next.length[d];
  }
}

AxisMask ReshardSearch::moved_parts(const ReshardState& before, const ReshardState& after,
                                    std::size_t d) {
  std::size_t stays = 0;
  while (stays < std::min(before.length[d], after.length[d]) &&
         before.parts[d][stays] == after.parts[d][stays]) {
    ++stays;
  }
  AxisMask moved = 0;
  for (std::size_t k = stays; k < before.length[d]; ++k) moved |= 1u << before.parts[d][k];
  for (std::size_t k = stays; k < after.length[d]; ++k) moved |= 1u << after.parts[d][k];
  return moved;
}

ReshardSearch& ReshardSearches::search_of(const ReshardQuery& query) {
  const ReshardSearchKey key{query.start.key(), query.capacity, query.sizes,
                             query.has_all_to_all};
  if (const auto known = searches_.find(key); known != searches_.end()) return known->second;
  if (reached_ > most_reached) {
    searches_.clear();
    reached_ = 0;
  }
  return searches_
      .try_emplace(key, query.start,
                   std::vector<std::int64_t>(query.capacity.begin(), query.capacity.end()),
                   std::vector<std::int64_t>(query.sizes.begin(), query.sizes.end()),
                   query.has_all_to_all)
      .first->second;
}

template <typename Ask>
auto ReshardSearches::counted(const ReshardQuery& query, const Ask& ask) {
  ReshardSearch& search = search_of(query);
  const std::size_t before = search.size();
  auto answer = ask(search);
  reached_ += search.size() - before;
  return answer;
}

PathCost ReshardSearches::cost(const ReshardQuery& query) {
  return counted(query, [&](ReshardSearch& search) { return search.to(query.goal); });
}

std::vector<Step> ReshardSearches::steps(const ReshardQuery& query) {
  return counted(query, [&](ReshardSearch& search) { return search.steps_to(query.goal); });
}

ReshardSearches& reshard_searches() {
  thread_local ReshardSearches searches;
  return searches;
}

}  // namespace autoshard
