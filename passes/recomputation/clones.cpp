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
  /// A dropped value takes no memory from its last early reader to the copy.
  void free_until(std::int32_t number, std::int32_t point);
  /// The op at `position` reads a value, or what a fusion makes it of: copies and their inputs
  /// live until then.
  void read(std::int32_t number, std::int32_t position);
  void read_copy(std::int32_t number, std::int32_t position);
  /// An original is read by copies at `point`.
  void read_original(std::int32_t number, std::int32_t point);
  double seconds_again() const;

  bool is_late(std::int32_t position, const Dropped& one) const {
    return position >= one.late ||
           (position > one.early && block_.ops[position].ready > one.middle);
  }
  std::int32_t end_of(std::int32_t number) const {
    return std::max(block_.values[number].end, end_[number]);
  }
  void add(std::int32_t point, double bytes) {
    found_.change[std::min(point, block_.num_points)] += bytes;
  }

  const Block& block_;
  const CloneRules rules_;
  std::span<const Dropped> all_[2];
  // By value.
  std::vector<const Dropped*> dropped_, sent_;
  std::vector<char> is_cloned_;
  /// When it ends now, if that is later than before.
  std::vector<std::int32_t> end_;
  std::vector<std::int32_t> use_of_;
  /// Point from which nobody reads its copy any more, as far as is known.
  std::vector<std::int32_t> copy_end_;
  /// The last reader that was found to read it.
  std::vector<std::int32_t> reader_of_;
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
      is_cloned_(block.values.size()),
      end_(block.values.size()),
      use_of_(block.values.size(), -1),
      copy_end_(block.values.size()),
      reader_of_(block.values.size(), -1),
      seen_(block.values.size(), -1),
      input_of_(block.values.size(), -1),
      last_use_(block.values.size()),
      is_served_(block.ops.size()),
      needed_(block.ops.size()) {
  for (const Dropped& one : dropped) dropped_[one.number] = &one;
  for (const Dropped& one : sent) sent_[one.number] = &one;
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
    if (!is_cloned_[one.number]) free_until(one.number, block_.values[one.number].end);
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
  for (const std::int32_t number : block_.ops[position].operands) read(number, position);
}

bool Builder::needs_copy(std::int32_t number, std::int32_t position) {
  if (is_cloned_[number]) return true;
  const Value& value = block_.values[number];
  if (value.storage == Storage::stored) return is_gone(number, position);
  if (value.storage != Storage::fused || value.maker < 0) return false;
  ++searches_;
  seen_[number] = searches_;
  stack_.assign(1, number);
  while (!stack_.empty()) {
    const std::int32_t maker = block_.values[stack_.back()].maker;
    stack_.pop_back();
    if (is_served_[maker]) continue;  // it reads the copies
    for (const std::int32_t operand : block_.ops[maker].operands) {
      if (seen_[operand] == searches_) continue;
      seen_[operand] = searches_;
      if (is_cloned_[operand]) return true;
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
  return end_of(number) <= block_.ops[position].point;
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
    if (is_cloned_[current]) continue;
    const std::int32_t op = block_.values[current].maker;
    if (is_ready) {
      batch.ops.push_back(op);
      for (const std::int32_t result : block_.ops[op].results) is_cloned_[result] = true;
      continue;
    }
    stack_.push_back(~current);
    for (const std::int32_t operand : block_.ops[op].operands) {
      if (block_.values[operand].storage == Storage::free) continue;
      if (is_cloned_[operand]) {
        read_copy(operand, position);
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
  const std::int32_t early = dropped_[number]->early;
  const std::int32_t start = std::max(block_.ops[std::max(early, 0)].point + 1, end_[number]);
  if (start >= point) return;
  add(start, -block_.values[number].bytes);
  add(point, block_.values[number].bytes);
}

void Builder::read(std::int32_t number, std::int32_t position) {
  if (is_cloned_[number]) {
    read_copy(number, position);
    return;
  }
  const Value& value = block_.values[number];
  if (value.storage != Storage::fused || value.maker < 0 || reader_of_[number] == position) {
    return;
  }
  reader_of_[number] = position;
  const auto& needed = needed_[value.maker];
  for (const std::int32_t operand : block_.ops[value.maker].operands) {
    // Before it was served, an op read the originals, even of what is copied by now.
    const bool is_copy = std::find(needed.begin(), needed.end(), operand) != needed.end();
    if (is_copy || !is_cloned_[operand]) read(operand, position);
  }
}

void Builder::read_copy(std::int32_t number, std::int32_t position) {
  if (reader_of_[number] == position) return;
  reader_of_[number] = position;
  const Value& value = block_.values[number];
  const std::int32_t point = block_.ops[position].point;
  if (value.storage == Storage::stored) {
    if (copy_end_[number] == 0 || copy_end_[number] > point) return;
    add(copy_end_[number], value.bytes);
    add(point + 1, -value.bytes);
    copy_end_[number] = point + 1;
    return;
  }
  for (const std::int32_t operand : block_.ops[value.maker].operands) {
    if (is_cloned_[operand]) {
      read_copy(operand, position);
    } else if (block_.values[operand].storage != Storage::free) {
      read_original(operand, point);
    }
  }
}

void Builder::read_original(std::int32_t number, std::int32_t point) {
  const Value& value = block_.values[number];
  const std::int32_t end = end_of(number);
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
    const auto reads_copy = [&](std::int32_t reader) {
      const auto& needed = needed_[reader];
      return is_dead[reader] ||
             std::find(needed.begin(), needed.end(), number) != needed.end();
    };
    const auto& readers = block_.values[number].readers;
    return !is_read[number] && std::all_of(readers.begin(), readers.end(), reads_copy);
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
