#include "memory/uses.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace autoshard {

namespace {

/// From the last op to the first: those whose results no later one needs. Who reads a free
/// value makes it.
std::vector<bool> dead_ops(const ProgramIndex& index, const Aliases& aliases,
                           const std::vector<bool>& must_store) {
  std::vector<bool> is_dead(index.num_ops, false), is_needed = must_store;
  for (std::int32_t i = index.num_ops; i-- > 0;) {
    if (aliases.is_bitcast[i]) continue;
    const Op& op = index.op(i);
    is_dead[i] = op.is_unread ||
                 std::none_of(op.results.begin(), op.results.end(),
                              [&](std::int32_t v) { return v == no_value || is_needed[v]; });
    if (is_dead[i]) continue;
    for (std::int32_t v : op.operands) {
      if (v != no_value && !index.is_free(v)) is_needed[aliases.of(v)] = true;
    }
  }
  return is_dead;
}

}  // namespace

Uses uses_of(const ProgramIndex& index, const Aliases& aliases, const LiveOuts& live_outs,
             const std::vector<std::int32_t>& copies) {
  Uses uses;
  uses.must_store.assign(index.num_values, false);
  for (const Join& join : index.program.joins) {
    const std::int32_t source = aliases.of(join.source);
    if (source != aliases.of(join.target)) uses.must_store[source] = true;
  }
  for (const auto& [value, argument] : live_outs.argument) uses.must_store[value] = true;
  for (std::int32_t value : live_outs.copies) uses.must_store[value] = true;
  for (std::int32_t value : copies) uses.must_store[value] = true;
  uses.is_dead = dead_ops(index, aliases, uses.must_store);
  std::vector<std::pair<std::int32_t, Reader>> readers;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (aliases.is_bitcast[i] || uses.is_dead[i]) continue;
    const auto& operands = index.op(i).operands;
    for (std::size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == no_value) continue;
      const std::int32_t v = aliases.of(operands[k]);
      if (!index.is_free(v)) readers.push_back({v, {i, static_cast<std::int32_t>(k)}});
    }
  }
  uses.readers = Lists<Reader>(index.num_values, std::move(readers));
  return uses;
}

}  // namespace autoshard
