#include "bindings/program_tuples.h"

namespace autoshard {
namespace {

std::vector<RuleTensor> rule_tensors(const std::vector<TensorTuple>& tuples) {
  std::vector<RuleTensor> tensors;
  for (const auto& [type, dims] : tuples) tensors.push_back({type, dims});
  return tensors;
}

void set_work(Rule& rule, const WorkTuple& tuple) {
  const auto& [work, arithmetic, flops, is_cheap, has_workspace, operand_bytes, result_bytes,
               in_place, padded_bytes, expense] = tuple;
  if (work < 0 || work > static_cast<int>(Work::kernel)) throw InvalidProgram("unknown work");
  if (arithmetic < 0 || arithmetic >= num_arithmetics) {
    throw InvalidProgram("unknown arithmetic");
  }
  if (expense < 0 || expense >= static_cast<int>(Expense::never)) {
    throw InvalidProgram("unknown expense");
  }
  rule.work = static_cast<Work>(work);
  rule.arithmetic = static_cast<Arithmetic>(arithmetic);
  rule.flops = flops;
  rule.is_cheap = is_cheap;
  rule.has_workspace = has_workspace;
  rule.operand_bytes = operand_bytes;
  rule.result_bytes = result_bytes;
  rule.in_place_operand = in_place;
  rule.padded_bytes = padded_bytes;
  rule.expense = static_cast<Expense>(expense);
}

}  // namespace

std::vector<Pin> make_pins(const std::vector<PinTuple>& tuples) {
  std::vector<Pin> pins;
  for (const auto& [value, dims, replicated] : tuples) {
    Pin pin{value, {}, {replicated.begin(), replicated.end()}};
    for (const auto& [axes, is_open, num_shards] : dims) {
      DimPin dim{{}, is_open, num_shards};
      for (std::int32_t axis : axes) dim.axes.push_back(static_cast<AxisIndex>(axis));
      pin.dims.push_back(std::move(dim));
    }
    pins.push_back(std::move(pin));
  }
  return pins;
}

void set_tables(Program& program, const std::vector<std::int64_t>& axis_sizes,
                const std::vector<TypeTuple>& types, const std::vector<RuleTuple>& rules,
                const std::vector<WorkTuple>& works, bool all_to_all) {
  program.mesh = {axis_sizes, all_to_all};
  for (const auto& [dims, bits] : types) program.types.push_back({dims, bits});
  for (const auto& [factors, operand_tensors, result_tensors] : rules) {
    Rule rule;
    for (const auto& [size, kind, halo] : factors) {
      if (kind < 0 || kind > 3) throw InvalidProgram("unknown factor kind");
      rule.factors.push_back({size, static_cast<FactorKind>(kind), halo});
    }
    rule.operands = rule_tensors(operand_tensors);
    rule.results = rule_tensors(result_tensors);
    program.rules.push_back(std::move(rule));
  }
  if (!works.empty()) {
    if (works.size() != rules.size()) throw InvalidProgram("rules and works differ in number");
    for (std::size_t i = 0; i < works.size(); ++i) set_work(program.rules[i], works[i]);
  }
}

void set_edges(Program& program, const std::vector<PinTuple>& pins,
               const std::vector<LoopTuple>& loops,
               const std::vector<ArgumentTuple>& arguments,
               const std::vector<std::int32_t>& results,
               const std::vector<std::int32_t>& early) {
  program.pins = make_pins(pins);
  for (const auto& [first, last, trips, carried, yielded] : loops) {
    program.loops.push_back({first, last, trips, carried, yielded});
  }
  for (const auto& [value, is_donated] : arguments) {
    program.arguments.push_back({value, is_donated});
  }
  program.results = results;
  program.early = early;
}

}  // namespace autoshard
