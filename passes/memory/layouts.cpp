#include "memory/layouts.h"

#include <cstddef>

#include "memory/orders.h"

namespace autoshard {
namespace {

/// What an elementwise op reads in another order than that of its result.
void find_copies(const ProgramIndex& index, const Aliases& aliases, const Layout& layout,
                 const Orders& orders, std::int32_t op, Layouts& found) {
  const std::int32_t made = index.op(op).results[0];
  const std::vector<std::int32_t> sources = orders.sources_of(op);
  for (std::int32_t v : sources) {
    if (orders.of(v) == orders.of(made)) continue;
    const Chain chain = orders.chain_of(v);
    if (layout.row_major_matmuls && chain.first != no_op) {
      found.copies.push_back(index.op(chain.first).results[0]);
    }
    if (!layout.states_as_gradients) continue;
    const std::int32_t met = aliases.of(orders.chain_of(orders.oldest(sources)).source);
    if (index.is_argument(met)) {
      found.conflicts.push_back({aliases.of(chain.source), met, op});
    }
  }
}

bool updates_in_place(const ProgramIndex& index, std::int32_t op) {
  const auto& operands = index.op(op).operands;
  return index.rule(op).in_place_operand == 0 && operands.size() > 1 &&
         operands[1] != no_value;
}

}  // namespace

Layouts layouts_of(const ProgramIndex& index, const Aliases& aliases, const Layout& layout) {
  Layouts found;
  found.is_transposed.assign(index.num_values, false);
  Orders orders(index, aliases);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const auto& results = index.op(i).results;
    if (results.empty() || results[0] == no_value || index.is_free(results[0])) continue;
    orders.follow(i);
    if (index.rule(i).work == Work::elementwise) {
      find_copies(index, aliases, layout, orders, i, found);
    } else if (updates_in_place(index, i) && !orders.of(index.op(i).operands[1]).empty()) {
      found.is_transposed[aliases.of(results[0])] = true;
    }
  }
  return found;
}

}  // namespace autoshard
