#include "solver/problem.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace autoshard::solver {

std::int32_t Problem::add_node(const std::vector<double>& costs) {
  option_cost.insert(option_cost.end(), costs.begin(), costs.end());
  option_offset.push_back(static_cast<std::int32_t>(option_cost.size()));
  return nodes() - 1;
}

std::int32_t Problem::add_table(Table table) {
  tables.push_back(std::move(table));
  return static_cast<std::int32_t>(tables.size()) - 1;
}

void Problem::add_edge(std::int32_t from, std::int32_t to, std::int32_t table, double weight) {
  if (weight != 1.0 && edge_weight.empty()) edge_weight.assign(edge_from.size(), 1.0);
  edge_from.push_back(from);
  edge_to.push_back(to);
  edge_table.push_back(table);
  if (!edge_weight.empty() || weight != 1.0) edge_weight.push_back(weight);
}

namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void check_length(const char* field, std::size_t found, std::size_t wanted) {
  if (found != wanted) {
    refuse(std::string(field) + ": has " + std::to_string(found) + " entries, needs " +
           std::to_string(wanted));
  }
}

/// Up to here doubles hold every integer.
constexpr std::int64_t kLargestBytes = std::int64_t{1} << 53;

bool is_cost(double value) { return !std::isnan(value) && value != -kNotAllowed; }

void check_nodes(const Problem& problem) {
  if (problem.option_offset.empty() || problem.option_offset.front() != 0) {
    refuse("option_offset: must begin with 0");
  }
  for (std::int32_t i = 0; i < problem.nodes(); ++i) {
    if (problem.option_count(i) < 1) {
      refuse("option_offset: node " + std::to_string(i) +
             " has no options, needs at least one");
    }
  }
  check_length("option_cost", problem.option_cost.size(),
               static_cast<std::size_t>(problem.option_offset.back()));
  for (std::size_t o = 0; o < problem.option_cost.size(); ++o) {
    if (!is_cost(problem.option_cost[o])) {
      refuse("option_cost[" + std::to_string(o) + "]: must be a number or +inf");
    }
  }
}

void check_edges(const Problem& problem) {
  const std::size_t edges = problem.edge_from.size();
  check_length("edge_to", problem.edge_to.size(), edges);
  check_length("edge_table", problem.edge_table.size(), edges);
  if (!problem.edge_weight.empty()) {
    check_length("edge_weight", problem.edge_weight.size(), edges);
  }
  const auto refuse_table = [](std::size_t t, const std::string& what) {
    refuse("tables[" + std::to_string(t) + "]: " + what);
  };
  for (std::size_t t = 0; t < problem.tables.size(); ++t) {
    const Table& table = problem.tables[t];
    if (table.rows < 1 || table.cols < 1) refuse_table(t, "must have rows and columns");
    const std::size_t wanted =
        static_cast<std::size_t>(table.rows) * static_cast<std::size_t>(table.cols);
    if (table.cost.size() != wanted) {
      refuse_table(t, "has " + std::to_string(table.cost.size()) + " entries, needs " +
                          std::to_string(wanted));
    }
    if (!std::all_of(table.cost.begin(), table.cost.end(), is_cost)) {
      refuse_table(t, "every cost must be a number or +inf");
    }
  }
  const auto refuse_edge = [](std::size_t e, const std::string& what) {
    refuse("edge " + std::to_string(e) + ": " + what);
  };
  for (std::size_t e = 0; e < edges; ++e) {
    const std::int32_t from = problem.edge_from[e], to = problem.edge_to[e];
    if (from < 0 || from >= problem.nodes() || to < 0 || to >= problem.nodes()) {
      refuse_edge(e, "joins nodes " + std::to_string(from) + " and " + std::to_string(to) +
                         ", but nodes are 0.." + std::to_string(problem.nodes() - 1));
    }
    const std::int32_t t = problem.edge_table[e];
    if (t < 0 || static_cast<std::size_t>(t) >= problem.tables.size()) {
      refuse_edge(e, "uses table " + std::to_string(t) + " of " +
                         std::to_string(problem.tables.size()));
    }
    const Table& table = problem.tables[t];
    if (table.rows != problem.option_count(from) || table.cols != problem.option_count(to)) {
      refuse_edge(e, "its table is " + std::to_string(table.rows) + " x " +
                         std::to_string(table.cols) + ", but its nodes have " +
                         std::to_string(problem.option_count(from)) + " and " +
                         std::to_string(problem.option_count(to)) + " options");
    }
    if (!problem.edge_weight.empty() &&
        !(problem.edge_weight[e] >= 0 && std::isfinite(problem.edge_weight[e]))) {
      refuse("edge_weight[" + std::to_string(e) + "]: must be finite and >= 0");
    }
  }
}

