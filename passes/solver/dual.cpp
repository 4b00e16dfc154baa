#include "solver/dual.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace autoshard::solver {
namespace {

// Chosen by runs over the IOPDDL instances, 500 steps each (November 2026).
constexpr double kMix = 0.1;           ///< weight of the newest choice in the average
constexpr double kTargetAhead = 0.05;  ///< of the bound
constexpr int kFailuresToShorten = 3;
constexpr double kShorten = 0.66, kLengthen = 1.1;
constexpr double kShortestScale = 1e-4;
constexpr double kGainOfCycle = 2e-4;  ///< of the bound; cycles that gain less are the last

}  // namespace

Dual::Dual(const Network& network, const MemoryModel& memory)
    : network_(network),
      memory_(memory),
      messages_(network),
      unary_(network.unary),
      price_(memory.points(), 0.0),
      best_price_(memory.points(), 0.0),
      direction_(memory.points(), 0.0),
      decoded_(network.nodes(), 0) {
  for (const Network::Edge& edge : network.edges) {
    work_of_step_ += 2ll * network.options(edge.a) * network.options(edge.b);
  }
  work_of_step_ += 4 * static_cast<std::int64_t>(network.unary.size()) + 3 * memory.points() +
                   static_cast<std::int64_t>(memory.bytes.size());
}

void Dual::charge(const std::vector<double>& price) {
  MemoryModel::accumulate(price, sums_);
  unary_ = network_.unary;
  for (int i = 0; i < network_.nodes(); ++i) {
    memory_.add_priced(i, network_.options(i), sums_, unary_.data() + network_.offset[i]);
  }
}

double Dual::charged_room(const std::vector<double>& price) const {
  double total = 0;
  for (std::size_t t = 0; t < price.size(); ++t) total += price[t] * memory_.room[t];
  return total;
}

void Dual::set_price(const std::vector<double>& price) { price_ = price; }

void Dual::step(double limit) {
  charge(price_);
  messages_.pass(unary_, true, nullptr);
  const double bound = messages_.pass(unary_, false, &decoded_) - charged_room(price_);
  const std::vector<double> profile = memory_.profile(decoded_);
  double agreement = 0;  // of the newest overflow with the average one
  for (int t = 0; t < memory_.points(); ++t) {
    agreement += direction_[t] * (profile[t] - memory_.room[t]);
  }
  const double mix = best_bound_ == -kNotAllowed ? 1.0 : kMix;
  for (int t = 0; t < memory_.points(); ++t) {
    direction_[t] += mix * (profile[t] - memory_.room[t] - direction_[t]);
  }
  if (best_bound_ == -kNotAllowed) cycle_bound_ = bound;
  if (bound > best_bound_) {
    best_bound_ = bound;
    best_price_ = price_;
    failures_ = 0;
    if (agreement > 0) scale_ = std::min(scale_ * kLengthen, 2.0);
  } else if (++failures_ >= kFailuresToShorten) {
    failures_ = 0;
    scale_ *= kShorten;
  }
  if (scale_ < kShortestScale) {
    settled_ = best_bound_ - cycle_bound_ < kGainOfCycle * std::abs(best_bound_);
    cycle_bound_ = best_bound_;
    scale_ = 0.5;
  }
  // Few points carry prices in the end: overflow counts by a high power of its relative size,
  // so that peaks are priced first; slack lowers a price in proportion to it.
  double most = 0, dearest = 0;
  for (int t = 0; t < memory_.points(); ++t) {
    most = std::max(most, direction_[t]);
    dearest = std::max(dearest, best_price_[t]);
  }
  double length = 0;
  weight_.resize(direction_.size());
  for (int t = 0; t < memory_.points(); ++t) {
    double weight = dearest > 0 ? best_price_[t] / dearest : 0;
    if (direction_[t] > 0) {
      const double ratio = direction_[t] / most, square = ratio * ratio;
      weight = std::max(weight, square * square * square);
    }
    weight_[t] = weight;
    length += weight * direction_[t] * direction_[t];
  }
  if (!(length > 0)) {
    // Nothing overflows and nothing is priced: only the messages can raise the bound.
    if (bound > still_bound_ + 1e-6 * std::abs(bound)) {
      still_bound_ = bound;
      still_steps_ = 0;
    }
    settled_ = settled_ || ++still_steps_ > 20;
    return;
  }
  const double target =
      std::min(limit, best_bound_ + kTargetAhead * std::abs(best_bound_) + 1e-9);
  const double move = scale_ * (target - best_bound_) / length;
  for (int t = 0; t < memory_.points(); ++t) {
    price_[t] = std::max(0.0, best_price_[t] + move * weight_[t] * direction_[t]);
  }
}

void Dual::decode_near(Random& random) {
  price_ = best_price_;
  const double all = std::exp(1.5 * (random.unit() - 0.3)), each = 2.0 * random.unit();
  for (double& price : price_) price *= all * std::exp(each * (random.unit() - 0.5));
  charge(price_);
  const double size =
      std::abs(best_bound_) / network_.nodes() * std::exp(8 * (random.unit() - 0.8));
  for (double& cost : unary_) cost += size * random.unit();
  for (int i = 0; i < 3; ++i) {
    messages_.pass(unary_, true, nullptr);
    messages_.pass(unary_, false, &decoded_);
  }
}

double Dual::settle(int passes, std::vector<double>* surplus) {
  charge(best_price_);
  for (int i = 0; i < passes; ++i) {
    messages_.pass(unary_, true, nullptr);
    messages_.pass(unary_, false, nullptr);
  }
  const double room = charged_room(best_price_);
  double size = 0;
  for (double price : best_price_) size += price;
  const double margin =
      (memory_.points() + 4.0) * std::numeric_limits<double>::epsilon() * room;
  double bound = messages_.safe_bound(unary_, messages_.reparametrization(unary_));
  // `unary_` itself was rounded: a piece adds price sums (one rounding a point), a product
  // and an addition.
  double charged = 0;
  for (int i = 0; i < network_.nodes(); ++i) {
    double largest = 0;
    for (int o = network_.offset[i]; o < network_.offset[i + 1]; ++o) {
      largest = std::max(largest, std::abs(unary_[o] - network_.unary[o]));
    }
    charged += largest;
  }
  bound -= room + margin +
           (2.0 * memory_.points() + 8.0) * std::numeric_limits<double>::epsilon() *
               std::max(charged, size);
  if (surplus) {
    surplus->resize(network_.unary.size());
    messages_.pass(unary_, true, nullptr, surplus);
  }
  best_bound_ = std::max(best_bound_, bound);
  return bound;
}

}  // namespace autoshard::solver
