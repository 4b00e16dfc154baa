#include "recomputation/clones.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "recomputation/clone_states.h"

namespace autoshard::recomputation {
namespace {

/// A point behind all others.
constexpr std::int32_t never = std::numeric_limits<std::int32_t>::max();

class Builder {
 public:
  Builder(const Block& block, std::span<const Dropped> dropped, std::span<const Dropped> sent,
          const CloneRules& rules, States& states);

  Clones build(bool with_batches);

 private:
  void serve(std::int32_t position);
  /// Is a value that is read at `position`, or what a fusion would make it of, not there?
  bool needs_copy(std::int32_t number, std::int32_t position);
  /// Was a value dropped, sent or copied, or anything that fusions make it of?
  bool is_changed(std::int32_t number) const;
  /// Is a value, as it was made, not in memory for the op at `position`?
  bool is_gone(std::int32_t number, std::int32_t position) const;
  /// Is an operand of a copied op computed again, rather than read from memory?
  bool is_copied(std::int32_t number, std::int32_t position) const;
  /// Is there a copy of a value for the last batch, whose reader is at `position`?
  bool has_copy(std::int32_t number, std::int32_t position) const;
  /// Is a fused value, of which there is a copy, copied anew? That is in no memory, but what
  /// is sent for it would be, from one reader to the other, and compilers store it for both.
  bool is_far(std::int32_t number, std::int32_t position) const {
    return block_.ops[position].point - of(number).cloned_at > of(number).reach;
  }
  /// A value that the last batch, at `position`, copies, or of which it reads a copy.
  void bridge(std::int32_t number, std::int32_t position);
  /// Fused values of the last batch serve readers that are no farther away than the shortest
  /// gap was which it bridges, or than their originals.
  void set_reach(std::int32_t position, std::span<const std::int32_t> ops);
  /// Add the ops that make a value to the last batch, those that they need first.
  void copy(std::int32_t number, std::int32_t position);
  /// An op at `position` reads a value that was sent to the host.
  void use(std::int32_t number, std::int32_t position);
  /// Inputs of a batch live until it runs, its copies for a while.
  void account(std::int32_t position, std::span<const std::int32_t> ops,
               std::span<const std::int32_t> inputs);
  /// What was written down of all batches.
  std::vector<Batch> batches() const;
  std::vector<std::int32_t> last_read() const;
  /// A dropped value takes no memory from its last reader to `point`, if that is behind.
  void free_until(std::int32_t number, std::int32_t point);
  /// The op at `position` reads a value or its copy, or what a fusion makes that of: these
  /// live until then. Returns the first point at which reading it again may change anything:
  /// what was made is read as it was made, and what it is made of only lives longer.
  std::int32_t read(std::int32_t number, std::int32_t position, bool is_copy);
  /// The same where nothing of that was changed, and it lives until then anyway; else 0.
  std::int32_t end_as_before(std::int32_t number, std::int32_t position) const;
  /// The first point at which reading a value in memory may change anything.
  std::int32_t quiet_end(std::int32_t number) const;
  void read_copy(std::int32_t number, std::int32_t point);
  void read_original(std::int32_t number, std::int32_t point);
  /// Does an op, as it stands in the program, read the copy of an operand?
  bool reads_copy(std::int32_t op, std::int32_t operand) const {
    if (!states_.is_touched(operand)) return false;
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
  bool is_cloned(std::int32_t number) const {
    return states_.is_touched(number) && of(number).cloned > 0;
  }
  bool is_sent(std::int32_t number) const {
    return states_.is_touched(number) && of(number).sent >= 0;
  }
  void add(std::int32_t point, double bytes) {
    found_.change[std::min(point, block_.num_points)] += bytes;
  }

  ValueState& of(std::int32_t number) const { return states_.value(block_, number); }
  OpState& of_op(std::int32_t position) const { return states_.op(position); }

  const Block& block_;
  const CloneRules rules_;
  std::span<const Dropped> all_[2];
  States& states_;
  std::int32_t num_cloned_ = 0;
  std::int32_t cloned_before_ = 0;  ///< in the batches before the last one
  std::int32_t shortest_gap_ = 0;   ///< of those that the last batch bridges
  bool copies_anew_ = false;        ///< all that is fused
  std::int32_t searches_ = 0;
  Clones found_;
};

Builder::Builder(const Block& block, std::span<const Dropped> dropped,
                 std::span<const Dropped> sent, const CloneRules& rules, States& states)
    : block_(block), rules_(rules), all_{dropped, sent}, states_(states) {
  states.begin(block);
  for (std::size_t at = 0; at < dropped.size(); ++at) {
    of(dropped[at].number).dropped = static_cast<std::int32_t>(at);
    states_.touch(dropped[at].number);
  }
  for (std::size_t at = 0; at < sent.size(); ++at) {
    of(sent[at].number).sent = static_cast<std::int32_t>(at);
    states_.touch(sent[at].number);
  }
  found_.change.assign(block.num_points + 1, 0.0);
}

Clones Builder::build(bool with_batches) {
  std::vector<std::int32_t>& late = states_.late;
  for (const auto& part : all_) {
    for (const Dropped& one : part) {
      for (const std::int32_t position : block_.demanders[one.number]) {
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
  if (with_batches) {
    found_.batches = batches();
    found_.last_read = last_read();
  }
  return std::move(found_);
}

std::vector<std::int32_t> Builder::last_read() const {
  std::vector<std::int32_t> found(block_.values.size(), -1);
  for (auto op = static_cast<std::int32_t>(block_.ops.size()) - 1; op >= 0; --op) {
    const auto results = block_.results[op];
    const auto is_needed = [&](std::int32_t number) {
      return found[number] >= 0 || of(number).is_input;
    };
    if (!results.empty() && std::none_of(results.begin(), results.end(), is_needed)) continue;
    for (const std::int32_t operand : block_.operands[op]) {
      if (!reads_copy(op, operand)) found[operand] = std::max(found[operand], op);
    }
  }
  return found;
}

std::vector<Batch> Builder::batches() const {
  std::vector<Batch> found;
  std::size_t op = 0, input = 0;
  for (const auto& [position, ops, inputs] : states_.parts) {
    found.push_back({position,
                     {states_.ops.begin() + op, states_.ops.begin() + ops},
                     {states_.inputs.begin() + input, states_.inputs.begin() + inputs}});
    op = ops;
    input = inputs;
  }
  return found;
}

void Builder::serve(std::int32_t position) {
  std::vector<std::int32_t>& needed = of_op(position).needed;
  for (const std::int32_t number : block_.operands[position]) {
    if (needs_copy(number, position)) needed.push_back(number);
  }
  of_op(position).is_served = true;
  if (!needed.empty()) {
    const std::size_t first_op = states_.ops.size(), first_input = states_.inputs.size();
    cloned_before_ = num_cloned_;
    shortest_gap_ = never;
    for (const std::int32_t number : needed) {
      bridge(number, position);
      copy(number, position);
    }
    if (states_.ops.size() > first_op) {
      set_reach(position, std::span(states_.ops).subspan(first_op));
      account(position, std::span(states_.ops).subspan(first_op),
              std::span(states_.inputs).subspan(first_input));
    }
    states_.parts.push_back({position, states_.ops.size(), states_.inputs.size()});
  }
  for (const std::int32_t number : block_.operands[position]) {
    read(number, position, is_cloned(number));
  }
}

bool Builder::needs_copy(std::int32_t number, std::int32_t position) {
  if (!is_changed(number)) return false;
  if (is_cloned(number)) return true;
  const Value& value = block_.values[number];
  if (value.storage == Storage::stored) return is_gone(number, position);
  if (value.storage != Storage::fused || value.maker < 0) return false;
  ++searches_;
  of(number).seen = searches_;
  states_.stack.assign(1, number);
  while (!states_.stack.empty()) {
    const std::int32_t maker = block_.values[states_.stack.back()].maker;
    states_.stack.pop_back();
    for (const std::int32_t operand : block_.operands[maker]) {
      if (reads_copy(maker, operand) || of(operand).seen == searches_) continue;
      of(operand).seen = searches_;
      if (is_cloned(operand) && !of_op(maker).is_served) return true;
      const Storage storage = block_.values[operand].storage;
      if (storage == Storage::stored && is_gone(operand, position)) return true;
      if (storage == Storage::fused) states_.stack.push_back(operand);
    }
  }
  return false;
}

bool Builder::is_changed(std::int32_t number) const {
  if (states_.is_touched(number) || block_.values[number].has_many_sources) return true;
  const auto sources = block_.sources[number];
  return std::any_of(sources.begin(), sources.end(),
                     [&](std::int32_t source) { return states_.is_touched(source); });
}

bool Builder::is_gone(std::int32_t number, std::int32_t position) const {
  if (!states_.is_touched(number)) return false;
  const ValueState& state = of(number);
  const Dropped* one = state.dropped >= 0 ? &all_[0][state.dropped]
                       : state.sent >= 0  ? &all_[1][state.sent]
                                          : nullptr;
  return one && is_late(position, *one);
}

bool Builder::is_copied(std::int32_t number, std::int32_t position) const {
  const Value& value = block_.values[number];
  if (value.storage == Storage::kept || value.maker < 0 || is_sent(number)) return false;
  const Op& maker = block_.ops[value.maker];
  if (rules_.keep_parameters && (maker.gathers || value.is_parameter)) return false;
  if (value.storage == Storage::fused) return true;
  const std::int32_t dropped = of(number).dropped;
  if (dropped >= 0) return position > all_[0][dropped].early;
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

void Builder::bridge(std::int32_t number, std::int32_t position) {
  if (!states_.is_touched(number)) return;
  const ValueState& state = of(number);
  if (state.dropped < 0 && state.sent < 0) {
    // A fused one, of an earlier batch.
    if (is_cloned(number)) shortest_gap_ = std::min(shortest_gap_, state.reach);
    return;
  }
  const Dropped& one = state.sent < 0 ? all_[0][state.dropped] : all_[1][state.sent];
  const std::int32_t end = is_cloned(number) ? state.cloned_at : block_.ops[position].point;
  shortest_gap_ = std::min(shortest_gap_, end - block_.ops[std::max(one.early, 0)].point);
}

void Builder::set_reach(std::int32_t position, std::span<const std::int32_t> ops) {
  const std::int32_t point = block_.ops[position].point;
  for (const std::int32_t op : ops) {
    const std::int32_t since = point - block_.ops[op].point;
    for (const std::int32_t result : block_.results[op]) {
      of(result).reach = std::max(since, shortest_gap_);
    }
  }
}

bool Builder::has_copy(std::int32_t number, std::int32_t position) const {
  if (!is_cloned(number)) return false;
  if (block_.values[number].storage != Storage::fused) return true;
  return of(number).cloned > cloned_before_ || !(copies_anew_ || is_far(number, position));
}

void Builder::copy(std::int32_t number, std::int32_t position) {
  if (is_sent(number)) {
    use(number, position);
    return;
  }
  copies_anew_ = false;
  copies_anew_ = is_cloned(number) && !has_copy(number, position);
  // An op whose operands are ready stands as ~value.
  states_.stack.assign(1, number);
  while (!states_.stack.empty()) {
    const std::int32_t top = states_.stack.back();
    states_.stack.pop_back();
    const bool is_ready = top < 0;
    const std::int32_t current = is_ready ? ~top : top;
    if (has_copy(current, position)) continue;
    const std::int32_t op = block_.values[current].maker;
    if (is_ready) {
      states_.ops.push_back(op);
      ++num_cloned_;
      for (const std::int32_t result : block_.results[op]) {
        states_.touch(result);
        ValueState& state = of(result);
        state.cloned = num_cloned_;
        state.cloned_at = block_.ops[position].point;
        state.reader[1] = -1;
        state.quiet[1] = 0;
      }
      continue;
    }
    states_.stack.push_back(~current);
    for (const std::int32_t operand : block_.operands[op]) {
      if (block_.values[operand].storage == Storage::free) continue;
      bridge(operand, position);
      if (has_copy(operand, position)) {
        read(operand, position, true);
      } else if (is_copied(operand, position)) {
        states_.stack.push_back(operand);
      } else if (of(operand).input_of != position) {
        of(operand).input_of = position;
        states_.inputs.push_back(operand);
        const std::int32_t sent = of(operand).sent;
        if (sent >= 0 && position > all_[1][sent].early) use(operand, position);
      }
    }
  }
}

void Builder::account(std::int32_t position, std::span<const std::int32_t> ops,
                      std::span<const std::int32_t> inputs) {
  const std::int32_t point = block_.ops[position].point;
  for (const std::int32_t number : inputs) read_original(number, point);
  // A copy lives until the last copy that reads it, or for the time of its own.
  const auto num_ops = static_cast<std::int32_t>(ops.size());
  for (std::int32_t order = 0; order < num_ops; ++order) {
    const std::int32_t op = ops[order];
    for (const std::int32_t number : block_.operands[op]) of(number).last_use = order;
    for (const std::int32_t number : block_.results[op]) of(number).last_use = order;
  }
  double live = 0, most = 0;
  states_.ends_at.assign(num_ops, 0.0);
  for (std::int32_t order = 0; order < num_ops; ++order) {
    for (const std::int32_t result : block_.results[ops[order]]) {
      const Value& value = block_.values[result];
      if (value.storage != Storage::stored) continue;
      of(result).copy_end = std::max(value.end, point + 1);
      if (value.end > point) {  // it lives on, as it does without copies
        if (of(result).dropped >= 0) free_until(result, point);
        continue;
      }
      live += value.bytes;
      states_.ends_at[of(result).last_use] += value.bytes;
    }
    most = std::max(most, live);
    live -= states_.ends_at[order];
  }
  if (most > 0) {
    add(point, most);
    add(point + 1, -most);
  }
}

void Builder::free_until(std::int32_t number, std::int32_t point) {
  const Dropped& one = all_[0][of(number).dropped];
  const std::int32_t early = block_.ops[std::max(one.early, 0)].point + 1;
  of(number).end = std::max(early, of(number).read_end);
  add(of(number).end, -block_.values[number].bytes);
  add(point, block_.values[number].bytes);
}

std::int32_t Builder::read(std::int32_t number, std::int32_t position, bool is_copy) {
  const Value& value = block_.values[number];
  if (value.storage == Storage::free) return never;
  const std::int32_t point = block_.ops[position].point;
  if (!is_copy) {
    const std::int32_t end = end_as_before(number, position);
    if (end > 0) return end;
  }
  if (value.storage != Storage::fused || value.maker < 0) {
    if (of(number).reader[is_copy] != position) {
      of(number).reader[is_copy] = position;
      if (is_copy) {
        read_copy(number, point);
      } else {
        read_original(number, point);
      }
    }
    return is_copy ? of(number).copy_end : quiet_end(number);
  }
  if (of(number).quiet[is_copy] > point) return of(number).quiet[is_copy];
  if (of(number).reader[is_copy] == position) return of(number).quiet[is_copy];
  of(number).reader[is_copy] = position;
  std::int32_t quiet = never;
  for (const std::int32_t operand : block_.operands[value.maker]) {
    const bool reads =
        is_copy ? copy_reads_copy(number, operand) : reads_copy(value.maker, operand);
    quiet = std::min(quiet, read(operand, position, reads));
  }
  return of(number).quiet[is_copy] = quiet;
}

std::int32_t Builder::end_as_before(std::int32_t number, std::int32_t position) const {
  const std::int32_t point = block_.ops[position].point;
  std::int32_t end = never;
  const auto is_there = [&](std::int32_t one) {
    if (states_.is_touched(one)) return false;
    const Value& value = block_.values[one];
    if (value.storage == Storage::fused && value.maker >= 0) return !value.has_many_sources;
    if (value.end <= 0 || value.maker < 0 || !value.is_counted) return true;
    end = std::min(end, value.end);
    return value.end > point;
  };
  const auto sources = block_.sources[number];
  const bool are_there =
      is_there(number) && std::all_of(sources.begin(), sources.end(), is_there);
  return are_there ? end : 0;
}

std::int32_t Builder::quiet_end(std::int32_t number) const {
  const Value& value = block_.values[number];
  // When the copy of a dropped one is made its last reader counts.
  if (states_.is_touched(number) && of(number).dropped >= 0 && of(number).copy_end == 0) {
    return 0;
  }
  if (is_sent(number) || !value.is_counted || value.maker < 0 || of(number).end <= 0) {
    return never;
  }
  return of(number).end;
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
  if (is_sent(number) || !value.is_counted || value.maker < 0 || end <= 0 || end > point)
    return;
  add(end, value.bytes);
  add(point + 1, -value.bytes);
  of(number).end = point + 1;
}

/// Copies replace originals that nobody reads any more: these do not count.
double Builder::seconds_again() const {
  std::int32_t first = static_cast<std::int32_t>(block_.ops.size()), last = -1;
  for (const std::int32_t op : states_.ops) {
    ++of_op(op).copies;
    first = std::min(first, op);
    last = std::max(last, op);
  }
  for (const std::int32_t number : states_.inputs) of(number).is_input = true;
  for (const Dropped& one : all_[1]) of(one.number).is_input = true;
  const auto is_left = [&](std::int32_t number) {
    const auto& readers = block_.readers[number];
    return !of(number).is_input &&
           std::all_of(readers.begin(), readers.end(), [&](std::int32_t reader) {
             return of_op(reader).is_dead || reads_copy(reader, number);
           });
  };
  double seconds = 0;
  for (std::int32_t op = last; op >= first; --op) {
    const std::int32_t copies = of_op(op).copies;
    if (copies == 0) continue;
    const auto results = block_.results[op];
    of_op(op).is_dead = std::all_of(results.begin(), results.end(), is_left);
    // What is fused runs in each kernel that reads it, but is sent once.
    const std::int32_t runs = block_.ops[op].sends ? copies : 1;
    seconds += (runs - of_op(op).is_dead) * block_.ops[op].seconds;
  }
  return seconds;
}

}  // namespace

std::pair<std::int32_t, std::vector<std::int32_t>> anchors(const Block& block,
                                                           const Clones& clones,
                                                           std::int32_t reader,
                                                           std::int32_t newest,
                                                           std::int32_t below) {
  for (std::int32_t position = below - 1; position > newest; --position) {
    std::vector<std::int32_t> found;
    for (const std::int32_t number : block.results[position]) {
      const Value& value = block.values[number];
      const bool is_there = value.storage == Storage::stored || value.storage == Storage::kept;
      if (is_there && value.is_counted && clones.last_read[number] >= reader) {
        found.push_back(number);
      }
    }
    if (!found.empty()) return {position, std::move(found)};
  }
  return {newest, {}};
}

Clones clones_for(const Block& block, std::span<const Dropped> dropped,
                  std::span<const Dropped> sent, const CloneRules& rules, bool with_batches) {
  static thread_local States states;
  return Builder(block, dropped, sent, rules, states).build(with_batches);
}

}  // namespace autoshard::recomputation
