#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "solver/problem.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {
namespace {

using Ints = Column<std::int32_t>;
using Longs = Column<std::int64_t>;
using Doubles = Column<double>;

template <typename Array>
auto to_vector(const Array& array) {
  return std::vector<std::remove_const_t<typename Array::Scalar>>(array.data(),
                                                                  array.data() + array.size());
}

/// `table_entries` holds the tables one after the other.
solver::Problem make_problem(Ints option_offset, Doubles option_cost, Longs option_memory,
                             Ints edge_from, Ints edge_to, Ints edge_table,
                             Doubles edge_weight, Ints table_rows, Ints table_cols,
                             Doubles table_entries, Longs live_first, Longs live_last,
                             std::optional<std::int64_t> memory_limit) {
  solver::Problem problem;
  problem.option_offset = to_vector(option_offset);
  problem.option_cost = to_vector(option_cost);
  problem.option_memory = to_vector(option_memory);
  problem.edge_from = to_vector(edge_from);
  problem.edge_to = to_vector(edge_to);
  problem.edge_table = to_vector(edge_table);
  problem.edge_weight = to_vector(edge_weight);
  if (table_rows.size() != table_cols.size()) {
    throw std::invalid_argument("table_cols: must be as long as table_rows");
  }
  std::size_t at = 0;
  for (std::size_t t = 0; t < table_rows.size(); ++t) {
    const std::int32_t rows = table_rows.data()[t], cols = table_cols.data()[t];
    const std::size_t size = static_cast<std::size_t>(std::max(rows, 0)) *
                             static_cast<std::size_t>(std::max(cols, 0));
    if (size > table_entries.size() - at) {
      throw std::invalid_argument("table_entries: too short for table " + std::to_string(t));
    }
    const double* begin = table_entries.data() + at;
    problem.tables.push_back({rows, cols, std::vector<double>(begin, begin + size)});
    at += size;
  }
  if (at != table_entries.size()) {
    throw std::invalid_argument("table_entries: longer than all tables together");
  }
  problem.live_first = to_vector(live_first);
  problem.live_last = to_vector(live_last);
  problem.memory_limit = memory_limit;
  solver::check(problem);
  return problem;
}

/// Refuses a choice whose length or entries do not fit, so that the core may index with it.
std::vector<std::int32_t> checked_choice(const solver::Problem& problem, Ints choice) {
  std::vector<std::int32_t> result = to_vector(choice);
  if (static_cast<std::int32_t>(result.size()) != problem.nodes()) {
    throw std::invalid_argument("choice: has " + std::to_string(result.size()) +
                                " entries, needs one for each of " +
                                std::to_string(problem.nodes()) + " nodes");
  }
  for (std::int32_t i = 0; i < problem.nodes(); ++i) {
    if (result[i] < 0 || result[i] >= problem.option_count(i)) {
      throw std::invalid_argument("choice[" + std::to_string(i) + "]: is " +
                                  std::to_string(result[i]) + ", node has options 0.." +
                                  std::to_string(problem.option_count(i) - 1));
    }
  }
  return result;
}

solver::Solution solve(const solver::Problem& problem, double seconds, std::uint64_t seed,
                       std::int64_t max_iterations, int threads, double gap,
                       double enumerate_below, std::optional<Ints> start, nb::object progress,
                       double exact_operations, solver::KnownMessages* known_messages) {
  solver::Options options;
  options.seconds = seconds;
  options.seed = seed;
  options.max_iterations = max_iterations;
  options.threads = threads;
  options.gap = gap;
  options.enumerate_below = enumerate_below;
  options.exact_operations = exact_operations;
  options.known_messages = known_messages;
  std::vector<std::int32_t> begin;
  if (start) {
    begin = checked_choice(problem, *start);
    options.start = &begin;
  }
  std::atomic<bool> interrupt{false};
  std::exception_ptr failure;
  options.interrupt = &interrupt;
  options.progress = [&](const solver::TracePoint& point) {
    nb::gil_scoped_acquire acquire;
    if (interrupt.load()) return;
    try {
      if (!progress.is_none()) progress(point.seconds, point.cost, point.lower_bound);
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    } catch (const nb::python_error& error) {
      interrupt = true;
      // Ctrl-C, also while Python runs `progress`: the best choice so far is the answer.
      if (!error.matches(PyExc_KeyboardInterrupt)) failure = std::current_exception();
    } catch (...) {
      interrupt = true;
      failure = std::current_exception();
    }
  };
  solver::Solution solution;
  {
    nb::gil_scoped_release release;
    solution = solver::solve(problem, options);
  }
  if (failure) std::rethrow_exception(failure);
  return solution;
}

}  // namespace

