#include "memory/live_outs.h"

#include <cstddef>

namespace autoshard {
namespace {

/// Adds `value`, which leaves in the buffer of `argument`; `no_value`: in one of its own.
void add(const ProgramIndex& index, std::int32_t value, std::int32_t argument,
         LiveOuts& live_outs) {
  const bool needs_copy = index.is_free(value) || index.is_argument(value);
  if (!needs_copy && live_outs.argument.try_emplace(value, argument).second) return;
  if (argument == no_value) live_outs.copies.push_back(value);
}

/// XLA gives an argument that is donated without a word on which result takes its buffer to
/// one of equal type. `is_result`: by value, whether an argument becomes a result.
void take_donors(const ProgramIndex& index, const Aliases& aliases,
                 const std::vector<bool>& is_result, LiveOuts& live_outs) {
  const Program& program = index.program;
  std::multimap<std::int32_t, std::int32_t> donors;
  for (const Argument& argument : program.arguments) {
    if (argument.value != no_value && argument.is_donated && !is_result[argument.value]) {
      donors.emplace(program.values[argument.value].type, argument.value);
    }
  }
  for (std::int32_t r : program.results) {
    if (r == no_value || index.is_argument(r)) continue;
    const auto leaving = live_outs.argument.find(aliases.of(r));
    const auto donor = donors.find(program.values[r].type);
    if (leaving == live_outs.argument.end() || leaving->second != no_value ||
        donor == donors.end()) {
      continue;
    }
    leaving->second = donor->second;
    donors.erase(donor);
  }
}

}  // namespace

LiveOuts live_outs_of(const ProgramIndex& index, const Aliases& aliases) {
  const Program& program = index.program;
  std::vector<std::int32_t> source(index.num_values, no_value);
  for (const Join& join : program.joins) {
    if (index.is_argument(join.target)) source[join.target] = aliases.of(join.source);
  }
  LiveOuts live_outs;
  std::vector<bool> is_result(index.num_values, false);
  for (std::int32_t r : program.results) {
    if (r == no_value) continue;
    if (!index.is_argument(r)) {
      add(index, aliases.of(r), no_value, live_outs);
    } else if (!is_result[r]) {
      is_result[r] = true;
      const bool is_donated = program.arguments[index.argument[r]].is_donated;
      const std::int32_t leaves = source[r] == no_value ? r : source[r];
      if (source[r] != no_value || !is_donated) {
        add(index, leaves, is_donated ? r : no_value, live_outs);
      }
    }
  }
  take_donors(index, aliases, is_result, live_outs);
  return live_outs;
}

}  // namespace autoshard
