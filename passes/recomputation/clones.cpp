#include "recomputation/clones.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace autoshard::recomputation {
namespace {

class Builder {
 public:
  Builder(const Block& block, std::span<const Dropped> dropped, std::span<const Dropped> sent,
          const CloneRules& rules);

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
    return std::find(needed_[op].begin(), needed_[op].end(), operand) != needed_[op].end();
  }
  /// Does the copy of a value? It reads what was there when it was made.
  bool copy_reads_copy(std::int32_t number, std::int32_t operand) const {
    return is_cloned(operand) && cloned_[operand] < cloned_[number];
  }
  double seconds_again() const;

  bool is_late(std::int32_t position, const Dropped& one) const {
    return position >= one.late ||
           (position > one.early && block_.ops[position].ready > one.middle);
  }
  bool is_cloned(std::int32_t number) const { return cloned_[number] > 0; }
  void add(std::int32_t point, double bytes) {
    found_.change[std::min(point, block_.num_points)] += bytes;
  }

  const Block& block_;
  const CloneRules rules_;
  std::span<const Dropped> all_[2];
  // By value.
  std::vector<const Dropped*> dropped_, sent_;
  /// Which of the copies it has is its own, from 1 on; 0: none.
  std::vector<std::int32_t> cloned_;
  std::int32_t num_cloned_ = 0;
  /// Point from which the memory of the original is free now, and from which copies do not
  /// read it any more, as far as is known.
  std::vector<std::int32_t> end_, read_end_;
  std::vector<std::int32_t> use_of_;
  /// Point from which nobody reads its copy any more, as far as is known.
  std::vector<std::int32_t> copy_end_;
  /// The last reader that was found to read it, and its copy.
  std::vector<std::int32_t> reader_of_[2];
  /// The last search, or batch, that met it.
  std::vector<std::int32_t> seen_, input_of_;
  std::int32_t searches_ = 0;
  /// Place in a batch.
  std::vector<std::size_t> last_use_;
  // By op.
  std::vector<char> is_served_;
  /// Values of which a served reader reads copies.
  std::vector<std::vector<std::int32_t>> needed_;
  std::vector<std::int32_t> stack_;
  Clones found_;
};

Builder::Builder(const Block& block, std::span<const Dropped> dropped,
                 std::span<const Dropped> sent, const CloneRules& rules)
    : block_(block),
      rules_(rules),
      all_{dropped, sent},
      dropped_(block.values.size()),
      sent_(block.values.size()),
      cloned_(block.values.size()),
      end_(block.values.size()),
      read_end_(block.values.size()),
      use_of_(block.values.size(), -1),
      copy_end_(block.values.size()),
      reader_of_{std::vector<std::int32_t>(block.values.size(), -1),
                 std::vector<std::int32_t>(block.values.size(), -1)},
      seen_(block.values.size(), -1),
      input_of_(block.values.size(), -1),
      last_use_(block.values.size()),
      is_served_(block.ops.size()),
      needed_(block.ops.size()) {
  for (const Dropped& one : dropped) dropped_[one.number] = &one;
  for (const Dropped& one : sent) sent_[one.number] = &one;
  for (std::size_t n = 0; n < block.values.size(); ++n) end_[n] = block.values[n].end;
  found_.change.assign(block.num_points + 1, 0.0);
}

Clones Builder::build() {
  std::vector<char> is_reader(block_.ops.size());
  for (const auto& part : all_) {
    for (const Dropped& one : part) {
      for (const std::int32_t position : block_.values[one.number].demanders) {
        if (is_late(position, one)) is_reader[position] = true;
      }
    }
  }
  for (std::size_t position = 0; position < is_reader.size(); ++position) {
    if (is_reader[position]) serve(static_cast<std::int32_t>(position));
  }
  // What was dropped and never copied ends with its early readers.
  for (const Dropped& one : all_[0]) {
    if (!is_cloned(one.number)) free_until(one.number, end_[one.number]);
  }
  found_.seconds = seconds_again();
  return std::move(found_);
}

void Builder::serve(std::int32_t position) {
  std::vector<std::int32_t>& needed = needed_[position];
  for (const std::int32_t number : block_.ops[position].operands) {
    if (needs_copy(number, position)) needed.push_back(number);
  }
  is_served_[position] = true;
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
  seen_[number] = searches_;
  stack_.assign(1, number);
  while (!stack_.empty()) {
    const std::int32_t maker = block_.values[stack_.back()].maker;
    stack_.pop_back();
    for (const std::int32_t operand : block_.ops[maker].operands) {
      if (reads_copy(maker, operand) || seen_[operand] == searches_) continue;
      seen_[operand] = searches_;
      if (is_cloned(operand) && !is_served_[maker]) return true;
      const Storage storage = block_.values[operand].storage;
      if (storage == Storage::stored && is_gone(operand, position)) return true;
      if (storage == Storage::fused) stack_.push_back(operand);
    }
  }
  return false;
}

bool Builder::is_gone(std::int32_t number, std::int32_t position) const {
  const Dropped* one = dropped_[number] ? dropped_[number] : sent_[number];
  return one && is_late(position, *one);
}

