#include "memory/aliases.h"

#include <cstddef>

namespace autoshard {
namespace {

/// More than one value flows in.
constexpr std::int32_t several = -2;

/// The end of the chain of aliases that `value` begins, which becomes shorter on the way.
std::int32_t end_of(std::vector<std::int32_t>& alias, std::int32_t value) {
  while (alias[value] != value) {
    alias[value] = alias[alias[value]];
    value = alias[value];
  }
  return value;
}

/// Whether the result of a view has the dims of its operand in another order.
bool transposes(const Rule& rule) {
  const auto order = [&rule](const RuleTensor& tensor) {
    std::vector<std::int32_t> factors;
    for (const std::vector<std::int32_t>& dim : tensor.dims) {
      for (std::int32_t f : dim) {
        if (rule.factors[f].size > 1) factors.push_back(f);
      }
    }
    return factors;
  };
  return order(rule.operands[0]) != order(rule.results[0]);
}

/// By value: whether loops read it in every trip as it is.
std::vector<bool> entering_loops(const Program& program) {
  std::vector<bool> enters(program.values.size(), false);
  std::vector<bool> is_passed_on(program.values.size(), false);
  for (const Loop& loop : program.loops) {
    for (std::size_t k = 0; k < loop.carried.size(); ++k) {
      const std::int32_t v = loop.carried[k];
      is_passed_on[v] = loop.yielded[k] == no_value || loop.yielded[k] == v;
    }
  }
  for (const Join& join : program.joins) {
    if (is_passed_on[join.target]) enters[join.source] = true;
  }
  return enters;
}

/// A view becomes its operand.
void alias_bitcasts(const ProgramIndex& index, const Layout& layout,
                    const std::vector<bool>& is_written, Aliases& aliases) {
  const std::vector<bool> enters_loop = entering_loops(index.program);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Op& op = index.op(i);
    const bool is_view = index.rule(i).work == Work::view && op.operands.size() == 1 &&
                         op.results.size() == 1 && op.operands[0] != no_value &&
                         op.results[0] != no_value &&
                         index.bytes[op.operands[0]] == index.bytes[op.results[0]];
    if (!is_view || (!is_written.empty() && is_written[i])) continue;
    const std::int32_t operand = op.operands[0], result = op.results[0];
    const bool is_copied = layout.row_major_arguments && enters_loop[result] &&
                           transposes(index.rule(i)) &&
                           index.is_argument(end_of(aliases.alias, operand));
    if (is_copied) continue;
    aliases.is_bitcast[i] = true;
    aliases.alias[result] = operand;
  }
}

/// By value: how many ops and joins read it.
std::vector<std::int32_t> count_readers(const Program& program) {
  std::vector<std::int32_t> readers(program.values.size(), 0);
  for (const Op& op : program.ops) {
    for (std::int32_t v : op.operands) {
      if (v != no_value) ++readers[v];
    }
  }
  for (const Join& join : program.joins) ++readers[join.source];
  return readers;
}

/// By value that no op makes and that does not change from trip to trip: what flows into it if
/// that is one value only, `several` or `no_value`.
std::vector<std::int32_t> only_sources(const ProgramIndex& index) {
  std::vector<std::int32_t> source(index.num_values, no_value);
  for (const Join& join : index.program.joins) {
    const std::int32_t t = join.target;
    if (index.is_argument(t) || index.is_carried(t)) continue;
    source[t] = source[t] == no_value || source[t] == join.source ? join.source : several;
  }
  return source;
}

/// What only one value flows into becomes that value.
void alias_joins(const ProgramIndex& index, Aliases& aliases) {
  const std::vector<std::int32_t> source = only_sources(index);
  const std::vector<std::int32_t> readers = count_readers(index.program);
  std::vector<bool> is_in_loop(index.num_values, false);
  for (const Loop& loop : index.program.loops) {
    for (std::int32_t v : loop.carried) is_in_loop[v] = true;
  }
  std::vector<std::int32_t>& alias = aliases.alias;
  for (std::size_t v = 0; v < index.num_values; ++v) {
    const auto t = static_cast<std::int32_t>(v);
    if (source[t] < 0 || index.producer[t] != no_op) continue;
    if (end_of(alias, source[t]) == t) continue;
    alias[t] = source[t];
    // The plan may cut the two differently: what is read counts, and how arguments arrive.
    const std::int32_t first = end_of(alias, source[t]);
    if (index.is_argument(first) || is_in_loop[t] || readers[source[t]] > 1) continue;
    aliases.listed_as[first] = t;
  }
}

void find_taken_over(const ProgramIndex& index, Aliases& aliases) {
  std::vector<std::int32_t> times(index.num_values, 0);
  for (const CarriedSlot& slot : index.slots) {
    aliases.yielded.push_back(aliases.of(slot.yielded));
    ++times[aliases.yielded.back()];
  }
  for (std::size_t s = 0; s < index.slots.size(); ++s) {
    const std::int32_t y = aliases.yielded[s], loop = index.slots[s].loop;
    const bool is_inner_result = index.is_carried(y) && index.slot_of(y).loop != loop &&
                                 index.loops.contains(loop, index.slot_of(y).loop);
    const bool is_made_inside =
        index.producer[y] != no_op &&
        index.loops.contains(loop, index.loops.of_op(index.producer[y]));
    aliases.is_taken_over.push_back(times[y] == 1 && !index.is_free(y) &&
                                    (is_inner_result || is_made_inside));
  }
}

void find_constraints(const ProgramIndex& index, Aliases& aliases) {
  aliases.unconstrained.assign(index.num_values, no_value);
  for (const Join& join : index.program.joins) {
    const std::int32_t t = join.target;
    if (index.producer[t] != no_op || index.is_argument(t) || index.is_carried(t)) continue;
    if (aliases.of(t) != t && aliases.of(t) == aliases.of(join.source)) {
      aliases.unconstrained[t] = join.source;
    }
  }
}

}  // namespace

Aliases aliases_of(const ProgramIndex& index, const Layout& layout,
                   const std::vector<bool>& is_written) {
  Aliases aliases;
  aliases.is_bitcast.assign(index.num_ops, false);
  for (std::size_t v = 0; v < index.num_values; ++v) {
    aliases.alias.push_back(static_cast<std::int32_t>(v));
  }
  aliases.listed_as = aliases.alias;
  alias_bitcasts(index, layout, is_written, aliases);
  alias_joins(index, aliases);
  for (std::size_t v = 0; v < index.num_values; ++v) {
    aliases.alias[v] = end_of(aliases.alias, static_cast<std::int32_t>(v));
  }
  find_taken_over(index, aliases);
  find_constraints(index, aliases);
  return aliases;
}

std::int32_t buffer_read(const ProgramIndex& index, const Aliases& aliases, std::int32_t value,
                         std::int32_t loop) {
  while (index.is_carried(value)) {
    const std::int32_t slot = index.slot[value];
    const std::int32_t inside = index.slots[slot].loop;
    if (!aliases.is_taken_over[slot] || index.loops.contains(inside, loop)) return value;
    value = aliases.yielded[slot];
    loop = inside;
  }
  return value;
}

}  // namespace autoshard
