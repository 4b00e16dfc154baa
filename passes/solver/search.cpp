#include "solver/search.h"

#include <algorithm>
#include <cmath>

namespace autoshard::solver {
namespace {

/// Points whose least room is kept together.
constexpr int kBlock = 32;

double finite_range(const double* values, int size) {
  double least = kNotAllowed, most = -kNotAllowed;
  for (int i = 0; i < size; ++i) {
    if (values[i] == kNotAllowed) continue;
    least = std::min(least, values[i]);
    most = std::max(most, values[i]);
  }
  return most > least ? most - least : 0.0;
}

}  // namespace

BlockSearch::BlockSearch(const Network& network, const MemoryModel& memory, std::uint64_t seed)
    : network_(network),
      memory_(memory),
      forest_(network),
      random_(seed),
      price_(memory.points(), 0.0),
      sums_(memory.points() + 1, 0.0),
      extra_(network.unary.size(), 0.0),
      block_slack_((memory.points() + kBlock - 1) / kBlock, 0.0) {
  for (int i = 0; i < network.nodes(); ++i) {
    const int k = network.options(i);
    spread_ += finite_range(network.unary.data() + network.offset[i], k);
    for (int a = network.arc_offset[i]; a < network.arc_offset[i + 1]; ++a) {
      // The first column stands for the table.
      spread_ += finite_range(network.arcs[a].in, k);
    }
  }
  spread_ /= std::max(network.nodes(), 1);
}

void BlockSearch::restart(const std::vector<int>& choice) {
  choice_ = choice;
  trial_choice_ = choice;
  cost_ = network_.cost(choice_, network_.unary);
  used_ = memory_.profile(choice_);
  overflow_ = 0;
  for (int t = 0; t < memory_.points(); ++t) {
    overflow_ += std::max(0.0, used_[t] - memory_.room[t]);
  }
  update_blocks(0, memory_.points());
  price_penalties();
  keep_best();
}

void BlockSearch::keep_best() {
  if (overflow_ > 0 || !(cost_ < best_cost_)) return;
  best_cost_ = cost_;
  best_ = choice_;
}

void BlockSearch::offer(const std::vector<int>& choice, double cost) {
  if (!(cost < best_cost_)) return;
  restart(choice);
}

void BlockSearch::set_prices(const std::vector<double>& price) {
  price_ = price;
  priced_points_.clear();
  double total = 0;
  for (int t = 0; t < memory_.points(); ++t) {
    if (price_[t] <= 0) continue;
    priced_points_.push_back(t);
    total += price_[t];
  }
  reference_price_ = total;
  MemoryModel::accumulate(price_, sums_);
}

void BlockSearch::update_blocks(int first, int last) {
  for (int b = first / kBlock; b * kBlock < last; ++b) {
    const int end = std::min((b + 1) * kBlock, memory_.points());
    double least = kNotAllowed;
    for (int t = b * kBlock; t < end; ++t) {
      least = std::min(least, memory_.room[t] - used_[t]);
    }
    block_slack_[b] = least;
  }
}

void BlockSearch::price_penalties() {
  penalty_sums_.clear();
  if (overflow_ <= 0) return;
  std::vector<double> penalties(memory_.points(), 0.0);
  for (int t = 0; t < memory_.points(); ++t) {
    if (used_[t] > memory_.room[t]) penalties[t] = penalty_;
  }
  MemoryModel::accumulate(penalties, penalty_sums_);
}

double BlockSearch::trial_price(int first, int last) const {
  double price = factor_ * (sums_[last] - sums_[first]);
  if (!penalty_sums_.empty()) price += penalty_sums_[last] - penalty_sums_[first];
  for (const Surcharge& surcharge : surcharges_) {
    if (first <= surcharge.point && surcharge.point < last) price += surcharge.price;
  }
  return price;
}

void BlockSearch::pick() {
  forest_.clear();
  const int n = network_.nodes();
  const int points = memory_.points();
  // Sizes are spread evenly over orders of magnitude.
  const double span = std::log(static_cast<double>(std::min(n, 600)) + 1.0);
  const int largest = 1 + static_cast<int>(std::exp(span * random_.unit()));
  const int patches = 1 + random_.below(4);
  int point = -1;
  const double kind = random_.unit();
  if (points > 0 && kind < 0.8) {
    if (overflow_ > 0) {
      // The fullest of a few.
      double worst = 0;
      for (int i = 0; i < 3 + points / 8; ++i) {
        const int t = random_.below(points);
        if (used_[t] - memory_.room[t] > worst) {
          worst = used_[t] - memory_.room[t];
          point = t;
        }
      }
    }
    if (point < 0) {
      point = !priced_points_.empty() && kind < 0.5
                  ? priced_points_[random_.below(static_cast<int>(priced_points_.size()))]
                  : random_.below(points);
    }
  }
  for (int p = 0; p < patches; ++p) {
    int node = random_.below(n);
    if (point >= 0) {
      const int begin = memory_.live_offset[point], end = memory_.live_offset[point + 1];
      if (end > begin) node = memory_.live[begin + random_.below(end - begin)];
    }
    forest_.grow(node, (p + 1) * largest / patches + 1, random_);
  }
}

void BlockSearch::price_picked() {
  for (int node : forest_.picked()) {
    const int k = network_.options(node);
    double* extra = extra_.data() + network_.offset[node];
    std::fill_n(extra, k, 0.0);
    const int begin = memory_.piece_offset[node], end = memory_.piece_offset[node + 1];
    for (int p = begin; p < end; ++p) {
      const MemoryModel::Piece& piece = memory_.pieces[p];
      const double price = trial_price(piece.first, piece.last);
      if (price == 0) continue;
      const double* bytes = memory_.bytes.data() + piece.bytes;
      for (int s = 0; s < k; ++s) extra[s] += price * bytes[s];
    }
    work_ += 20 + static_cast<std::int64_t>(k + 10) * (end - begin);
  }
}

BlockSearch::Outcome BlockSearch::outcome(double cost_before, double cost_after) {
  Outcome result;
  result.cost = cost_after - cost_before;
  changed_.clear();
  changes_.clear();
  for (int node : forest_.picked()) {
    const int old_option = choice_[node], new_option = trial_choice_[node];
    if (old_option == new_option) continue;
    changed_.push_back(node);
    for (int p = memory_.piece_offset[node]; p < memory_.piece_offset[node + 1]; ++p) {
      const MemoryModel::Piece& piece = memory_.pieces[p];
      const double difference =
          memory_.bytes[piece.bytes + new_option] - memory_.bytes[piece.bytes + old_option];
      if (difference == 0) continue;
      changes_.push_back({piece.first, difference});
      changes_.push_back({piece.last, -difference});
      result.priced += difference * trial_price(piece.first, piece.last);
    }
  }
  std::sort(changes_.begin(), changes_.end(),
            [](const Change& x, const Change& y) { return x.point < y.point; });
  work_ += 20 * static_cast<std::int64_t>(changes_.size());
  double sum = 0, worst = 0;
  for (std::size_t c = 0; c + 1 < changes_.size(); ++c) {
    sum += changes_[c].bytes;
    const int first = changes_[c].point, last = changes_[c + 1].point;
    if (sum == 0 || first == last) continue;
    if (overflow_ <= 0) {
      // Nothing overflows now: only growth matters, and most blocks have room for it.
      if (sum < 0) continue;
      for (int t = first; t < last;) {
        const int block_end = std::min((t / kBlock + 1) * kBlock, last);
        if (block_slack_[t / kBlock] >= sum) {
          t = block_end;
          continue;
        }
        for (; t < block_end; ++t) {
          const double after = used_[t] - memory_.room[t] + sum;
          if (after <= 0) continue;
          result.overflow += after;
          if (after > worst) {
            worst = after;
            result.worst = t;
            result.worst_growth = sum;
          }
        }
      }
      continue;
    }
    for (int t = first; t < last; ++t) {
      const double before = used_[t] - memory_.room[t], after = before + sum;
      if (before > 0) result.overflow -= before;
      if (after <= 0) continue;
      result.overflow += after;
      if (sum > 0 && after > worst) {
        worst = after;
        result.worst = t;
        result.worst_growth = sum;
      }
    }
    work_ += last - first;
  }
  return result;
}

void BlockSearch::take(const Outcome& result) {
  double sum = 0;
  for (std::size_t c = 0; c + 1 < changes_.size(); ++c) {
    sum += changes_[c].bytes;
    const int first = changes_[c].point, last = changes_[c + 1].point;
    if (sum == 0 || first == last) continue;
    for (int t = first; t < last; ++t) used_[t] += sum;
    update_blocks(first, last);
    work_ += last - first;
  }
  for (int node : changed_) choice_[node] = trial_choice_[node];
  cost_ += result.cost;
  const bool overflowed = overflow_ > 0;
  overflow_ += result.overflow;
  if (overflow_ < 0.5) overflow_ = 0;
  if (overflowed || overflow_ > 0) {
    price_penalties();
    work_ += 2 * memory_.points();
  }
}

void BlockSearch::trial(double temperature) {
  pick();
  if (forest_.picked().empty()) return;
  forest_.prepare(network_.unary, choice_);
  const double cost_before = forest_.cost(choice_);
  factor_ = random_.unit() < 0.15 ? 0.0 : std::exp(2.5 * (random_.unit() - 0.6));
  surcharges_.clear();
  constexpr int kRounds = 6;
  for (int round = 0; round < kRounds; ++round) {
    price_picked();
    const double cost_after = forest_.solve(extra_.data(), trial_choice_);
    const Outcome result = outcome(cost_before, cost_after);
    bool accepted = false;
    if (!changed_.empty()) {
      if (overflow_ > 0) {
        accepted = result.cost + penalty_ * result.overflow < 0 ||
                   (result.overflow < 0 && overflow_ + result.overflow < 0.5);
      } else if (result.overflow <= 0) {
        const double allowed =
            temperature > 0 ? -temperature * std::log(random_.unit() + 1e-300) : 0.0;
        accepted = result.cost <= allowed;
      }
    }
    if (accepted) {
      take(result);
      keep_best();
      return;
    }
    for (int node : changed_) trial_choice_[node] = choice_[node];
    const double gain = -result.cost - result.priced;
    if (changed_.empty() || result.worst < 0 || gain <= 0) return;
    surcharges_.push_back(
        {result.worst, gain / result.worst_growth * (0.25 + 0.75 * random_.unit())});
  }
}

void BlockSearch::kick() {
  const int points = memory_.points();
  forest_.clear();
  const int n = network_.nodes();
  const int largest = 1 + static_cast<int>(n * std::pow(random_.unit(), 2.0));
  const int point = points > 0 ? random_.below(points) : -1;
  for (int p = 0; p < 3; ++p) {
    int node = random_.below(n);
    if (point >= 0) {
      const int begin = memory_.live_offset[point], end = memory_.live_offset[point + 1];
      if (end > begin) node = memory_.live[begin + random_.below(end - begin)];
    }
    forest_.grow(node, (p + 1) * largest / 3 + 1, random_);
  }
  forest_.prepare(network_.unary, choice_);
  const double cost_before = forest_.cost(choice_);
  factor_ = std::exp(4.0 * (random_.unit() - 0.5));
  surcharges_.clear();
  for (int i = 0; i < 4 && points > 0; ++i) {
    surcharges_.push_back({random_.below(points), std::max(reference_price_, 1e-9) *
                                                      std::exp(4.0 * (random_.unit() - 0.7))});
  }
  price_picked();
  if (random_.unit() < 0.5) {
    // Random costs, about as large as a node's share of the total, or as what options differ
    // by.
    const double share = random_.unit() < 0.5 ? std::abs(cost_) / n : spread_;
    const double size = (share + 1e-9) * std::exp(6.0 * (random_.unit() - 0.5));
    for (int node : forest_.picked()) {
      double* extra = extra_.data() + network_.offset[node];
      for (int s = 0; s < network_.options(node); ++s) extra[s] += size * random_.unit();
    }
  }
  const double cost_after = forest_.solve(extra_.data(), trial_choice_);
  const Outcome result = outcome(cost_before, cost_after);
  take(result);
  penalty_ = 0.1 * reference_price_;
  price_penalties();
  keep_best();
}

void BlockSearch::run(std::int64_t work, double temperature, const std::atomic<bool>& stop) {
  if (overflow_ > 0 && penalty_ == 0) {
    penalty_ = std::max(reference_price_, 1e-9);
    price_penalties();
  }
  const std::int64_t before = work_ + forest_.work();
  while (work_ + forest_.work() - before < work && !stop.load(std::memory_order_relaxed)) {
    // While the choice overflows, bytes get dearer.
    if (overflow_ > 0 && ++trials_ % 200 == 0) {
      penalty_ *= 1.3;
      price_penalties();
    }
    trial(temperature);
    work_ += 1000;
  }
}

}  // namespace autoshard::solver
