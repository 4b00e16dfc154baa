/// Exact answers for networks that are nearly trees.
#pragma once

#include <optional>
#include <vector>

#include "solver/network.h"

namespace autoshard::solver {

/// Minimises nodes out one by one (Bertele and Brioschi 1972, "Nonserial Dynamic
/// Programming"), cheapest next: the cost of a node is the product of its options and those of
/// all neighbours it has by then. The best choice of a node is remembered for every choice of
/// these neighbours, so that the way back gives a best choice of all.
///
/// `unary` are the costs of options in place of the network's own. Returns nothing if the
/// products together exceed `max_operations`; knowing that costs little.
///
/// Example: a chain of 1,000 nodes with 5 options each takes 25,000 operations, a grid of
/// 10 x 100 about 5^11 * 1,000.
std::optional<std::vector<int>> eliminate_all(const Network& network,
                                              const std::vector<double>& unary,
                                              double max_operations);

}  // namespace autoshard::solver
