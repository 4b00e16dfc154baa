/// The cost network the solver is asked to label, and what it answers.
///
/// A problem has nodes, each with one or more options. An option has a cost and, if memory is
/// limited, a number of bytes it occupies while its node is live. An edge joins two nodes and
/// charges a cost that depends on both their options. Choose one option a node:
///
///   cost(choice) = sum_i option_cost[option_offset[i] + choice[i]]
///                + sum_e edge_weight[e] * tables[edge_table[e]](choice[from], choice[to])
///
/// is to be small, and at every point t the bytes of all nodes with live_first <= t <
/// live_last must not exceed `memory_limit`. `+inf` anywhere means "not allowed".
///
/// Example: two nodes, options {cost 0, 3} and {cost 1, 0}, one edge with table
/// {{5, 9}, {0, 0}}: the best choice is {1, 1} and costs 3 + 0 + 0 = 3.
///
/// Costs are doubles. Integers up to 2^53 are exact, and so are their totals as long as they
/// stay below it; larger totals are rounded in the last digit, and lower bounds are always
/// rounded down.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace autoshard::solver {

/// "Not allowed", in every cost of a problem.
inline constexpr double kNotAllowed = std::numeric_limits<double>::infinity();

/// Costs of pairs of options, row-major: `cost[r * cols + c]`. Many edges may share one table.
struct Table {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  std::vector<double> cost;
};

/// A network. `check` says whether it is well formed; `solve` calls it first.
struct Problem {
  /// Options of node i are [option_offset[i], option_offset[i + 1]); nodes() + 1 entries, from
  /// 0.
  std::vector<std::int32_t> option_offset = {0};
  /// Cost of every option; +inf: not allowed. NaN and -inf are refused.
  std::vector<double> option_cost;
  /// Bytes of every option, 0 to 2^53; empty: nothing occupies memory.
  std::vector<std::int64_t> option_memory;

  /// Ends of every edge; an edge may join a node to itself, and two nodes may share many
  /// edges.
  std::vector<std::int32_t> edge_from;
  std::vector<std::int32_t> edge_to;
  /// Index into `tables`; rows are the options of `edge_from`, columns those of `edge_to`.
  std::vector<std::int32_t> edge_table;
  /// Finite factor >= 0 on the table of every edge; empty: all 1. (0 keeps +inf at +inf.)
  std::vector<double> edge_weight;
  std::vector<Table> tables;

  /// Node i is live at the points [live_first[i], live_last[i]); empty if memory_limit is
  /// unset.
  std::vector<std::int64_t> live_first;
  std::vector<std::int64_t> live_last;
  /// Bytes available at every point, 0 to 2^53; unset: memory does not matter (the fast
  /// path).
  std::optional<std::int64_t> memory_limit;

  std::int32_t nodes() const { return static_cast<std::int32_t>(option_offset.size()) - 1; }
  std::int32_t edges() const { return static_cast<std::int32_t>(edge_from.size()); }
  std::int32_t option_count(std::int32_t node) const {
    return option_offset[node + 1] - option_offset[node];
  }

  /// Adds a node whose options cost `costs`, without memory. Returns its index.
  std::int32_t add_node(const std::vector<double>& costs);
  /// Adds a table and returns its index for `add_edge`.
  std::int32_t add_table(Table table);
  /// Adds an edge. Do not mix edges with and without weights other than through this function.
  void add_edge(std::int32_t from, std::int32_t to, std::int32_t table, double weight = 1.0);
};

/// Throws std::invalid_argument, naming the field and the index, if `problem` is malformed.
void check(const Problem& problem);

/// Cost of `choice` (one option index a node); +inf if it uses something not allowed.
double cost_of(const Problem& problem, const std::vector<std::int32_t>& choice);

struct CostScale {
  /// Sum of the largest finite costs of all nodes and edges: no partial sum is larger.
  double magnitude;
  /// All finite costs are integers, and so small that doubles hold every sum of them exactly.
  bool is_integral;
};
CostScale cost_scale(const Problem& problem);

/// Bytes at the worst point, and that point.
struct Peak {
  std::int64_t bytes = 0;
  std::int64_t point = 0;
};
Peak peak_of(const Problem& problem, const std::vector<std::int32_t>& choice);

enum class StopReason {
  kOptimal,    ///< the bound met the cost: nothing better exists
  kConverged,  ///< without time limit: search stopped improving
  kTimeLimit,
  kIterationLimit,
  kInterrupted,
  kInfeasible,  ///< proven: no choice is allowed, or none fits the memory
};
const char* to_string(StopReason reason);

/// The state of the search at one time. `cost` is +inf before the first feasible choice.
struct TracePoint {
  double seconds = 0;
  double cost = kNotAllowed;
  double lower_bound = -kNotAllowed;
};

