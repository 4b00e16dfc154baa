/// Seconds of a search, by what they were spent on.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace autoshard::planning {

using Clock = std::chrono::steady_clock;

/// Seconds spent under each name.
class Phases {
 public:
  void start(const std::string& name) {
    stop();
    name_ = name;
    begin_ = Clock::now();
  }
  void stop() {
    if (name_.empty()) return;
    const double spent = std::chrono::duration<double>(Clock::now() - begin_).count();
    const auto known = std::find_if(list_.begin(), list_.end(),
                                    [&](const auto& p) { return p.first == name_; });
    if (known == list_.end()) {
      list_.emplace_back(name_, spent);
    } else {
      known->second += spent;
    }
    name_.clear();
  }
  std::vector<std::pair<std::string, double>> list() const { return list_; }
  /// What is done now; empty: nothing.
  const std::string& name() const { return name_; }

 private:
  std::vector<std::pair<std::string, double>> list_;
  std::string name_;
  Clock::time_point begin_;
};

}  // namespace autoshard::planning
