// Nodes of degree two at most are minimised out.
#include <cmath>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "solver/kernels.h"
#include "solver/reduction.h"

namespace autoshard::solver {

void Reduction::eliminate(double largest_product) {
  // Cheapest first: (work, node). Entries may be stale; they are checked when taken.
  using Candidate = std::pair<double, int>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  std::vector<int> edges;
  std::vector<double> message;
  const auto work = [&](int v) -> double {
    double product = static_cast<double>(nodes_[v].cost.size());
    live_edges(v, edges);
    for (int e : edges) product *= static_cast<double>(nodes_[other(e, v)].cost.size());
    return product;
  };
  const auto consider = [&](int v) {
    if (!nodes_[v].alive || nodes_[v].degree > 2) return;
    const double product = work(v);
    if (product <= largest_product) queue.emplace(product, v);
  };
  for (int v = 0; v < nodes(); ++v) consider(v);
  while (!queue.empty()) {
    const auto [product, v] = queue.top();
    queue.pop();
    Node& node = nodes_[v];
    if (!node.alive || node.degree > 2) continue;
    if (work(v) != product) {
      consider(v);
      continue;
    }
    Step step{v, {-1, -1}, {-1, -1}, {0, 0, node.history.size()}, node.cost};
    for (std::size_t n = 0; n < edges.size(); ++n) {
      step.neighbour[n] = other(edges[n], v);
      step.table[n] = oriented(edges[n], v);
      step.version[n] = nodes_[step.neighbour[n]].history.size();
      drop_edge(edges[n]);
    }
    node.alive = false;
    const int k = static_cast<int>(node.cost.size());
    if (edges.empty()) {
      const double least = minimum(node.cost.data(), k);
      constant_ += least;
      magnitude_ += std::abs(least);
    } else if (edges.size() == 1) {
      Node& neighbour = nodes_[step.neighbour[0]];
      message.resize(neighbour.cost.size());
      min_plus_vector(node.cost.data(), tables_.data(step.table[0]), k,
                      static_cast<int>(message.size()), message.data());
      for (std::size_t s = 0; s < message.size(); ++s) neighbour.cost[s] += message[s];
    } else {
      const int middle = tables_.add(1, k, node.cost.data());
      const int left = tables_.transpose(step.table[0]);
      add_edge(step.neighbour[0], step.neighbour[1],
               tables_.product(left, middle, step.table[1]));
    }
    for (int n : step.neighbour) {
      if (n >= 0) consider(n);
    }
    if (!dominance_current_.empty()) {
      for (int n : step.neighbour) {
        if (n >= 0) dominance_current_[n] = 0;
      }
    }
    steps_.push_back(std::move(step));
  }
}

}  // namespace autoshard::solver
