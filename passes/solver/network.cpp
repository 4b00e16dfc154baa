#include "solver/network.h"

#include <algorithm>

namespace autoshard::solver {

double Network::cost(const std::vector<int>& choice, const std::vector<double>& unary) const {
  double total = constant;
  for (int i = 0; i < nodes(); ++i) {
    total += unary[offset[i] + choice[i]];
    for (int a = arc_middle[i]; a < arc_offset[i + 1]; ++a) {
      const Arc& arc = arcs[a];
      total += arc.out[static_cast<std::size_t>(choice[i]) * arc.cols + choice[arc.neighbour]];
    }
  }
  return total;
}

Network freeze(Reduction& reduction) {
  Network network;
  network.constant = reduction.constant;
  std::vector<int> index(reduction.count(), -1);
  network.offset.push_back(0);
  for (int i = 0; i < reduction.count(); ++i) {
    const Reduction::Node& node = reduction.nodes[i];
    if (!node.alive) continue;
    index[i] = network.nodes();
    network.source.push_back(i);
    network.unary.insert(network.unary.end(), node.cost.begin(), node.cost.end());
    network.original.insert(network.original.end(), node.original.begin(),
                            node.original.end());
    network.offset.push_back(static_cast<std::int32_t>(network.unary.size()));
  }
  std::vector<std::int32_t> degree(network.nodes(), 0);
  for (const Reduction::Edge& edge : reduction.edges) {
    if (!edge.alive) continue;
    network.edges.push_back({index[edge.a], index[edge.b], edge.table});
  }
  std::sort(network.edges.begin(), network.edges.end(),
            [](const auto& x, const auto& y) { return x.a != y.a ? x.a < y.a : x.b < y.b; });
  for (const Network::Edge& edge : network.edges) {
    ++degree[edge.a];
    ++degree[edge.b];
  }
  network.arc_offset.assign(network.nodes() + 1, 0);
  for (int i = 0; i < network.nodes(); ++i) {
    network.arc_offset[i + 1] = network.arc_offset[i] + degree[i];
  }
  network.arcs.resize(network.arc_offset.back());
  std::vector<std::int32_t> next(network.arc_offset.begin(), network.arc_offset.end() - 1);
  TableStore& tables = reduction.tables;
  const auto put = [&](int node, const Network::Arc& arc) {
    network.arcs[next[node]++] = arc;
  };
  // Edges sorted by (a, b): arcs to smaller neighbours come first and in order if the ends b
  // are filled in one sweep and the ends a in a second one.
  for (int side = 0; side < 2; ++side) {
    std::int64_t message = 0;
    for (int e = 0; e < static_cast<int>(network.edges.size()); ++e) {
      const Network::Edge& edge = network.edges[e];
      const int transposed = tables.transpose(edge.table);
      const std::int32_t ka = network.options(edge.a), kb = network.options(edge.b);
      const std::int64_t to_a = message, to_b = message + ka;
      message += ka + kb;
      if (side == 0) {
        put(edge.b,
            {edge.a, e, ka, tables.data(transposed), tables.data(edge.table), to_a, to_b, -1});
      } else {
        put(edge.a,
            {edge.b, e, kb, tables.data(edge.table), tables.data(transposed), to_b, to_a, -1});
      }
    }
    network.message_size = message;
  }
  network.neighbours.reserve(network.arcs.size());
  for (const Network::Arc& arc : network.arcs) network.neighbours.push_back(arc.neighbour);
  network.arc_middle.resize(network.nodes());
  for (int i = 0; i < network.nodes(); ++i) {
    const auto first = network.neighbours.begin() + network.arc_offset[i];
    const auto last = network.neighbours.begin() + network.arc_offset[i + 1];
    network.arc_middle[i] = static_cast<std::int32_t>(std::lower_bound(first, last, i) -
                                                      network.neighbours.begin());
  }
  std::vector<std::int32_t> first_end(network.edges.size(), -1);
  for (std::size_t a = 0; a < network.arcs.size(); ++a) {
    std::int32_t& other = first_end[network.arcs[a].edge];
    if (other < 0) {
      other = static_cast<std::int32_t>(a);
    } else {
      network.arcs[a].back = other;
      network.arcs[other].back = static_cast<std::int32_t>(a);
    }
  }
  return network;
}

}  // namespace autoshard::solver
