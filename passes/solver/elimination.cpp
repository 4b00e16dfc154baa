#include "solver/elimination.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <queue>
#include <utility>

#include "solver/kernels.h"

namespace autoshard::solver {
namespace {

/// A table over the options of several nodes. The first of them to go is the last, which moves
/// fastest.
struct Factor {
  std::vector<int> nodes;
  const double* cost;
  /// Where `cost` is, unless the network has it.
  std::unique_ptr<double[]> made;
};

/// One node minimised out.
struct Bucket {
  int node;
  /// Its neighbours then: in tables the first to go is the last of them.
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
  for (int i = 0; i < n; ++i) {
    const auto first = network.neighbours.begin();
    neighbours[i].assign(first + network.arc_offset[i], first + network.arc_offset[i + 1]);
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
  const auto goes_later = [&](int a, int b) { return position[a] > position[b]; };
  std::vector<std::vector<Factor>> waiting(n);
  for (int a = 0; a < n; ++a) {
    for (int k = network.arc_offset[a]; k < network.arc_offset[a + 1]; ++k) {
      const Network::Arc& arc = network.arcs[k];
      if (arc.neighbour < a) continue;
      if (goes_later(a, arc.neighbour)) {
        waiting[position[arc.neighbour]].push_back({{a, arc.neighbour}, arc.out, nullptr});
      } else {
        waiting[position[a]].push_back({{arc.neighbour, a}, arc.in, nullptr});
      }
    }
  }

  SummedTables tables;
  for (int k = 0; k < n; ++k) {
    Bucket& bucket = order->buckets[k];
    std::vector<int>& neighbours = bucket.neighbours;
    std::sort(neighbours.begin(), neighbours.end(), goes_later);
    tables.sizes.clear();
    std::size_t rows = 1;
    for (int node : neighbours) {
      tables.sizes.push_back(network.options(node));
      rows *= static_cast<std::size_t>(tables.sizes.back());
    }
    const std::size_t count = waiting[k].size() + 1;
    tables.first = {unary.data() + network.offset[bucket.node]};
    tables.stride.assign(neighbours.size() * count, 0);
    for (const Factor& factor : waiting[k]) {
      std::int64_t step = network.options(bucket.node);
      for (std::size_t f = factor.nodes.size() - 1; f-- > 0;) {
        const auto at = std::find(neighbours.begin(), neighbours.end(), factor.nodes[f]);
        const auto digit = static_cast<std::size_t>(at - neighbours.begin());
        tables.stride[digit * count + tables.first.size()] = step;
        step *= network.options(factor.nodes[f]);
      }
      tables.first.push_back(factor.cost);
    }
    auto least = std::make_unique_for_overwrite<double[]>(rows);
    min_of_sums(tables, network.options(bucket.node), least.get());
    if (!neighbours.empty()) {
      const double* cost = least.get();
      waiting[position[neighbours.back()]].push_back({neighbours, cost, std::move(least)});
    }
  }

  std::vector<int> choice(n, 0);
  std::vector<double> sums;
  for (int k = n; k-- > 0;) {
    const int node = order->buckets[k].node, options = network.options(node);
    const auto own = unary.begin() + network.offset[node];
    sums.assign(own, own + options);
    for (const Factor& factor : waiting[k]) {
      const double* cost = factor.cost;
      std::int64_t step = options;
      for (std::size_t f = factor.nodes.size() - 1; f-- > 0;) {
        cost += choice[factor.nodes[f]] * step;
        step *= network.options(factor.nodes[f]);
      }
      for (int c = 0; c < options; ++c) sums[c] += cost[c];
    }
    choice[node] = argmin(sums.data(), options);
  }
  return choice;
}

}  // namespace autoshard::solver
