#include "memory/layouts.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace autoshard {
namespace {

/// A permutation of dims, outermost first; empty: row by row.
using Order = std::vector<std::int32_t>;

/// How one stored value of as many elements becomes another, by elementwise ops and views.
struct Chain {
  std::int32_t source;
  /// The first elementwise op, or `no_op`.
  std::int32_t first;
};

class OrderAnalysis {
 public:
  OrderAnalysis(const ProgramIndex& index, const Aliases& aliases, const Layout& layout)
      : index_(index), aliases_(aliases), layout_(layout), orders_(index.num_values) {
    found_.is_transposed.assign(index.num_values, false);
  }

  Layouts run() {
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      const Op& op = index_.op(i);
      if (op.results.empty() || op.results[0] == no_value || index_.is_free(op.results[0])) {
        continue;
      }
      if (index_.rule(i).work == Work::elementwise) {
        visit_elementwise(i);
      } else {
        visit_other(i);
      }
    }
    return std::move(found_);
  }

 private:
  /// Made by repeating fewer elements: a value without an order of its own.
  bool is_broadcast(std::int32_t value) const {
    const std::int32_t op = index_.producer[value];
    return op != no_op && index_.rule(op).work == Work::view && !aliases_.is_bitcast[op];
  }

  Order order_after(std::int32_t op) const;
  Chain chain_of(std::int32_t value) const;
  void visit_other(std::int32_t i);
  void visit_elementwise(std::int32_t i);

  const ProgramIndex& index_;
  const Aliases& aliases_;
  const Layout& layout_;
  std::vector<Order> orders_;
  std::vector<std::int32_t> sources_;
  Layouts found_;
};

/// The order of the result of `op`, which is no elementwise op, if nothing is copied. Views
/// keep the order of their operand. Dims of size 1 are anywhere.
Order OrderAnalysis::order_after(std::int32_t op) const {
  const Rule& rule = index_.rule(op);
  if (rule.work != Work::view || !aliases_.is_bitcast[op]) return {};
  const std::int32_t operand = aliases_.before_constraints(index_.op(op).operands[0]);
  // When each factor comes, in the operand's memory.
  std::vector<std::int32_t> position(rule.factors.size(), -1);
  const auto& dims = rule.operands[0].dims;
  std::int32_t next = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    for (std::int32_t f : dims[orders_[operand].empty() ? d : orders_[operand][d]]) {
      position[f] = next++;
    }
  }
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

Chain OrderAnalysis::chain_of(std::int32_t value) const {
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

void OrderAnalysis::visit_other(std::int32_t i) {
  const Op& op = index_.op(i);
  orders_[op.results[0]] = order_after(i);
  const bool updates = index_.rule(i).in_place_operand == 0 && op.operands.size() > 1 &&
                       op.operands[1] != no_value;
  if (updates && !orders_[aliases_.before_constraints(op.operands[1])].empty()) {
    found_.is_transposed[aliases_.of(op.results[0])] = true;
  }
}

void OrderAnalysis::visit_elementwise(std::int32_t i) {
  const Op& op = index_.op(i);
  Order& made = orders_[op.results[0]];
  sources_.clear();
  for (std::int32_t v : op.operands) {
    if (v != no_value && !index_.is_free(v) && !is_broadcast(v)) {
      sources_.push_back(aliases_.before_constraints(v));
    }
  }
  if (sources_.empty()) return;
  const bool are_alike = std::all_of(sources_.begin(), sources_.end(), [&](std::int32_t v) {
    return orders_[v] == orders_[sources_[0]];
  });
  if (are_alike) {
    made = orders_[sources_[0]];
    return;
  }
  const auto age = [&](std::int32_t v) { return index_.producer[chain_of(v).source]; };
  const std::int32_t oldest =
      *std::min_element(sources_.begin(), sources_.end(),
                        [&](std::int32_t a, std::int32_t b) { return age(a) < age(b); });
  made = orders_[oldest];
  for (std::int32_t v : sources_) {
    if (orders_[v] == made) continue;
    const Chain chain = chain_of(v);
    if (layout_.row_major_matmuls && chain.first != no_op) {
      found_.copies.push_back(index_.op(chain.first).results[0]);
    }
    if (!layout_.states_as_gradients) continue;
    const std::int32_t met = aliases_.of(chain_of(oldest).source);
    if (index_.is_argument(met)) {
      found_.conflicts.push_back({aliases_.of(chain.source), met, i});
    }
  }
}

}  // namespace

Layouts layouts_of(const ProgramIndex& index, const Aliases& aliases, const Layout& layout) {
  return OrderAnalysis(index, aliases, layout).run();
}

}  // namespace autoshard
