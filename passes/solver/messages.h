/// Dual message passing: a lower bound on a network, and choices decoded from it.
#pragma once

#include <vector>

#include "solver/network.h"

namespace autoshard::solver {

/// Sequential tree-reweighted message passing over the node order of the network.
///
/// A pass visits all nodes in order (forward) or in reverse; at node i it forms
///
///   theta_i(s) = unary_i(s) + sum of the messages into i
///
/// gives theta_i / max(arcs before i, arcs after i) to each arc ahead, and passes its
/// min-marginal on. For fixed costs the bound never falls, up to rounding.
///
/// Source: Kolmogorov 2006, "Convergent Tree-Reweighted Message Passing for Energy
/// Minimization".
class Messages {
 public:
  explicit Messages(const Network& network);
  /// Begins where `known` ended, as far as edges and options are the same. An option that was
  /// not left then gets the largest message of its node. Any messages make a bound.
  Messages(const Network& network, const KnownMessages& known);

  /// For the next network, of a problem of `nodes` nodes.
  KnownMessages known(int nodes) const;

  /// One pass. Returns the lower bound after it, without rounding margin. If `choice` is
  /// given, it receives a choice made on the way: each node takes its best option given the
  /// nodes before it and the messages from those after it.
  ///
  /// If `surplus` is given, surplus[o] receives by how much the bound before this pass would
  /// rise, at least, if option o were forced.
  double pass(const std::vector<double>& unary, bool forward, std::vector<int>* choice,
              std::vector<double>* surplus = nullptr);

  /// Messages such that all edge minima are >= 0 up to rounding and the node minima sum up to
  /// the bound of the last pass: what each edge gives to its ends. Layout as Arc::to_node.
  std::vector<double> reparametrization(const std::vector<double>& unary) const;

  /// Bound computed from a reparametrization in the plain way, with the network's constant and
  /// with everything rounded to the safe side.
  double safe_bound(const std::vector<double>& unary,
                    const std::vector<double>& messages) const;

 private:
  const Network& network_;
  std::vector<double> messages_;
  std::vector<double> theta_, scratch_, given_;
  std::vector<double> share_;  ///< 1 / max(arcs before, arcs after)
  bool last_forward_ = true;
};

}  // namespace autoshard::solver
