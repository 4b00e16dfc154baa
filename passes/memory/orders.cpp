#include "memory/orders.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "model/products.h"

namespace autoshard {

std::vector<std::int32_t> factors_in(const RuleTensor& tensor, const Order& order) {
  std::vector<std::int32_t> factors;
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    const auto& dim = tensor.dims[order.empty() ? d : order[d]];
    factors.insert(factors.end(), dim.begin(), dim.end());
  }
  return factors;
}

bool Orders::is_broadcast(std::int32_t value) const {
  const std::int32_t op = index_.producer[value];
  return op != no_op && index_.rule(op).work == Work::view && !aliases_.is_bitcast[op];
}

/// The order of its result if nothing is copied: views keep the order of their operand. Dims
/// of size 1 are anywhere.
Order Orders::order_after(std::int32_t op) const {
  const Rule& rule = index_.rule(op);
  const std::vector<std::int32_t> factors =
      factors_in(rule.operands[0], of(index_.op(op).operands[0]));
  // When each factor comes, in the operand's memory.
  std::vector<std::int32_t> position(rule.factors.size(), -1);
  std::int32_t next = 0;
  for (std::int32_t f : factors) position[f] = next++;
  const auto& result = rule.results[0].dims;
  const auto& sizes = index_.program.types[rule.results[0].type].dims;
  const auto place = [&](std::int32_t d) {
    return result[d].empty() ? -1 : position[result[d][0]];
  };
  Order order(result.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t x, std::int32_t y) { return place(x) < place(y); });
  // Row by row but for dims of size 1 is row by row.
  std::int32_t last = -1;
  for (std::int32_t d : order) {
    if (sizes[d] == 1) continue;
    if (d < last) return order;
    last = d;
  }
  return {};
}

std::vector<std::int32_t> Orders::sources_of(std::int32_t op) const {
  std::vector<std::int32_t> sources;
  for (std::int32_t v : index_.op(op).operands) {
    if (v != no_value && !index_.is_free(v) && !is_broadcast(v)) {
      sources.push_back(aliases_.before_constraints(v));
    }
  }
  return sources;
}

std::int32_t Orders::oldest(const std::vector<std::int32_t>& values) const {
  const auto age = [&](std::int32_t v) { return index_.producer[chain_of(v).source]; };
  return *std::min_element(values.begin(), values.end(),
                           [&](std::int32_t a, std::int32_t b) { return age(a) < age(b); });
}

Chain Orders::chain_of(std::int32_t value) const {
  Chain chain{value, no_op};
  for (;;) {
    chain.source = aliases_.before_constraints(chain.source);
    const std::int32_t op = index_.producer[chain.source];
    const bool goes_on =
        op != no_op && (aliases_.is_bitcast[op] || index_.rule(op).work == Work::elementwise);
    if (!goes_on) return chain;
    std::int32_t source = no_value;
    for (std::int32_t v : index_.op(op).operands) {
      if (v == no_value || index_.is_free(v) || is_broadcast(v)) continue;
      if (source != no_value && source != v) return chain;
      source = v;
    }
    if (source == no_value) return chain;
    if (!aliases_.is_bitcast[op]) chain.first = op;
    chain.source = source;
  }
}

void Orders::follow(std::int32_t op) {
  const auto& results = index_.op(op).results;
  if (results.empty() || results[0] == no_value || index_.is_free(results[0])) return;
  Order& made = orders_[results[0]];
  if (aliases_.is_bitcast[op]) {
    made = order_after(op);
    is_of_batch_[results[0]] = is_of_batch(index_.op(op).operands[0]);
  } else if (index_.rule(op).work == Work::elementwise) {
    const std::vector<std::int32_t> sources = sources_of(op);
    if (sources.empty()) return;
    const auto of_batch = std::find_if(sources.begin(), sources.end(),
                                       [&](std::int32_t v) { return is_of_batch_[v]; });
    if (of_batch != sources.end()) {
      made = orders_[*of_batch];
      is_of_batch_[results[0]] = true;
      return;
    }
    const bool are_alike = std::all_of(sources.begin(), sources.end(), [&](std::int32_t v) {
      return orders_[v] == orders_[sources[0]];
    });
    made = orders_[are_alike ? sources[0] : oldest(sources)];
  } else if (keeps_batches_ && index_.rule(op).work == Work::matmul) {
    is_of_batch_[results[0]] = has_batch(index_.rule(op));
  }
}

}  // namespace autoshard