void bind_solver(nb::module_& module) {
  nb::class_<solver::Table>(module, "SolverTable")
      .def_ro("rows", &solver::Table::rows)
      .def_ro("cols", &solver::Table::cols)
      .def_ro("cost", &solver::Table::cost, "Row after row.");
  nb::class_<solver::TracePoint>(module, "SolverTracePoint")
      .def_ro("seconds", &solver::TracePoint::seconds)
      .def_ro("cost", &solver::TracePoint::cost)
      .def_ro("lower_bound", &solver::TracePoint::lower_bound);
  nb::class_<solver::Problem>(module, "SolverProblem",
                              "For small networks: every list is copied when it is read.")
      .def_prop_ro("nodes", &solver::Problem::nodes)
      .def_prop_ro("edges", &solver::Problem::edges)
      .def_ro("option_offset", &solver::Problem::option_offset)
      .def_ro("option_cost", &solver::Problem::option_cost)
      .def_ro("edge_from", &solver::Problem::edge_from)
      .def_ro("edge_to", &solver::Problem::edge_to)
      .def_ro("edge_table", &solver::Problem::edge_table)
      .def_ro("edge_weight", &solver::Problem::edge_weight)
      .def_ro("tables", &solver::Problem::tables);
  nb::class_<solver::KnownMessages>(
      module, "SolverMessages",
      "Where message passing ended on one problem, for another one much like it.")
      .def(nb::init<>())
      .def_rw(
          "nodes", &solver::KnownMessages::nodes,
          "By node of the other problem, the node that it takes after, or -1; empty: nodes "
          "are the same.");
  nb::class_<solver::Solution>(module, "SolverSolution")
      .def_prop_ro(
          "choice", [](const solver::Solution& s) { return to_array(s.choice); },
          nb::rv_policy::move)
      .def_ro("cost", &solver::Solution::cost)
      .def_ro("lower_bound", &solver::Solution::lower_bound)
      .def_ro("peak_memory", &solver::Solution::peak_memory)
      .def_ro("stop_reason", &solver::Solution::stop_reason)
      .def_ro("iterations", &solver::Solution::iterations)
      .def_ro("seconds", &solver::Solution::seconds)
      .def_ro("trace", &solver::Solution::trace)
      .def_prop_ro(
          "priced_point", [](const solver::Solution& s) { return to_array(s.priced_point); },
          nb::rv_policy::move)
      .def_prop_ro(
          "price", [](const solver::Solution& s) { return to_array(s.price); },
          nb::rv_policy::move)
      .def_ro("diagnosis", &solver::Solution::diagnosis);
  nb::class_<solver::Certificate>(module, "SolverCertificate")
      .def_ro("lower_bound", &solver::Certificate::lower_bound)
      .def_prop_ro(
          "point", [](const solver::Certificate& c) { return to_array(c.point); },
          nb::rv_policy::move)
      .def_prop_ro(
          "price", [](const solver::Certificate& c) { return to_array(c.price); },
          nb::rv_policy::move)
      .def_prop_ro(
          "merged_node", [](const solver::Certificate& c) { return to_array(c.merged_node); },
          nb::rv_policy::move)
      .def_prop_ro(
          "merged_into", [](const solver::Certificate& c) { return to_array(c.merged_into); },
          nb::rv_policy::move)
      .def_prop_ro(
          "edge_from", [](const solver::Certificate& c) { return to_array(c.edge_from); },
          nb::rv_policy::move)
      .def_prop_ro(
          "edge_to", [](const solver::Certificate& c) { return to_array(c.edge_to); },
          nb::rv_policy::move)
      .def_prop_ro(
          "message", [](const solver::Certificate& c) { return to_array(c.message); },
          nb::rv_policy::move);
  module.def("make_solver_problem", &make_problem, "option_offset"_a, "option_cost"_a,
             "option_memory"_a, "edge_from"_a, "edge_to"_a, "edge_table"_a, "edge_weight"_a,
             "table_rows"_a, "table_cols"_a, "table_entries"_a, "live_first"_a, "live_last"_a,
             "memory_limit"_a.none());
  module.def("solve", &solve, "problem"_a, "seconds"_a, "seed"_a, "max_iterations"_a,
             "threads"_a, "gap"_a, "enumerate_below"_a, "start"_a.none(), "progress"_a.none(),
             "exact_operations"_a = solver::Options{}.exact_operations,
             "known_messages"_a.none() = nb::none());
  module.def(
      "cost_of",
      [](const solver::Problem& problem, Ints choice) {
        return solver::cost_of(problem, checked_choice(problem, choice));
      },
      "problem"_a, "choice"_a);
  module.def(
      "certify",
      [](const solver::Problem& problem, Longs point, Doubles price, int passes,
         double seconds) {
        nb::gil_scoped_release release;
        return solver::certify(problem, to_vector(point), to_vector(price), passes, seconds);
      },
      "problem"_a, "point"_a, "price"_a, "passes"_a, "seconds"_a);
}

}  // namespace autoshard