bool Builder::is_copied(std::int32_t number, std::int32_t position) const {
  const Value& value = block_.values[number];
  if (value.storage == Storage::kept || value.maker < 0 || sent_[number]) return false;
  const Op& maker = block_.ops[value.maker];
  if (rules_.keep_parameters && (maker.gathers || value.is_parameter)) return false;
  if (value.storage == Storage::fused) return true;
  if (dropped_[number]) return position > dropped_[number]->early;
  if (rules_.keep_sent && maker.sends) return false;
  return end_[number] <= block_.ops[position].point;
}

void Builder::use(std::int32_t number, std::int32_t position) {
  const std::int32_t end = block_.ops[position].point + 1;
  if (use_of_[number] < 0) {
    use_of_[number] = static_cast<std::int32_t>(found_.uses.size());
    found_.uses.push_back({number, position, end});
  }
  Use& use = found_.uses[use_of_[number]];
  use.first = std::min(use.first, position);
  use.end = std::max(use.end, end);
}

void Builder::copy(std::int32_t number, Batch& batch) {
  const std::int32_t position = batch.position;
  if (sent_[number]) {
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
      for (const std::int32_t result : block_.ops[op].results) cloned_[result] = num_cloned_;
      continue;
    }
    stack_.push_back(~current);
    for (const std::int32_t operand : block_.ops[op].operands) {
      if (block_.values[operand].storage == Storage::free) continue;
      if (is_cloned(operand)) {
        read(operand, position, true);
      } else if (is_copied(operand, position)) {
        stack_.push_back(operand);
      } else if (input_of_[operand] != position) {
        input_of_[operand] = position;
        batch.inputs.push_back(operand);
        if (sent_[operand] && position > sent_[operand]->early) use(operand, position);
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
    for (const std::int32_t number : op.operands) last_use_[number] = order;
    for (const std::int32_t number : op.results) last_use_[number] = order;
  }
  double live = 0, most = 0;
  std::vector<double> ends_at(batch.ops.size());
  for (std::size_t order = 0; order < batch.ops.size(); ++order) {
    for (const std::int32_t result : block_.ops[batch.ops[order]].results) {
      const Value& value = block_.values[result];
      if (value.storage != Storage::stored) continue;
      copy_end_[result] = std::max(value.end, point + 1);
      if (value.end > point) {  // it lives on, as it does without copies
        if (dropped_[result]) free_until(result, point);
        continue;
      }
      live += value.bytes;
      ends_at[last_use_[result]] += value.bytes;
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
  const std::int32_t early = block_.ops[std::max(dropped_[number]->early, 0)].point + 1;
  end_[number] = std::max(early, read_end_[number]);
  add(end_[number], -block_.values[number].bytes);
  add(point, block_.values[number].bytes);
}

void Builder::read(std::int32_t number, std::int32_t position, bool is_copy) {
  const Value& value = block_.values[number];
  if (value.storage == Storage::free || reader_of_[is_copy][number] == position) return;
  reader_of_[is_copy][number] = position;
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
  if (copy_end_[number] == 0 || copy_end_[number] > point) return;
  add(copy_end_[number], block_.values[number].bytes);
  add(point + 1, -block_.values[number].bytes);
  copy_end_[number] = point + 1;
}

void Builder::read_original(std::int32_t number, std::int32_t point) {
  const Value& value = block_.values[number];
  read_end_[number] = point + 1;
  const std::int32_t end = end_[number];
  if (sent_[number] || !value.is_counted || value.maker < 0 || end <= 0 || end > point) return;
  add(end, value.bytes);
  add(point + 1, -value.bytes);
  end_[number] = point + 1;
}

/// Copies replace originals that nobody reads any more: these do not count.
double Builder::seconds_again() const {
  std::vector<char> is_read(block_.values.size()), is_dead(block_.ops.size());
  std::vector<std::int32_t> copied;
  for (const Batch& batch : found_.batches) {
    copied.insert(copied.end(), batch.ops.begin(), batch.ops.end());
    for (const std::int32_t number : batch.inputs) is_read[number] = true;
  }
  for (const Dropped& one : all_[1]) is_read[one.number] = true;
  const auto is_left = [&](std::int32_t number) {
    const auto& readers = block_.values[number].readers;
    return !is_read[number] &&
           std::all_of(readers.begin(), readers.end(), [&](std::int32_t reader) {
             return is_dead[reader] || reads_copy(reader, number);
           });
  };
  std::sort(copied.rbegin(), copied.rend());
  double seconds = 0;
  for (const std::int32_t op : copied) {
    const auto& results = block_.ops[op].results;
    is_dead[op] = std::all_of(results.begin(), results.end(), is_left);
    if (!is_dead[op]) seconds += block_.ops[op].seconds;
  }
  return seconds;
}

}  // namespace

Clones clones_for(const Block& block, std::span<const Dropped> dropped,
                  std::span<const Dropped> sent, const CloneRules& rules) {
  return Builder(block, dropped, sent, rules).build();
}

}  // namespace autoshard::recomputation
