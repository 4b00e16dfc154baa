#include "solver/forest.h"

#include <algorithm>
#include <utility>

#include "solver/kernels.h"

namespace autoshard::solver {

ForestSearch::ForestSearch(const Network& network)
    : network_(network),
      parent_set_(network.nodes(), -1),
      parent_arc_(network.nodes(), -1),
      base_(network.unary.size()),
      subtree_(network.unary.size()),
      shuffled_(network.nodes()),
      mark_(network.nodes(), 0) {
  int largest = 1;
  for (int i = 0; i < network.nodes(); ++i) {
    shuffled_[i] = i;
    largest = std::max(largest, network.options(i));
  }
  message_.resize(largest);
}

int ForestSearch::root(int node) {
  while (parent_set_[node] != node) {
    parent_set_[node] = parent_set_[parent_set_[node]];
    node = parent_set_[node];
  }
  return node;
}

// Adds the node if the picked nodes still induce a forest: all its picked neighbours must lie
// in different trees.
void ForestSearch::add(int node) {
  if (is_picked(node)) return;
  ++mark_count_;
  const int begin = network_.arc_offset[node], end = network_.arc_offset[node + 1];
  trees_.clear();
  for (int a = begin; a < end; ++a) {
    const int neighbour = network_.neighbours[a];
    if (!is_picked(neighbour)) continue;
    const int tree = root(neighbour);
    if (mark_[tree] == mark_count_) return;
    mark_[tree] = mark_count_;
    trees_.push_back(tree);
  }
  parent_set_[node] = node;
  picked_.push_back(node);
  for (int tree : trees_) parent_set_[tree] = node;
}

void ForestSearch::clear() {
  for (int node : picked_) parent_set_[node] = -1;
  picked_.clear();
}

void ForestSearch::pick_all(Random& random) {
  for (int i = network_.nodes() - 1; i > 0; --i) {
    std::swap(shuffled_[i], shuffled_[random.below(i + 1)]);
  }
  for (int node : shuffled_) add(node);
}

void ForestSearch::grow(int node, int largest, Random& random) {
  frontier_.assign(1, node);
  int tries = 20 * largest;
  while (!frontier_.empty() && static_cast<int>(picked_.size()) < largest && tries > 0) {
    const int at = random.below(static_cast<int>(frontier_.size()));
    const int next = frontier_[at];
    frontier_[at] = frontier_.back();
    frontier_.pop_back();
    --tries;
    if (is_picked(next)) continue;
    add(next);
    if (!is_picked(next)) continue;
    // A hub offers a random stretch of its neighbours.
    const int begin = network_.arc_offset[next], degree = network_.degree(next);
    const int wanted = std::min(degree, 2 * largest);
    const int first = wanted < degree ? random.below(degree) : 0;
    for (int d = 0; d < wanted; ++d, --tries) {
      const int neighbour = network_.neighbours[begin + (first + d) % degree];
      if (!is_picked(neighbour)) frontier_.push_back(neighbour);
    }
  }
}

void ForestSearch::prepare(const std::vector<double>& unary, const std::vector<int>& choice) {
  order_.clear();
  for (int node : picked_) parent_arc_[node] = -2;
  for (int start : picked_) {
    if (parent_arc_[start] != -2) continue;
    parent_arc_[start] = -1;
    std::size_t next = order_.size();
    order_.push_back(start);
    for (; next < order_.size(); ++next) {
      const int node = order_[next];
      const int k = network_.options(node);
      double* cost = base_.data() + network_.offset[node];
      std::copy_n(unary.data() + network_.offset[node], k, cost);
      for (int a = network_.arc_offset[node]; a < network_.arc_offset[node + 1]; ++a) {
        const int neighbour = network_.neighbours[a];
        const Network::Arc& arc = network_.arcs[a];
        if (!is_picked(neighbour)) {
          const double* column = arc.in + static_cast<std::size_t>(choice[neighbour]) * k;
          for (int s = 0; s < k; ++s) cost[s] += column[s];
        } else if (parent_arc_[neighbour] == -2) {
          parent_arc_[neighbour] = arc.back;
          order_.push_back(neighbour);
        }
      }
    }
  }
}

double ForestSearch::solve(const double* extra, std::vector<int>& result) {
  for (int node : order_) {
    const int begin = network_.offset[node], end = network_.offset[node + 1];
    if (extra) {
      for (int o = begin; o < end; ++o) subtree_[o] = base_[o] + extra[o];
    } else {
      std::copy(base_.begin() + begin, base_.begin() + end, subtree_.begin() + begin);
    }
  }
  decide(subtree_, result);
  return cost(result);
}

void ForestSearch::decide(std::vector<double>& subtree, std::vector<int>& result) {
  for (auto node = order_.rbegin(); node != order_.rend(); ++node) {
    if (parent_arc_[*node] < 0) continue;
    const Network::Arc& arc = network_.arcs[parent_arc_[*node]];
    work_ += static_cast<std::int64_t>(network_.options(*node)) * arc.cols;
    min_plus_vector(subtree.data() + network_.offset[*node], arc.out, network_.options(*node),
                    arc.cols, message_.data());
    double* parent = subtree.data() + network_.offset[arc.neighbour];
    for (int s = 0; s < arc.cols; ++s) parent[s] += message_[s];
  }
  for (int node : order_) {
    const int k = network_.options(node);
    double* cost = subtree.data() + network_.offset[node];
    if (parent_arc_[node] >= 0) {
      const Network::Arc& arc = network_.arcs[parent_arc_[node]];
      const double* column = arc.in + static_cast<std::size_t>(result[arc.neighbour]) * k;
      for (int s = 0; s < k; ++s) cost[s] += column[s];
    }
    const int best = argmin(cost, k);
    if (cost[best] < cost[result[node]]) result[node] = best;
  }
}

double ForestSearch::cost(const std::vector<int>& choice) const {
  double total = 0;
  for (int node : order_) {
    total += base_[network_.offset[node] + choice[node]];
    if (parent_arc_[node] < 0) continue;
    const Network::Arc& arc = network_.arcs[parent_arc_[node]];
    total +=
        arc.out[static_cast<std::size_t>(choice[node]) * arc.cols + choice[arc.neighbour]];
  }
  return total;
}

void ForestSearch::improve(const std::vector<double>& unary, Random& random,
                           std::vector<int>& choice) {
  clear();
  pick_all(random);
  prepare(unary, choice);
  decide(base_, choice);  // which nobody asks for again
}

}  // namespace autoshard::solver
