#include "memory/matmul_orders.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/orders.h"
#include "model/products.h"

namespace autoshard {
namespace {

/// Whether an operand lies as a matmul reads it: what is batched in front, then what is
/// contracted and what is kept, one behind the other, each in the order of the rule.
bool is_in_order(const Rule& rule, const RuleTensor& operand, const Order& order) {
  const std::vector<std::int32_t> result = factors_in(rule.results[0], {});
  const std::vector<std::int32_t> first = factors_in(rule.operands[0], {});
  const auto place = [&](std::int32_t factor, Role role) {
    const auto& in = role == Role::contracted ? first : result;
    return std::find(in.begin(), in.end(), factor) - in.begin();
  };
  std::vector<bool> seen(3, false);
  std::int32_t last = -1;
  for (std::int32_t factor : factors_in(operand, order)) {
    if (rule.factors[factor].size == 1) continue;
    const Role role = role_of(rule, factor);
    const bool goes_on = last >= 0 && role_of(rule, last) == role;
    if (goes_on && place(last, role) > place(factor, role)) return false;
    const auto number = static_cast<std::size_t>(role);
    const bool is_late = role == Role::batch && last >= 0;
    if (!goes_on && (seen[number] || is_late)) return false;
    seen[number] = true;
    last = factor;
  }
  return true;
}

/// Whether the result of a view that costs nothing has an order: each of its dims is one
/// piece of the operand's memory.
bool keeps_pieces(const Rule& rule, const Order& order) {
  std::vector<std::int32_t> factors;
  for (std::int32_t f : factors_in(rule.operands[0], order)) {
    if (rule.factors[f].size > 1) factors.push_back(f);
  }
  for (const auto& dim : rule.results[0].dims) {
    auto last = factors.end();
    for (std::int32_t f : dim) {
      const auto found = std::find(factors.begin(), factors.end(), f);
      if (found == factors.end()) continue;
      if (last != factors.end() && found != last + 1) return false;
      last = found;
    }
  }
  return true;
}

}  // namespace

std::vector<bool> written_views(const ProgramIndex& index, const Aliases& aliases,
                                const Fusion& rules) {
  std::vector<bool> is_written(index.num_ops, false);
  // By value: the view on the way to it whose result has no order.
  std::vector<std::int32_t> broken(index.num_values, no_op);
  Orders orders(index, aliases);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Op& op = index.op(i);
    const Rule& rule = index.rule(i);
    if (op.results.empty() || op.results[0] == no_value) continue;
    orders.follow(i);
    if (aliases.is_bitcast[i]) {
      const std::int32_t read = aliases.before_constraints(op.operands[0]);
      const bool breaks = broken[read] == no_op && !keeps_pieces(rule, orders.of(read));
      broken[op.results[0]] = breaks ? i : broken[read];
    }
    if (rule.work != Work::matmul || rule.has_workspace) continue;
    if (is_summed(rule, rules.summed_products)) continue;
    if (!has_batch(rule) && !is_split(rule, rules.split_products)) continue;
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      if (op.operands[k] == no_value) continue;
      const std::int32_t read = aliases.before_constraints(op.operands[k]);
      std::int32_t view = broken[read];
      if (view == no_op && !is_in_order(rule, rule.operands[k], orders.of(read))) {
        view = index.producer[read];
      }
      if (view != no_op && aliases.is_bitcast[view]) is_written[view] = true;
    }
  }
  return is_written;
}

}  // namespace autoshard
