#include "solver/messages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "solver/kernels.h"

namespace autoshard::solver {
namespace {

/// What few options of a node cost more.
inline void add(double* __restrict sum, const double* __restrict more, int options) {
  for (int s = 0; s < options; ++s) sum[s] += more[s];
}

}  // namespace

Messages::Messages(const Network& network)
    : network_(network), messages_(static_cast<std::size_t>(network.message_size), 0.0) {
  int largest = 1;
  share_.resize(network.nodes());
  for (int i = 0; i < network.nodes(); ++i) {
    largest = std::max(largest, network.options(i));
    const int before = network.arc_middle[i] - network.arc_offset[i];
    share_[i] = 1.0 / std::max({before, network.degree(i) - before, 1});
  }
  theta_.resize(largest);
  scratch_.resize(largest);
  given_.resize(largest);
}

Messages::Messages(const Network& network, const KnownMessages& known) : Messages(network) {
  const auto node_there = [&](std::int32_t node) {
    const std::int32_t source = network.source[node];
    return known.nodes.empty() ? source : known.nodes[source];
  };
  double* to = messages_.data();
  for (const Network::Edge& edge : network.edges) {
    const std::int32_t ends[] = {node_there(edge.a), node_there(edge.b)};
    const std::pair<std::int32_t, std::int32_t> wanted = std::minmax(ends[0], ends[1]);
    const auto before = [](const KnownMessages::Edge& one, const auto& other) {
      return std::pair(one.a, one.b) < other;
    };
    const auto old = std::lower_bound(known.edges.begin(), known.edges.end(), wanted, before);
    const bool is_known = old != known.edges.end() && std::pair(old->a, old->b) == wanted;
    for (const std::int32_t node : {edge.a, edge.b}) {
      const int k = network.options(node);
      if (is_known) {
        const std::int32_t there = node_there(node);
        const double* from = known.messages.data() + old->first +
                             (there == old->a ? 0 : known.options[old->a].size());
        const std::vector<std::int32_t>& left = known.options[there];
        const double largest = *std::max_element(from, from + left.size());
        std::size_t at = 0;
        for (int s = 0; s < k; ++s) {
          const std::int32_t option = network.original[network.offset[node] + s];
          while (at < left.size() && left[at] < option) ++at;
          to[s] = at < left.size() && left[at] == option ? from[at] : largest;
        }
      }
      to += k;
    }
  }
}

KnownMessages Messages::known(int nodes) const {
  KnownMessages known;
  known.options.resize(nodes);
  for (int i = 0; i < network_.nodes(); ++i) {
    const auto first = network_.original.begin() + network_.offset[i];
    known.options[network_.source[i]].assign(first, first + network_.options(i));
  }
  std::size_t at = 0;
  for (const Network::Edge& edge : network_.edges) {
    known.edges.push_back({network_.source[edge.a], network_.source[edge.b], at});
    at += static_cast<std::size_t>(network_.options(edge.a) + network_.options(edge.b));
  }
  known.messages = messages_;
  return known;
}

double Messages::pass(const std::vector<double>& unary, bool forward, std::vector<int>* choice,
                      std::vector<double>* surplus) {
  double bound = network_.constant;
  const int n = network_.nodes();
  for (int step = 0; step < n; ++step) {
    const int i = forward ? step : n - 1 - step;
    const int k = network_.options(i);
    const double* own = unary.data() + network_.offset[i];
    std::copy(own, own + k, theta_.begin());
    const int begin = network_.arc_offset[i], end = network_.arc_offset[i + 1];
    const int middle = network_.arc_middle[i];
    double* const theta = theta_.data();
    for (int a = begin; a < end; ++a) {
      add(theta, messages_.data() + network_.arcs[a].to_node, k);
    }
    const int ahead_begin = forward ? middle : begin, ahead_end = forward ? end : middle;
    if (choice) {
      const int behind_begin = forward ? begin : middle, behind_end = forward ? middle : end;
      std::copy(own, own + k, given_.begin());
      for (int a = ahead_begin; a < ahead_end; ++a) {
        add(given_.data(), messages_.data() + network_.arcs[a].to_node, k);
      }
      for (int a = behind_begin; a < behind_end; ++a) {
        const Network::Arc& arc = network_.arcs[a];
        add(given_.data(), arc.in + static_cast<std::size_t>((*choice)[arc.neighbour]) * k, k);
      }
      (*choice)[i] = argmin(given_.data(), k);
    }
    if (surplus) {
      const double least = minimum(theta_.data(), k);
      double* out = surplus->data() + network_.offset[i];
      for (int s = 0; s < k; ++s) out[s] = theta_[s] - least;
    }
    const double share = share_[i];
    const int ahead = ahead_end - ahead_begin;
    const double rest = 1.0 - ahead * share;
    if (rest > 1e-12) bound += rest * minimum(theta_.data(), k);
    for (int a = ahead_begin; a < ahead_end; ++a) {
      const Network::Arc& arc = network_.arcs[a];
      const double* back = messages_.data() + arc.to_node;
      double* const given = scratch_.data();
      for (int s = 0; s < k; ++s) given[s] = share * theta[s] - back[s];
      double* message = messages_.data() + arc.to_neighbour;
      min_plus_vector(scratch_.data(), arc.out, k, arc.cols, message);
      const double least = minimum(message, arc.cols);
      for (int s = 0; s < arc.cols; ++s) message[s] -= least;
      bound += least;
    }
  }
  last_forward_ = forward;
  return bound;
}

std::vector<double> Messages::reparametrization(const std::vector<double>& unary) const {
  std::vector<double> result = messages_;
  std::vector<double> theta;
  for (int i = 0; i < network_.nodes(); ++i) {
    const int k = network_.options(i);
    theta.assign(unary.begin() + network_.offset[i], unary.begin() + network_.offset[i] + k);
    const int begin = network_.arc_offset[i], end = network_.arc_offset[i + 1];
    for (int a = begin; a < end; ++a) {
      const double* message = messages_.data() + network_.arcs[a].to_node;
      for (int s = 0; s < k; ++s) theta[s] += message[s];
    }
    const int middle = network_.arc_middle[i];
    for (int a = last_forward_ ? middle : begin; a < (last_forward_ ? end : middle); ++a) {
      double* message = result.data() + network_.arcs[a].to_node;
      for (int s = 0; s < k; ++s) message[s] -= share_[i] * theta[s];
    }
  }
  return result;
}

double Messages::safe_bound(const std::vector<double>& unary,
                            const std::vector<double>& messages) const {
  // A sum of n doubles is off by at most n * epsilon * (sum of their sizes). Every option and
  // every entry is lowered by its own margin before the minimum is taken, and the total by
  // its.
  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  double bound = network_.constant, magnitude = std::abs(network_.constant);
  std::vector<double> theta, sizes;
  for (int i = 0; i < network_.nodes(); ++i) {
    const int k = network_.options(i);
    theta.assign(unary.begin() + network_.offset[i], unary.begin() + network_.offset[i] + k);
    sizes.resize(k);
    for (int s = 0; s < k; ++s) sizes[s] = std::abs(theta[s]);
    for (int a = network_.arc_offset[i]; a < network_.arc_offset[i + 1]; ++a) {
      const double* message = messages.data() + network_.arcs[a].to_node;
      for (int s = 0; s < k; ++s) {
        theta[s] += message[s];
        sizes[s] += std::abs(message[s]);
      }
    }
    const double margin = (network_.degree(i) + 2) * kEpsilon;
    for (int s = 0; s < k; ++s) theta[s] -= margin * sizes[s];
    const double least = minimum(theta.data(), k);
    bound += least;
    magnitude += std::abs(least);
  }
  for (int i = 0; i < network_.nodes(); ++i) {
    for (int a = network_.arc_middle[i]; a < network_.arc_offset[i + 1]; ++a) {
      const Network::Arc& arc = network_.arcs[a];
      const double* to_node = messages.data() + arc.to_node;
      const double* to_neighbour = messages.data() + arc.to_neighbour;
      const double* entry = arc.out;
      double least = kNotAllowed;
      for (int r = 0; r < network_.options(i); ++r) {
        for (int c = 0; c < arc.cols; ++c, ++entry) {
          if (*entry == kNotAllowed) continue;
          const double size =
              std::abs(*entry) + std::abs(to_node[r]) + std::abs(to_neighbour[c]);
          least = std::min(least, *entry - to_node[r] - to_neighbour[c] - 3 * kEpsilon * size);
        }
      }
      bound += least;
      magnitude += std::abs(least);
    }
  }
  const double terms = 2.0 + network_.nodes() + static_cast<double>(network_.edges.size());
  return bound - terms * kEpsilon * magnitude;
}

}  // namespace autoshard::solver
