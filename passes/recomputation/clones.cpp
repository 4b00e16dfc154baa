#include "recomputation/clones.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace autoshard::recomputation {
namespace {

struct ValueState {
  std::uint64_t run = 0;  ///< of which it is; of an older one it says nothing
  const Dropped* dropped = nullptr;
  const Dropped* sent = nullptr;
  /// Which of the copies it has is its own, from 1 on; 0: none.
  std::int32_t cloned = 0;
  /// Point from which the memory of the original is free now, and from which copies do not
  /// read it any more, as far as is known.
  std::int32_t end = 0, read_end = 0;
  std::int32_t use = -1;
  /// Point from which nobody reads its copy any more, as far as is known.
  std::int32_t copy_end = 0;
  /// The last reader that was found to read it, and its copy.
  std::int32_t reader[2] = {-1, -1};
  /// The last search, or batch, that met it.
  std::int32_t seen = -1, input_of = -1;
  bool is_input = false;     ///< of any batch, or on the host
  std::size_t last_use = 0;  ///< place in a batch
};

struct OpState {
  std::uint64_t run = 0;
  bool is_reader = false, is_served = false, is_dead = false;
  /// Values of which a served reader reads copies.
  std::vector<std::int32_t> needed = {};
};

/// States of the values and ops that a run meets: few of all, so that none is made anew.
class States {
 public:
  std::uint64_t begin(const Block& block) {
    if (values_.size() < block.values.size()) values_.resize(block.values.size());
    if (ops_.size() < block.ops.size()) ops_.resize(block.ops.size());
    return ++runs_;
  }
  ValueState& value(const Block& block, std::int32_t number, std::uint64_t run) {
    ValueState& state = values_[number];
    if (state.run != run) {
      state = ValueState{.run = run};
      state.end = block.values[number].end;
    }
    return state;
  }
  OpState& op(std::int32_t position, std::uint64_t run) {
    OpState& state = ops_[position];
    if (state.run != run) {
      state.run = run;
      state.is_reader = state.is_served = state.is_dead = false;
      state.needed.clear();
    }
    return state;
  }

 private:
  std::vector<ValueState> values_;
  std::vector<OpState> ops_;
  std::uint64_t runs_ = 0;
};

class Builder {
 public:
  Builder(const Block& block, std::span<const Dropped> dropped, std::span<const Dropped> sent,
          const CloneRules& rules, States& states);

  Clones build();

 private:
  void serve(std::int32_t position);
  /// Is a value that is read at `position`, or what a fusion would make it of, not there?
  bool needs_copy(std::int32_t number, std::int32_t position);
  /// Is a value, as it was made, not in memory for the op at `position`?
  bool is_gone(std::int32_t number, std::int32_t position) const;
  /// Is an operand of a copied op computed again, rather than read from memory?
  bool is_copied(std::int32_t number, std::int32_t position) const;
  /// Add the ops that make a value to the batch, those that they need first.
  void copy(std::int32_t number, Batch& batch);
  /// An op at `position` reads a value that was sent to the host.
  void use(std::int32_t number, std::int32_t position);
  /// Inputs of the batch live until it runs, its copies for a while.
  void account(const Batch& batch);
  /// A dropped value takes no memory from its last reader to `point`, if that is behind.
  void free_until(std::int32_t number, std::int32_t point);
  /// The op at `position` reads a value or its copy, or what a fusion makes that of: these
  /// live until then.
  void read(std::int32_t number, std::int32_t position, bool is_copy);
  void read_copy(std::int32_t number, std::int32_t point);
  void read_original(std::int32_t number, std::int32_t point);
  /// Does an op, as it stands in the program, read the copy of an operand?
  bool reads_copy(std::int32_t op, std::int32_t operand) const {
    const std::vector<std::int32_t>& needed = of_op(op).needed;
    return std::find(needed.begin(), needed.end(), operand) != needed.end();
  }
  /// Does the copy of a value? It reads what was there when it was made.
  bool copy_reads_copy(std::int32_t number, std::int32_t operand) const {
    return is_cloned(operand) && of(operand).cloned < of(number).cloned;
  }
  double seconds_again() const;

  bool is_late(std::int32_t position, const Dropped& one) const {
    return position >= one.late ||
           (position > one.early && block_.ops[position].ready > one.middle);
  }
  bool is_cloned(std::int32_t number) const { return of(number).cloned > 0; }
  void add(std::int32_t point, double bytes) {
    found_.change[std::min(point, block_.num_points)] += bytes;
  }

  ValueState& of(std::int32_t number) const { return states_.value(block_, number, run_); }
  OpState& of_op(std::int32_t position) const { return states_.op(position, run_); }

