#include "memory/uses.h"

#include <cstddef>
#include <utility>

namespace autoshard {

Uses uses_of(const ProgramIndex& index, const Aliases& aliases, const LiveOuts& live_outs) {
  Uses uses;
  uses.must_store.assign(index.num_values, false);
  for (const Join& join : index.program.joins) {
    const std::int32_t source = aliases.of(join.source);
    if (source != aliases.of(join.target)) uses.must_store[source] = true;
  }
  for (const auto& [value, argument] : live_outs.argument) uses.must_store[value] = true;
  for (std::int32_t value : live_outs.copies) uses.must_store[value] = true;
  std::vector<std::pair<std::int32_t, Reader>> readers;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (aliases.is_bitcast[i]) continue;
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
