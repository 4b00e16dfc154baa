/// What is read from memory to compute an expression of fused ops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/program.h"

namespace autoshard {

/// The stored values that an expression of fused ops is computed from, with the bytes that are
/// read of each; by name only the first few.
class Sources {
 public:
  void add(std::int32_t value, double bytes) {
    for (auto& [known, read] : list_) {
      if (known != value) continue;
      read = std::max(read, bytes);
      return;
    }
    if (list_.size() < most_) {
      list_.emplace_back(value, bytes);
    } else {
      others_ += bytes;
      ++num_others_;
    }
  }
  void add(const Sources& other) {
    for (const auto& [value, bytes] : other.list_) add(value, bytes);
    others_ += other.others_;
    num_others_ += other.num_others_;
    is_laborious_ = is_laborious_ || other.is_laborious_;
    reads_array_ = reads_array_ || other.reads_array_;
  }
  /// Computing the expression takes a function, or a broadcast of what another kernel makes.
  void take_labour() { is_laborious_ = true; }
  /// The expression reads an array as large as itself, which may be one that does not count.
  void take_array() { reads_array_ = true; }
  bool reads_array() const { return reads_array_; }
  /// Computing an element of the expression takes so many operations more.
  void take_operations(double operations) { operations_ += operations; }
  double operations() const { return operations_; }
  bool is_laborious() const { return is_laborious_; }
  /// A slice of the expression reads no more than itself.
  void limit(double bytes) {
    for (auto& source : list_) source.second = std::min(source.second, bytes);
    others_ = std::min(others_, bytes);
  }
  double bytes() const {
    double sum = others_;
    for (const auto& source : list_) sum += source.second;
    return sum;
  }
  /// How many values; one that is not known by name counts each time that it is added.
  std::size_t count() const { return list_.size() + num_others_; }
  /// Whether `is_wanted` is true of one of the values that are known by name.
  template <typename IsWanted>
  bool any(const IsWanted& is_wanted) const {
    return std::any_of(list_.begin(), list_.end(),
                       [&](const auto& source) { return is_wanted(source.first); });
  }
  /// The value of which most is read, with the bytes; `no_value` if there is no value.
  std::pair<std::int32_t, double> largest() const {
    std::pair<std::int32_t, double> most{no_value, 0};
    for (const auto& source : list_) {
      if (source.second > most.second) most = source;
    }
    return most;
  }

 private:
  static constexpr std::size_t most_ = 8;
  std::vector<std::pair<std::int32_t, double>> list_;
  double others_ = 0;
  std::size_t num_others_ = 0;
  double operations_ = 0;
  bool is_laborious_ = false, reads_array_ = false;
};

}  // namespace autoshard