/// What message passing arrived at, in the terms of the problem: where it begins on another
/// one of the same nodes and options, and much the same costs.
struct KnownMessages {
  struct Edge {
    /// Nodes that were left, a < b.
    std::int32_t a, b;
    /// Where the messages to the options of `a` are; behind them those to the options of `b`.
    std::size_t first;
  };
  /// By `a`, then `b`.
  std::vector<Edge> edges;
  /// By node: its options that were left.
  std::vector<std::vector<std::int32_t>> options;
  std::vector<double> messages;
  /// Where they are of a network of other nodes: by node of the problem at hand, the node
  /// there that it takes after, or -1. Empty: nodes are the same.
  std::vector<std::int32_t> nodes;
};

struct Options {
  /// Wall time; +inf: until converged.
  double seconds = kNotAllowed;
  std::uint64_t seed = 0;
  /// Rounds of search, a unit of work that does not depend on the machine. A run that ends by
  /// this limit gives the same answer for the same seed and number of threads.
  std::int64_t max_iterations = std::numeric_limits<std::int64_t>::max();
  /// 1 or 2 are useful; only problems with a memory limit use a second one.
  int threads = 1;
  /// A choice to begin with (one option a node); may be infeasible. Not owned.
  const std::vector<std::int32_t>* start = nullptr;
  /// Without a memory limit: where message passing begins, and receives where it ended; empty
  /// at first. Not owned.
  KnownMessages* known_messages = nullptr;
  /// Stop when (cost - lower_bound) <= gap * |cost|.
  double gap = 0;
  /// Without a memory limit, networks that take no more operations to eliminate are solved
  /// exactly at once; those of five times as many, where message passing leaves a gap.
  double exact_operations = 2e7;
  /// Under a memory limit, tries all choices if presolve leaves no more than these.
  double enumerate_below = 20'000;
  /// Set from another thread or a signal handler: stop soon and return the best so far. Not
  /// owned.
  const std::atomic<bool>* interrupt = nullptr;
  /// Called on the solving thread whenever the trace grows and about ten times a second.
  std::function<void(const TracePoint&)> progress;
};

/// Why a lower bound holds, in the terms of the problem, so that another program can check it:
///
///   1. add sum_t price[t] * bytes to every option, over the points t at which its node is
///   live;
///   2. drop options that are not allowed or have no allowed partner on some edge, repeatedly;
///   3. for each (v, u) of `merged`: every option of u allows exactly one of v, so give u the
///   costs
///      and edges of v; edges between the same two nodes add up;
///   4. take the messages of each edge left from its table and give them to its nodes.
///
/// The sum of all minima of nodes and edges, less sum_t price[t] * memory_limit, is a lower
/// bound for any prices >= 0 and any messages.
struct Certificate {
  double lower_bound = -kNotAllowed;
  std::vector<std::int64_t> point;  ///< increasing
  std::vector<double> price;        ///< cost of a byte at `point`, >= 0
  std::vector<std::int32_t> merged_node;
  std::vector<std::int32_t> merged_into;
  std::vector<std::int32_t> edge_from;  ///< edges left, from < to, each pair once
  std::vector<std::int32_t> edge_to;
  std::vector<double> message;  ///< of each edge: to the options left of from, then of to
};

struct Solution {
  /// One option index a node; empty if nothing feasible was found.
  std::vector<std::int32_t> choice;
  double cost = kNotAllowed;
  double lower_bound = -kNotAllowed;
  std::int64_t peak_memory = 0;
  StopReason stop_reason = StopReason::kConverged;
  std::int64_t iterations = 0;
  double seconds = 0;
  std::vector<TracePoint> trace;
  /// Points and prices on which a bound for the whole problem rests; `certify` takes them.
  std::vector<std::int64_t> priced_point;
  std::vector<double> price;
  /// If nothing feasible was found: what stands in the way, in words.
  std::string diagnosis;

  /// (cost - lower_bound) / |cost|, 0 when equal, +inf without a choice.
  double gap() const;
};

/// Finds a choice of low cost and a lower bound on all of them.
///
/// Expects nothing: checks `problem` and throws std::invalid_argument if it is malformed.
/// Deterministic for given options unless it ends by time or interrupt. Safe to call from
/// several threads with different problems.
Solution solve(const Problem& problem, const Options& options = {});

/// Messages for the prices of a solution, found by at most `passes` passes and `seconds` of
/// wall time. The bound may be lower than the solution's, which also uses what exhaustive
/// reasoning (removed options) showed.
Certificate certify(const Problem& problem, const std::vector<std::int64_t>& point,
                    const std::vector<double>& price, int passes = 500, double seconds = 60);

}  // namespace autoshard::solver
