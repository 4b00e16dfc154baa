#include "memory/live_ranges.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "memory/in_place.h"

namespace autoshard {
namespace {

LiveRange clipped(LiveRange range) { return range.is_empty() ? LiveRange{} : range; }

/// Values that ops make begin with their root, results of conditionals with a branch, carried
/// values with their loop.
std::vector<LiveRange> beginnings(const FusedProgram& fused, const OpOrder& order) {
  const ProgramIndex& index = fused.index;
  std::vector<LiveRange> live(index.num_values);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (!fused.fusions.is_root(i)) continue;
    for (std::int32_t v : index.op(i).results) {
      if (v != no_value && !index.is_free(v)) live[v] = {order.point[i], order.point[i] + 1};
    }
  }
  for (const Join& join : index.program.joins) {
    const std::int32_t t = fused.aliases.of(join.target);
    if (index.producer[t] == no_op && !index.is_argument(t)) {
      live[t].first = index.num_points - 1;
    }
  }
  for (std::size_t s = 0; s < index.slots.size(); ++s) {
    const LiveRange& loop = order.loops[index.slots[s].loop];
    live[index.slots[s].carried] = {loop.first,
                                    fused.aliases.is_taken_over[s] ? loop.first : loop.last};
  }
  return live;
}

/// Constants of one type that loops of one body begin with are written by one kernel, before
/// the first of these.
void begin_with_fills(const FusedProgram& fused, std::vector<LiveRange>& live) {
  const ProgramIndex& index = fused.index;
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> alike;
  for (const Join& join : index.program.joins) {
    if (!index.is_free(join.source) || !index.is_carried(join.target)) continue;
    if (join.source == fused.aliases.yielded[index.slot[join.target]]) continue;
    const std::int32_t home = index.loops.parent(index.slot_of(join.target).loop);
    alike[{home, index.program.values[join.target].type}].push_back(join.target);
  }
  for (const auto& [of, values] : alike) {
    std::int32_t first = index.num_points;
    for (std::int32_t v : values) first = std::min(first, live[v].first);
    for (std::int32_t v : values) live[v].first = first;
  }
}

/// A value lives until the last fusion has read it.
void end_behind_reads(const FusedProgram& fused, const OpOrder& order,
                      std::vector<LiveRange>& live) {
  const ProgramIndex& index = fused.index;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    for (const Read& read : in(fused.reads.by_root, i)) {
      std::int32_t& last = live[read.value].last;
      last = std::max(last, order.end_of_read(index.loops, order.point[i],
                                              index.loops.of_op(i), index.home(read.value)));
    }
  }
}

/// What flows into a loop lives until it begins, what a body yields until the trip ends.
/// Branch results are where the branches put them.
void join_at(const FusedProgram& fused, const OpOrder& order, const Join& join,
             std::vector<LiveRange>& live) {
  const ProgramIndex& index = fused.index;
  const std::int32_t s = fused.aliases.of(join.source), t = fused.aliases.of(join.target);
  if (s == t || index.is_free(s) || index.is_argument(t)) return;
  if (!index.is_carried(t)) {
    LiveRange& result = live[t];
    result.first =
        std::min(result.first, index.is_argument(s) ? index.num_points : live[s].first);
    result.last = std::max(result.last, result.first + 1);
    if (in(fused.uses.readers, s).empty() && !index.is_argument(s)) live[s] = {};
    return;
  }
  const std::int32_t loop = index.slot_of(t).loop;
  const bool is_yield = s == fused.aliases.yielded[index.slot[t]];
  const std::int32_t reader = is_yield ? loop : index.loops.parent(loop);
  std::int32_t& last = live[buffer_read(index, fused.aliases, s, reader)].last;
  last = std::max(last, is_yield ? order.loops[loop].last : order.loops[loop].first);
}

/// `value` is a result of the program: it has a buffer of its own from end to end, or, from
/// its last reader on, that of a donated argument.
void leave(const FusedProgram& fused, const OpOrder& order, std::int32_t value,
           std::int32_t argument, LiveRanges& ranges) {
  const ProgramIndex& index = fused.index;
  std::vector<LiveRange>& live = ranges.of_value;
  const LiveRange whole{0, index.num_points};
  const std::int32_t last_read = argument == no_value ? 0 : live[argument].last;
  LiveRange& own = live[value];
  if (argument == no_value) ranges.made[value] = own.first;
  if (!index.is_carried(value)) {
    own = argument == no_value ? whole : clipped({own.first, last_read});
    return;
  }
  const std::int32_t slot = index.slot[value];
  if (argument != no_value && last_read > order.loops[index.slots[slot].loop].first) {
    ranges.copied_results.push_back(value);
    return;
  }
  if (fused.aliases.is_taken_over[slot]) {
    LiveRange& made = live[buffer_read(index, fused.aliases, value, no_loop)];
    made = clipped({made.first, own.last});
  }
  own = argument == no_value ? whole : LiveRange{};
}

}  // namespace

LiveRanges live_ranges_of(const FusedProgram& fused, const OpOrder& order,
                          const Buffers& rules) {
  const Program& program = fused.index.program;
  LiveRanges ranges;
  std::vector<LiveRange>& live = ranges.of_value;
  live = beginnings(fused, order);
  if (rules.filled_stacks) begin_with_fills(fused, live);
  end_behind_reads(fused, order, live);
  for (const Join& join : program.joins) join_at(fused, order, join, live);
  end_where_overwritten(fused, order, rules, live);
  for (std::int32_t v : program.early) live[fused.aliases.of(v)].first = 0;
  for (const auto& [value, argument] : fused.live_outs.argument) {
    leave(fused, order, value, argument, ranges);
  }
  for (const Argument& argument : program.arguments) {
    if (argument.value != no_value) live[argument.value] = {0, fused.index.num_points};
  }
  return ranges;
}

std::map<std::int32_t, GatheredResult> gathered_results(const FusedProgram& fused,
                                                        const OpOrder& order) {
  const ProgramIndex& index = fused.index;
  std::vector<LiveRange> read(index.num_values, {index.num_points, 0});
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    for (const Read& one : in(fused.reads.by_root, i)) {
      LiveRange& range = read[one.value];
      const std::int32_t end = order.end_of_read(index.loops, order.point[i],
                                                 index.loops.of_op(i), index.home(one.value));
      range = {std::min(range.first, order.point[i]), std::max(range.last, end)};
    }
  }
  std::map<std::int32_t, GatheredResult> found;
  for (const auto& [value, argument] : fused.live_outs.argument) {
    const std::int32_t producer = index.producer[value];
    if (argument == no_value || producer == no_op || read[argument].is_empty()) continue;
    found[value] = {read[argument], {order.point[producer] + 1, index.num_points}};
  }
  return found;
}

}  // namespace autoshard
