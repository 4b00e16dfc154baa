// Nodes of degree two at most are minimised out.
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "solver/kernels.h"
#include "solver/presolve.h"

namespace autoshard::solver {

void eliminate(Reduction& reduction, double largest_product) {
  // Cheapest first: (work, node). Entries may be stale; they are checked when taken.
  using Candidate = std::pair<double, int>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  std::vector<int> edges;
  std::vector<double> message;
  const auto work = [&](int v) -> double {
    double product = static_cast<double>(reduction.nodes[v].cost.size());
    reduction.live_edges(v, edges);
    for (int e : edges)
      product *= static_cast<double>(reduction.nodes[reduction.other(e, v)].cost.size());
    return product;
  };
  const auto consider = [&](int v) {
    if (!reduction.nodes[v].alive || reduction.nodes[v].degree > 2) return;
    const double product = work(v);
    if (product <= largest_product) queue.emplace(product, v);
  };
  for (int v = 0; v < reduction.count(); ++v) consider(v);
  while (!queue.empty()) {
    const auto [product, v] = queue.top();
    queue.pop();
    Reduction::Node& node = reduction.nodes[v];
    if (!node.alive || node.degree > 2) continue;
    if (work(v) != product) {
      consider(v);
      continue;
    }
    Reduction::Step step{v, {-1, -1}, {-1, -1}, {0, 0, node.history.size()}, node.cost};
    for (std::size_t n = 0; n < edges.size(); ++n) {
      step.neighbour[n] = reduction.other(edges[n], v);
      step.table[n] = reduction.oriented(edges[n], v);
      step.version[n] = reduction.nodes[step.neighbour[n]].history.size();
      reduction.drop_edge(edges[n]);
    }
    node.alive = false;
    const int k = static_cast<int>(node.cost.size());
    if (edges.empty()) {
      reduction.constant += minimum(node.cost.data(), k);
    } else if (edges.size() == 1) {
      Reduction::Node& neighbour = reduction.nodes[step.neighbour[0]];
      message.resize(neighbour.cost.size());
      min_plus_vector(node.cost.data(), reduction.tables.data(step.table[0]), k,
                      static_cast<int>(message.size()), message.data());
      for (std::size_t s = 0; s < message.size(); ++s) neighbour.cost[s] += message[s];
    } else {
      const int middle = reduction.tables.add(1, k, node.cost.data());
      const int left = reduction.tables.transpose(step.table[0]);
      reduction.add_edge(step.neighbour[0], step.neighbour[1],
                         reduction.tables.product(left, middle, step.table[1]));
    }
    for (int n : step.neighbour) {
      if (n < 0) continue;
      consider(n);
      reduction.dominate_again(n);
    }
    reduction.steps.push_back(std::move(step));
  }
}

}  // namespace autoshard::solver
