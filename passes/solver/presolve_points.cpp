// Points that cannot be overfull unless a neighbouring one is are dropped.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "solver/presolve.h"

namespace autoshard::solver {
namespace {

/// Gaps at which more pieces begin or end than this are not looked at.
constexpr std::size_t kLargestGap = 400;

/// A piece of memory of a node that begins or ends.
struct Change {
  int node;
  const Reduction::Piece* piece;
};

/// Finds points that are implied by the next one left, before or behind.
class ImpliedPoints {
 public:
  explicit ImpliedPoints(const Reduction& reduction)
      : reduction_(reduction),
        count_(static_cast<int>(reduction.room.size())),
        starts_(count_ + 1),
        ends_(count_ + 1),
        previous_(count_ + 1),
        next_(count_ + 1) {
    for (int v = 0; v < reduction.count(); ++v) {
      if (!reduction.nodes[v].alive) continue;
      for (const Reduction::Piece& piece : reduction.nodes[v].memory) {
        starts_[piece.first].push_back({v, &piece});
        ends_[piece.last].push_back({v, &piece});
      }
    }
    for (int t = 0; t <= count_; ++t) {
      previous_[t] = t - 1;
      next_[t] = t + 1;
    }
  }

  /// By point: it is dropped.
  std::vector<char> find() {
    std::vector<char> dropped(count_, 0);
    std::vector<int> queue(count_);
    for (int t = 0; t < count_; ++t) queue[t] = t;
    std::vector<char> queued(count_, 1);
    for (std::size_t at = 0; at < queue.size(); ++at) {
      const int t = queue[at];
      queued[t] = 0;
      if (dropped[t] || !is_implied(t)) continue;
      dropped[t] = 1;
      const int before = previous_[t], after = next_[t];
      join_gaps(t);
      for (int near : {before, after}) {
        if (near >= 0 && near < count_ && !queued[near]) {
          queued[near] = 1;
          queue.push_back(near);
        }
      }
    }
    return dropped;
  }

 private:
  bool is_implied(int t);
  std::int64_t excess(const std::vector<Change>& plus, const std::vector<Change>& minus);
  void join_gaps(int t);

