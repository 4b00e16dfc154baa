#include "solver/elimination.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <queue>
#include <utility>

namespace autoshard::solver {
namespace {

/// A table over the options of several nodes, the last one fastest.
struct Factor {
  std::vector<int> nodes;
  std::vector<double> cost;
};

/// One node minimised out.
struct Bucket {
  int node;
  /// Its neighbours then, in the order of the table `choice`.
  std::vector<int> neighbours;
};

struct Order {
  std::vector<Bucket> buckets;
  double operations = 0;
};

/// The cheapest node next, until none is left or the limit is passed.
std::optional<Order> cheapest_order(const Network& network, double max_operations) {
  const int n = network.nodes();
  std::vector<std::vector<int>> neighbours(n);
  for (const Network::Edge& edge : network.edges) {
    neighbours[edge.a].push_back(edge.b);
    neighbours[edge.b].push_back(edge.a);
  }
  for (std::vector<int>& list : neighbours) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  const auto operations = [&](int node) {
    double product = network.options(node);
    for (int other : neighbours[node]) product *= network.options(other);
    return product;
  };
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<double> current(n);
  for (int i = 0; i < n; ++i) queue.emplace(current[i] = operations(i), i);
  std::vector<bool> gone(n, false);
  Order order;
  std::vector<int> merged;
  while (!queue.empty()) {
    const auto [cost, node] = queue.top();
    queue.pop();
    if (gone[node] || cost != current[node]) continue;
    order.operations += cost;
    if (order.operations > max_operations) return std::nullopt;
    gone[node] = true;
    const std::vector<int> around = std::move(neighbours[node]);
    for (int a : around) {
      merged.clear();
      std::set_union(neighbours[a].begin(), neighbours[a].end(), around.begin(), around.end(),
                     std::back_inserter(merged));
      std::erase_if(merged, [&](int b) { return b == a || b == node; });
      neighbours[a] = merged;
      queue.emplace(current[a] = operations(a), a);
    }
    order.buckets.push_back({node, around});
  }
  return order;
}

/// Adds `factor` to a dense table over `nodes` (sizes `sizes`, the last one fastest).
void add(const Factor& factor, const Network& network, const std::vector<int>& nodes,
         const std::vector<int>& sizes, std::vector<double>& table) {
  // How far the factor's index moves when one of `nodes` moves by one.
  std::vector<std::int64_t> stride(nodes.size(), 0);
  std::int64_t step = 1;
  for (std::size_t k = factor.nodes.size(); k-- > 0;) {
    const auto at = std::find(nodes.begin(), nodes.end(), factor.nodes[k]) - nodes.begin();
    stride[at] = step;
    step *= network.options(factor.nodes[k]);
  }
  const int last = sizes.back();
  const std::int64_t last_stride = stride.back();
  std::vector<int> digit(nodes.size(), 0);
  std::int64_t from = 0;
  for (std::size_t row = 0; row < table.size(); row += last) {
    const double* cost = factor.cost.data() + from;
    double* sum = table.data() + row;
    for (int o = 0; o < last; ++o) sum[o] += cost[o * last_stride];
    for (std::size_t k = nodes.size() - 1; k-- > 0;) {
      from += stride[k];
      if (++digit[k] < sizes[k]) break;
      from -= stride[k] * sizes[k];
      digit[k] = 0;
    }
  }
}

}  // namespace

std::optional<std::vector<int>> eliminate_all(const Network& network,
                                              const std::vector<double>& unary,
                                              double max_operations) {
  std::optional<Order> order = cheapest_order(network, max_operations);
  if (!order) return std::nullopt;
  const int n = network.nodes();

  // Each factor waits at the first of its nodes to go.
  std::vector<int> position(n);
  for (int k = 0; k < n; ++k) position[order->buckets[k].node] = k;
  std::vector<std::vector<std::unique_ptr<Factor>>> waiting(n);
  const auto wait = [&](std::unique_ptr<Factor> factor) {
    int first = n;
    for (int node : factor->nodes) first = std::min(first, position[node]);
    waiting[first].push_back(std::move(factor));
  };
  for (int a = 0; a < n; ++a) {
    for (int k = network.arc_offset[a]; k < network.arc_offset[a + 1]; ++k) {
      const Network::Arc& arc = network.arcs[k];
      if (arc.neighbour < a) continue;
      const std::int64_t size = static_cast<std::int64_t>(network.options(a)) * arc.cols;
      wait(std::make_unique<Factor>(Factor{{a, arc.neighbour}, {arc.out, arc.out + size}}));
    }
  }

  std::vector<std::vector<std::uint16_t>> best(n);
  std::vector<double> table;
  for (int k = 0; k < n; ++k) {
    const Bucket& bucket = order->buckets[k];
    std::vector<int> nodes = bucket.neighbours;
    nodes.push_back(bucket.node);
    std::vector<int> sizes;
    std::size_t size = 1;
    for (int node : nodes) {
      sizes.push_back(network.options(node));
      size *= sizes.back();
    }
    table.assign(size, 0.0);
    const double* own = unary.data() + network.offset[bucket.node];
    add({{bucket.node}, {own, own + sizes.back()}}, network, nodes, sizes, table);
    for (const std::unique_ptr<Factor>& factor : waiting[k]) {
      add(*factor, network, nodes, sizes, table);
    }
    waiting[k].clear();
    const int options = sizes.back();
    auto left = std::make_unique<Factor>();
    left->nodes = bucket.neighbours;
    left->cost.resize(size / options);
    best[k].resize(size / options);
    for (std::size_t row = 0; row < left->cost.size(); ++row) {
      const double* costs = table.data() + row * options;
      const double* least = std::min_element(costs, costs + options);
      left->cost[row] = *least;
      best[k][row] = static_cast<std::uint16_t>(least - costs);
    }
    if (!left->nodes.empty()) wait(std::move(left));
  }

  std::vector<int> choice(n, 0);
  for (int k = n; k-- > 0;) {
    const Bucket& bucket = order->buckets[k];
    std::size_t row = 0;
    for (int node : bucket.neighbours) row = row * network.options(node) + choice[node];
    choice[bucket.node] = best[k][row];
  }
  return choice;
}

}  // namespace autoshard::solver