void check_memory(const Problem& problem) {
  if (!problem.option_memory.empty()) {
    check_length("option_memory", problem.option_memory.size(), problem.option_cost.size());
    for (std::size_t o = 0; o < problem.option_memory.size(); ++o) {
      if (problem.option_memory[o] < 0 || problem.option_memory[o] > kLargestBytes) {
        refuse("option_memory[" + std::to_string(o) + "]: must be 0 to 2^53 bytes");
      }
    }
  }
  if (!problem.memory_limit) return;
  check_length("option_memory", problem.option_memory.size(), problem.option_cost.size());
  const auto nodes = static_cast<std::size_t>(problem.nodes());
  check_length("live_first", problem.live_first.size(), nodes);
  check_length("live_last", problem.live_last.size(), nodes);
  if (*problem.memory_limit < 0 || *problem.memory_limit > kLargestBytes) {
    refuse("memory_limit: must be 0 to 2^53 bytes");
  }
}

}  // namespace

void check(const Problem& problem) {
  check_nodes(problem);
  check_edges(problem);
  check_memory(problem);
}

namespace {

/// Largest finite size, and whether all finite values are integers so far.
double largest_cost(const double* begin, const double* end, bool& integral) {
  double size = 0;
  for (; begin != end; ++begin) {
    if (*begin == kNotAllowed) continue;
    size = std::max(size, std::abs(*begin));
    integral &= *begin == std::floor(*begin);
  }
  return size;
}

double magnitude_of(const Problem& problem, bool& integral) {
  double magnitude = 0;
  const double* cost = problem.option_cost.data();
  for (std::int32_t i = 0; i < problem.nodes(); ++i) {
    magnitude += largest_cost(cost + problem.option_offset[i],
                              cost + problem.option_offset[i + 1], integral);
  }
  std::vector<double> of_table;
  for (const Table& table : problem.tables) {
    of_table.push_back(
        largest_cost(table.cost.data(), table.cost.data() + table.cost.size(), integral));
  }
  for (std::int32_t e = 0; e < problem.edges(); ++e) {
    const double weight = problem.edge_weight.empty() ? 1.0 : problem.edge_weight[e];
    integral &= weight == std::floor(weight);
    magnitude += weight * of_table[problem.edge_table[e]];
  }
  return magnitude;
}

}  // namespace

CostScale cost_scale(const Problem& problem) {
  bool integral = true;
  const double magnitude = magnitude_of(problem, integral);
  return {magnitude, integral && magnitude < 0x1p53};
}

double cost_of(const Problem& problem, const std::vector<std::int32_t>& choice) {
  long double total = 0;
  for (std::int32_t i = 0; i < problem.nodes(); ++i) {
    total += problem.option_cost[problem.option_offset[i] + choice[i]];
  }
  for (std::int32_t e = 0; e < problem.edges(); ++e) {
    const Table& table = problem.tables[problem.edge_table[e]];
    const double entry =
        table.cost[static_cast<std::size_t>(choice[problem.edge_from[e]]) * table.cols +
                   choice[problem.edge_to[e]]];
    if (entry == kNotAllowed) return kNotAllowed;
    total += problem.edge_weight.empty() ? entry : problem.edge_weight[e] * entry;
  }
  return static_cast<double>(total);
}

Peak peak_of(const Problem& problem, const std::vector<std::int32_t>& choice) {
  if (problem.live_first.empty() || problem.option_memory.empty()) return {};
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;
  for (std::int32_t i = 0; i < problem.nodes(); ++i) {
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    const std::int64_t bytes = problem.option_memory[problem.option_offset[i] + choice[i]];
    changes.emplace_back(problem.live_first[i], bytes);
    changes.emplace_back(problem.live_last[i], -bytes);
  }
  std::sort(changes.begin(), changes.end());
  Peak peak;
  std::int64_t bytes = 0;
  // Frees sort before allocations of the same point: intervals are half open.
  for (const auto& [point, change] : changes) {
    bytes += change;
    if (bytes > peak.bytes) peak = {bytes, point};
  }
  return peak;
}

const char* to_string(StopReason reason) {
  switch (reason) {
    case StopReason::kOptimal:
      return "optimal";
    case StopReason::kConverged:
      return "converged";
    case StopReason::kTimeLimit:
      return "time_limit";
    case StopReason::kIterationLimit:
      return "iteration_limit";
    case StopReason::kInterrupted:
      return "interrupted";
    case StopReason::kInfeasible:
      return "infeasible";
  }
  return "unknown";
}

double Solution::gap() const {
  if (choice.empty()) return kNotAllowed;
  if (cost <= lower_bound) return 0;
  return (cost - lower_bound) / std::max(std::abs(cost), 1e-300);
}

}  // namespace autoshard::solver
