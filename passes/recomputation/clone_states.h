/// What is known of ops and values while it is found out which of them run again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "recomputation/block.h"

namespace autoshard::recomputation {

struct ValueState {
  std::uint32_t run = 0;  ///< of which it is; of an older one it says nothing
  /// Places among those that were dropped and sent; -1: it was not.
  std::int32_t dropped = -1, sent = -1;
  /// Which of the copies it has is its own, from 1 on; 0: none. Of several the last.
  std::int32_t cloned = 0;
  std::int32_t cloned_at = 0;  ///< the point of the reader that it was made for
  /// Points from there on at which others are served by it.
  std::int32_t reach = 0;
  /// Point from which the memory of the original is free now, and from which copies do not
  /// read it any more, as far as is known.
  std::int32_t end = 0, read_end = 0;
  std::int32_t use = -1;
  /// Point from which nobody reads its copy any more, as far as is known.
  std::int32_t copy_end = 0;
  /// The last reader that was found to read it, and its copy.
  std::int32_t reader[2] = {-1, -1};
  /// The point before which nothing lives longer for those who read it, or its copy, if it is
  /// fused.
  std::int32_t quiet[2] = {0, 0};
  /// The last search, or batch, that met it.
  std::int32_t seen = -1, input_of = -1;
  std::int32_t last_use = 0;  ///< place in a batch
  bool is_input = false;      ///< of any batch, or on the host
};

struct OpState {
  std::uint32_t run = 0;
  std::int32_t copies = 0;
  bool is_reader = false, is_served = false, is_dead = false;
  /// Values of which a served reader reads copies.
  std::vector<std::int32_t> needed = {};
};

/// States of the values and ops that a run meets: few of all, so that none is made anew.
class States {
 public:
  std::uint32_t begin(const Block& block) {
    if (values_.size() < block.values.size()) {
      values_.resize(block.values.size());
      touched_.resize(block.values.size());
    }
    if (ops_.size() < block.ops.size()) ops_.resize(block.ops.size());
    parts.clear();
    ops.clear();
    inputs.clear();
    late.clear();
    if (++runs_ == 0) {  // all numbers of runs were there
      *this = States();
      return begin(block);
    }
    return runs_;
  }
  ValueState& value(const Block& block, std::int32_t number) {
    ValueState& state = values_[number];
    if (state.run != runs_) [[unlikely]]
      begin(state, block.values[number]);
    return state;
  }
  OpState& op(std::int32_t position) {
    OpState& state = ops_[position];
    if (state.run != runs_) {
      state.run = runs_;
      state.copies = 0;
      state.is_reader = state.is_served = state.is_dead = false;
      state.needed.clear();
    }
    return state;
  }
  /// Ops and inputs of all batches, one behind the other, and where those of each end.
  struct Part {
    std::int32_t position;
    std::size_t ops, inputs;
  };
  std::vector<Part> parts;
  std::vector<std::int32_t> ops, inputs;
  std::vector<std::int32_t> late, stack;
  std::vector<double> ends_at;  ///< bytes of copies, by their last use in a batch

  void touch(std::int32_t number) { touched_[number] = runs_; }
  /// Was a value dropped, sent, or copied?
  bool is_touched(std::int32_t number) const { return touched_[number] == runs_; }

 private:
  void begin(ValueState& state, const Value& value) const;

  std::vector<ValueState> values_;
  std::vector<OpState> ops_;
  std::vector<std::uint32_t> touched_;
  std::uint32_t runs_ = 0;
};

[[gnu::noinline]] inline void States::begin(ValueState& state, const Value& value) const {
  state = ValueState{.run = runs_};
  state.end = value.end;
}

}  // namespace autoshard::recomputation
