#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "solver/messages.h"
#include "solver/network.h"
#include "solver/presolve.h"
#include "solver/problem.h"
#include "solver/run.h"

namespace autoshard::solver {

Certificate certify(const Problem& problem, const std::vector<std::int64_t>& point,
                    const std::vector<double>& price, int passes, double seconds) {
  check(problem);
  if (point.size() != price.size() || !std::is_sorted(point.begin(), point.end())) {
    throw std::invalid_argument("certify: needs increasing points, and one price for each");
  }
  Certificate certificate;
  certificate.point = point;
  certificate.price = price;
  Problem charged = problem;
  charged.memory_limit.reset();
  std::vector<double> sums(price.size() + 1, 0.0);
  for (std::size_t t = 0; t < price.size(); ++t) {
    if (!(price[t] >= 0)) throw std::invalid_argument("certify: prices must be >= 0");
    sums[t + 1] = sums[t] + price[t];
  }
  double largest_charge = 0;
  for (int i = 0; i < problem.nodes() && problem.memory_limit; ++i) {
    const auto position = [&](std::int64_t time) {
      return std::lower_bound(point.begin(), point.end(), time) - point.begin();
    };
    if (problem.live_first[i] >= problem.live_last[i]) continue;
    const double each =
        sums[position(problem.live_last[i])] - sums[position(problem.live_first[i])];
    double largest = 0;
    for (int o = problem.option_offset[i]; o < problem.option_offset[i + 1]; ++o) {
      const double charge = each * static_cast<double>(problem.option_memory[o]);
      charged.option_cost[o] += charge;
      largest = std::max(largest, charge);
    }
    largest_charge += largest;
  }
  Reduction reduction(charged);
  if (!restrict_options(reduction)) {
    certificate.lower_bound = kNotAllowed;
    return certificate;
  }
  merge_tied(reduction);
  for (const auto& [node, into] : reduction.merged()) {
    certificate.merged_node.push_back(node);
    certificate.merged_into.push_back(into);
  }
  const Network network = freeze(reduction);
  Messages messages(network);
  Options limits;
  limits.seconds = seconds;
  Run run(limits);
  StopReason reason;
  double settled = -kNotAllowed;
  int idle = 0;
  for (int pass = 0; pass < passes && idle < 20 && !run.should_stop(pass, reason); pass += 2) {
    messages.pass(network.unary, true, nullptr);
    const double bound = messages.pass(network.unary, false, nullptr);
    idle = bound > settled + 1e-7 * std::abs(bound) ? 0 : idle + 1;
    settled = std::max(settled, bound);
  }
  messages.pass(network.unary, true, nullptr);
  const std::vector<double> given = messages.reparametrization(network.unary);
  const double limit = problem.memory_limit ? static_cast<double>(*problem.memory_limit) : 0.0;
  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  const double size = largest_charge + sums.back() * limit;
  certificate.lower_bound = messages.safe_bound(network.unary, given) - sums.back() * limit -
                            (4.0 * static_cast<double>(price.size()) + 16.0) * kEpsilon * size;
  for (const Network::Edge& edge : network.edges) {
    certificate.edge_from.push_back(network.source[edge.a]);
    certificate.edge_to.push_back(network.source[edge.b]);
  }
  certificate.message = given;  // edges are stored in this order, the messages to `a` first
  return certificate;
}

}  // namespace autoshard::solver