  const Reduction& reduction_;
  int count_;
  /// By point: changes on the way to it from the previous one left.
  std::vector<std::vector<Change>> starts_, ends_;
  std::vector<int> previous_, next_;
  std::vector<std::pair<int, const Reduction::Piece*>> grown_, shrunk_;
  std::vector<std::int64_t> difference_;
};

bool ImpliedPoints::is_implied(int t) {
  const std::vector<std::int64_t>& room = reduction_.room;
  const int before = previous_[t], after = next_[t];
  if (starts_[t].size() + ends_[t].size() + starts_[after].size() + ends_[after].size() >
      kLargestGap) {
    return false;
  }
  return (before >= 0 && excess(starts_[t], ends_[t]) <= room[t] - room[before]) ||
         (after < count_ && excess(ends_[after], starts_[after]) <= room[t] - room[after]);
}

/// Upper bound on bytes at one end of the gap minus bytes at the other end.
std::int64_t ImpliedPoints::excess(const std::vector<Change>& plus,
                                   const std::vector<Change>& minus) {
  grown_.clear();
  shrunk_.clear();
  for (const Change& change : plus) grown_.emplace_back(change.node, change.piece);
  for (const Change& change : minus) shrunk_.emplace_back(change.node, change.piece);
  const auto by_node = [](const auto& x, const auto& y) { return x.first < y.first; };
  std::sort(grown_.begin(), grown_.end(), by_node);
  std::sort(shrunk_.begin(), shrunk_.end(), by_node);
  std::int64_t total = 0;
  std::size_t other = 0;
  for (std::size_t i = 0; i < grown_.size();) {
    const int v = grown_[i].first;
    difference_.assign(reduction_.nodes[v].cost.size(), 0);
    for (; i < grown_.size() && grown_[i].first == v; ++i) {
      for (std::size_t s = 0; s < difference_.size(); ++s) {
        difference_[s] += grown_[i].second->bytes[s];
      }
    }
    while (other < shrunk_.size() && shrunk_[other].first < v) ++other;
    for (; other < shrunk_.size() && shrunk_[other].first == v; ++other) {
      for (std::size_t s = 0; s < difference_.size(); ++s) {
        difference_[s] -= shrunk_[other].second->bytes[s];
      }
    }
    // A node that only shrinks counts 0: its smallest option takes nothing.
    total += *std::max_element(difference_.begin(), difference_.end());
  }
  return total;
}

/// Takes point t out. Pieces live at t only are gone; the rest joins the gap before the next
/// one.
void ImpliedPoints::join_gaps(int t) {
  const int before = previous_[t], after = next_[t];
  next_[before >= 0 ? before : count_] = after;  // entry `count_` of next_ is never read
  previous_[after] = before;
  std::vector<Change> started, ended;
  const auto is_in = [](const std::vector<Change>& changes, const Change& change) {
    return std::any_of(changes.begin(), changes.end(),
                       [&](const Change& other) { return other.piece == change.piece; });
  };
  for (const Change& change : starts_[t]) {
    const bool is_left =
        change.piece->last > after || (change.piece->last > t && after == count_);
    if (is_left || !is_in(ends_[after], change)) started.push_back(change);
  }
  for (const Change& change : ends_[after]) {
    if (!is_in(starts_[t], change)) ended.push_back(change);
  }
  started.insert(started.end(), starts_[after].begin(), starts_[after].end());
  ended.insert(ended.end(), ends_[t].begin(), ends_[t].end());
  starts_[after] = std::move(started);
  ends_[after] = std::move(ended);
  starts_[t].clear();
  ends_[t].clear();
}

/// Pieces over the same points add up; those over none are gone.
void add_up(std::vector<Reduction::Piece>& pieces) {
  std::erase_if(pieces,
                [](const Reduction::Piece& piece) { return piece.first >= piece.last; });
  std::sort(pieces.begin(), pieces.end(),
            [](const Reduction::Piece& x, const Reduction::Piece& y) {
              return std::tie(x.first, x.last) < std::tie(y.first, y.last);
            });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Reduction::Piece& piece = pieces[i];
    if (kept > 0 && pieces[kept - 1].first == piece.first &&
        pieces[kept - 1].last == piece.last) {
      for (std::size_t s = 0; s < piece.bytes.size(); ++s) {
        pieces[kept - 1].bytes[s] += piece.bytes[s];
      }
    } else if (kept++ != i) {
      pieces[kept - 1] = std::move(piece);
    }
  }
  pieces.resize(kept);
}

}  // namespace

bool drop_implied_points(Reduction& reduction) {
  const int count = static_cast<int>(reduction.room.size());
  if (count == 0) return false;
  const std::vector<char> dropped = ImpliedPoints(reduction).find();
  if (std::find(dropped.begin(), dropped.end(), 1) == dropped.end()) return false;
  std::vector<int> position(count + 1, 0);
  int left = 0;
  for (int t = 0; t < count; ++t) {
    position[t] = left;
    if (dropped[t]) continue;
    reduction.points[left] = reduction.points[t];
    reduction.room[left] = reduction.room[t];
    ++left;
  }
  position[count] = left;
  reduction.points.resize(left);
  reduction.room.resize(left);
  for (Reduction::Node& node : reduction.nodes) {
    for (Reduction::Piece& piece : node.memory) {
      piece.first = position[piece.first];
      piece.last = position[piece.last];
    }
    add_up(node.memory);
    reduction.level_memory(node);
  }
  std::fill(reduction.dominance_current.begin(), reduction.dominance_current.end(), 0);
  return true;
}

}  // namespace autoshard::solver
