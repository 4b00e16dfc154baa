/// A local search that goes on excursions from the best choice it knows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "solver/search.h"

namespace autoshard::solver {

/// Steps of work in an epoch: some twenty milliseconds on a server core of 2023.
inline constexpr std::int64_t kWorkOfEpoch = 8'000'000;

/// A walk that returns to its best place when an excursion does not pay.
class Walker {
 public:
  Walker(const Network& network, const MemoryModel& memory, std::uint64_t seed, int patience)
      : search_(network, memory, seed),
        patience_(patience),
        parts_(std::clamp(2000 / std::max(network.nodes(), 1), 1, 20)) {}

  BlockSearch& search() { return search_; }

  void epoch(const std::atomic<bool>& stop) {
    for (int part = 0; part < parts_; ++part) excursion(stop);
    ++age_;
  }

  /// One part of an epoch.
  void excursion(const std::atomic<bool>& stop) {
    search_.run(kWorkOfEpoch / parts_, 0.0, stop);
    if (search_.feasible() && search_.cost() < home_cost_ - 1e-8 * std::abs(home_cost_)) {
      home_ = search_.choice();
      home_cost_ = search_.cost();
      idle_ = 0;
      return;
    }
    if (++idle_ < patience_ || home_.empty()) return;
    idle_ = 0;
    search_.restart(home_);
    search_.kick();
  }

  /// Leaves everything behind and starts from a decoded choice.
  void start(const std::vector<int>& choice) {
    home_.clear();
    home_cost_ = kNotAllowed;
    idle_ = 0;
    age_ = 0;
    search_.restart(choice);
  }
  /// Epochs since the last start.
  int age() const { return age_; }

  void offer(const std::vector<int>& choice, double cost) {
    if (!(cost < home_cost_)) return;
    home_ = choice;
    home_cost_ = cost;
    search_.restart(choice);
    idle_ = 0;
  }

 private:
  BlockSearch search_;
  int patience_;
  int parts_;  ///< the smaller the network, the more excursions fit into an epoch
  int idle_ = 0;
  int age_ = 0;
  std::vector<int> home_;
  double home_cost_ = kNotAllowed;
};

}  // namespace autoshard::solver
