#include "memory/layouts.h"

#include <cstddef>

#include "memory/orders.h"

namespace autoshard {
namespace {

/// What an elementwise op reads in another order than that of its result.
void find_copies(const ProgramIndex& index, const Orders& orders, std::int32_t op,
                 Layouts& found) {
  const std::int32_t made = index.op(op).results[0];
  for (std::int32_t v : orders.sources_of(op)) {
    if (orders.of(v) == orders.of(made)) continue;
    const std::int32_t first = orders.chain_of(v).first;
    if (first != no_op) found.copies.push_back(index.op(first).results[0]);
  }
}

/// What of the program's arguments an elementwise op reads beside the result of a batch of
/// products that lies in another order.
void find_copied_arguments(const ProgramIndex& index, const Aliases& aliases,
                           const Orders& orders, std::int32_t op, Layouts& found) {
  const std::int32_t made = index.op(op).results[0];
  if (!orders.is_of_batch(made)) return;
  for (std::int32_t v : orders.sources_of(op)) {
    if (orders.is_of_batch(v) || orders.of(v) == orders.of(made)) continue;
    const std::int32_t source = aliases.of(orders.chain_of(v).source);
    if (!index.is_argument(source) || index.elements(source) != index.elements(made)) continue;
    found.copied_arguments[source].push_back(op);
  }
}

bool updates_in_place(const ProgramIndex& index, std::int32_t op) {
  const auto& operands = index.op(op).operands;
  return index.rule(op).in_place_operand == 0 && operands.size() > 1 &&
         operands[1] != no_value;
}

/// By value: an argument or result that nobody wants row by row.
std::vector<bool> in_any_order(const ProgramIndex& index, const Aliases& aliases) {
  std::vector<bool> found(index.num_values, false);
  for (const std::int32_t v : index.program.any_order) found[aliases.of(v)] = true;
  return found;
}

}  // namespace

Layouts layouts_of(const ProgramIndex& index, const Aliases& aliases, const Layout& layout) {
  Layouts found;
  found.is_transposed.assign(index.num_values, false);
  Orders orders(index, aliases, layout.ordered_batches);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const auto& results = index.op(i).results;
    if (results.empty() || results[0] == no_value || index.is_free(results[0])) continue;
    orders.follow(i);
    if (index.rule(i).work == Work::elementwise) {
      if (layout.row_major_matmuls) find_copies(index, orders, i, found);
      find_copied_arguments(index, aliases, orders, i, found);
    } else if (updates_in_place(index, i) && !orders.of(index.op(i).operands[1]).empty()) {
      found.is_transposed[aliases.of(results[0])] = true;
    }
  }
  const std::vector<bool> is_in_any_order = in_any_order(index, aliases);
  std::erase_if(found.copied_arguments,
                [&](const auto& copied) { return is_in_any_order[copied.first]; });
  for (const std::int32_t result : index.program.results) {
    if (result == no_value || index.is_argument(result)) continue;
    if (is_in_any_order[aliases.of(result)]) continue;
    if (!orders.is_of_batch(result) || orders.of(result).empty()) continue;
    found.copied_results.push_back(aliases.of(result));
  }
  return found;
}

}  // namespace autoshard