  const Block& block_;
  const CloneRules rules_;
  std::span<const Dropped> all_[2];
  States& states_;
  const std::uint64_t run_;
  std::int32_t num_cloned_ = 0;
  std::int32_t searches_ = 0;
  std::vector<std::int32_t> stack_;
  Clones found_;
};

Builder::Builder(const Block& block, std::span<const Dropped> dropped,
                 std::span<const Dropped> sent, const CloneRules& rules, States& states)
    : block_(block),
      rules_(rules),
      all_{dropped, sent},
      states_(states),
      run_(states.begin(block)) {
  for (const Dropped& one : dropped) of(one.number).dropped = &one;
  for (const Dropped& one : sent) of(one.number).sent = &one;
  found_.change.assign(block.num_points + 1, 0.0);
}

Clones Builder::build() {
  std::vector<std::int32_t> late;
  for (const auto& part : all_) {
    for (const Dropped& one : part) {
      for (const std::int32_t position : block_.values[one.number].demanders) {
        if (of_op(position).is_reader || !is_late(position, one)) continue;
        of_op(position).is_reader = true;
        late.push_back(position);
      }
    }
  }
  std::sort(late.begin(), late.end());
  for (const std::int32_t position : late) serve(position);
  // What was dropped and never copied ends with its early readers.
  for (const Dropped& one : all_[0]) {
    if (!is_cloned(one.number)) free_until(one.number, of(one.number).end);
  }
  found_.seconds = seconds_again();
  return std::move(found_);
}

void Builder::serve(std::int32_t position) {
  std::vector<std::int32_t>& needed = of_op(position).needed;
  for (const std::int32_t number : block_.ops[position].operands) {
    if (needs_copy(number, position)) needed.push_back(number);
  }
  of_op(position).is_served = true;
  if (!needed.empty()) {
    Batch batch{position};
    for (const std::int32_t number : needed) copy(number, batch);
    if (!batch.ops.empty()) account(batch);
    found_.batches.push_back(std::move(batch));
  }
  for (const std::int32_t number : block_.ops[position].operands) {
    read(number, position, is_cloned(number));
  }
}

bool Builder::needs_copy(std::int32_t number, std::int32_t position) {
  if (is_cloned(number)) return true;
  const Value& value = block_.values[number];
  if (value.storage == Storage::stored) return is_gone(number, position);
  if (value.storage != Storage::fused || value.maker < 0) return false;
  ++searches_;
  of(number).seen = searches_;
  stack_.assign(1, number);
  while (!stack_.empty()) {
    const std::int32_t maker = block_.values[stack_.back()].maker;
    stack_.pop_back();
    for (const std::int32_t operand : block_.ops[maker].operands) {
      if (reads_copy(maker, operand) || of(operand).seen == searches_) continue;
      of(operand).seen = searches_;
      if (is_cloned(operand) && !of_op(maker).is_served) return true;
      const Storage storage = block_.values[operand].storage;
      if (storage == Storage::stored && is_gone(operand, position)) return true;
      if (storage == Storage::fused) stack_.push_back(operand);
    }
  }
  return false;
}

bool Builder::is_gone(std::int32_t number, std::int32_t position) const {
  const Dropped* one = of(number).dropped ? of(number).dropped : of(number).sent;
  return one && is_late(position, *one);
}

bool Builder::is_copied(std::int32_t number, std::int32_t position) const {
  const Value& value = block_.values[number];
  if (value.storage == Storage::kept || value.maker < 0 || of(number).sent) return false;
  const Op& maker = block_.ops[value.maker];
  if (rules_.keep_parameters && (maker.gathers || value.is_parameter)) return false;
  if (value.storage == Storage::fused) return true;
  if (of(number).dropped) return position > of(number).dropped->early;
  if (rules_.keep_sent && maker.sends) return false;
  return of(number).end <= block_.ops[position].point;
}

void Builder::use(std::int32_t number, std::int32_t position) {
  const std::int32_t end = block_.ops[position].point + 1;
  if (of(number).use < 0) {
    of(number).use = static_cast<std::int32_t>(found_.uses.size());
    found_.uses.push_back({number, position, end});
  }
  Use& use = found_.uses[of(number).use];
  use.first = std::min(use.first, position);
  use.end = std::max(use.end, end);
}

void Builder::copy(std::int32_t number, Batch& batch) {
  const std::int32_t position = batch.position;
  if (of(number).sent) {
    use(number, position);
    return;
  }
  // An op whose operands are ready stands as ~value.
  stack_.assign(1, number);
  while (!stack_.empty()) {
    const std::int32_t top = stack_.back();
    stack_.pop_back();
    const bool is_ready = top < 0;
    const std::int32_t current = is_ready ? ~top : top;
    if (is_cloned(current)) continue;
    const std::int32_t op = block_.values[current].maker;
    if (is_ready) {
      batch.ops.push_back(op);
      ++num_cloned_;
      for (const std::int32_t result : block_.ops[op].results) of(result).cloned = num_cloned_;
      continue;
    }
    stack_.push_back(~current);
    for (const std::int32_t operand : block_.ops[op].operands) {
      if (block_.values[operand].storage == Storage::free) continue;
      if (is_cloned(operand)) {
        read(operand, position, true);
      } else if (is_copied(operand, position)) {
        stack_.push_back(operand);
      } else if (of(operand).input_of != position) {
        of(operand).input_of = position;
        batch.inputs.push_back(operand);
        if (of(operand).sent && position > of(operand).sent->early) use(operand, position);
      }
    }
  }
}

void Builder::account(const Batch& batch) {
  const std::int32_t point = block_.ops[batch.position].point;
  for (const std::int32_t number : batch.inputs) read_original(number, point);
  // A copy lives until the last copy that reads it, or for the time of its own.
  for (std::size_t order = 0; order < batch.ops.size(); ++order) {
    const Op& op = block_.ops[batch.ops[order]];
    for (const std::int32_t number : op.operands) of(number).last_use = order;
    for (const std::int32_t number : op.results) of(number).last_use = order;
  }
  double live = 0, most = 0;
  std::vector<double> ends_at(batch.ops.size());
  for (std::size_t order = 0; order < batch.ops.size(); ++order) {
    for (const std::int32_t result : block_.ops[batch.ops[order]].results) {
      const Value& value = block_.values[result];
      if (value.storage != Storage::stored) continue;
      of(result).copy_end = std::max(value.end, point + 1);
      if (value.end > point) {  // it lives on, as it does without copies
        if (of(result).dropped) free_until(result, point);
        continue;
      }
      live += value.bytes;
      ends_at[of(result).last_use] += value.bytes;
    }
    most = std::max(most, live);
    live -= ends_at[order];
  }
  if (most > 0) {
    add(point, most);
    add(point + 1, -most);
  }
}

void Builder::free_until(std::int32_t number, std::int32_t point) {
  const std::int32_t early = block_.ops[std::max(of(number).dropped->early, 0)].point + 1;
  of(number).end = std::max(early, of(number).read_end);
  add(of(number).end, -block_.values[number].bytes);
  add(point, block_.values[number].bytes);
}

void Builder::read(std::int32_t number, std::int32_t position, bool is_copy) {
  const Value& value = block_.values[number];
  if (value.storage == Storage::free || of(number).reader[is_copy] == position) return;
  of(number).reader[is_copy] = position;
  if (value.storage != Storage::fused || value.maker < 0) {
    const std::int32_t point = block_.ops[position].point;
    if (is_copy) {
      read_copy(number, point);
    } else {
      read_original(number, point);
    }
    return;
  }
  for (const std::int32_t operand : block_.ops[value.maker].operands) {
    read(operand, position,
         is_copy ? copy_reads_copy(number, operand) : reads_copy(value.maker, operand));
  }
}

void Builder::read_copy(std::int32_t number, std::int32_t point) {
  if (of(number).copy_end == 0 || of(number).copy_end > point) return;
  add(of(number).copy_end, block_.values[number].bytes);
  add(point + 1, -block_.values[number].bytes);
  of(number).copy_end = point + 1;
}

void Builder::read_original(std::int32_t number, std::int32_t point) {
  const Value& value = block_.values[number];
  of(number).read_end = point + 1;
  const std::int32_t end = of(number).end;
  if (of(number).sent || !value.is_counted || value.maker < 0 || end <= 0 || end > point)
    return;
  add(end, value.bytes);
  add(point + 1, -value.bytes);
  of(number).end = point + 1;
}

/// Copies replace originals that nobody reads any more: these do not count.
double Builder::seconds_again() const {
  std::vector<std::int32_t> copied;
  for (const Batch& batch : found_.batches) {
    copied.insert(copied.end(), batch.ops.begin(), batch.ops.end());
    for (const std::int32_t number : batch.inputs) of(number).is_input = true;
  }
  for (const Dropped& one : all_[1]) of(one.number).is_input = true;
  const auto is_left = [&](std::int32_t number) {
    const auto& readers = block_.values[number].readers;
    return !of(number).is_input &&
           std::all_of(readers.begin(), readers.end(), [&](std::int32_t reader) {
             return of_op(reader).is_dead || reads_copy(reader, number);
           });
  };
  std::sort(copied.rbegin(), copied.rend());
  double seconds = 0;
  for (const std::int32_t op : copied) {
    const auto& results = block_.ops[op].results;
    of_op(op).is_dead = std::all_of(results.begin(), results.end(), is_left);
    if (!of_op(op).is_dead) seconds += block_.ops[op].seconds;
  }
  return seconds;
}

}  // namespace

Clones clones_for(const Block& block, std::span<const Dropped> dropped,
                  std::span<const Dropped> sent, const CloneRules& rules) {
  static thread_local States states;
  return Builder(block, dropped, sent, rules, states).build();
}

}  // namespace autoshard::recomputation
