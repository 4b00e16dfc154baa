#include "planning/loop_sums.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "memory/loop_nest.h"

namespace autoshard::planning {
namespace {

/// Whether an op adds or subtracts two tensors.
bool is_addition(const Rule& rule) {
  return rule.work == Work::elementwise && !rule.has_one_part &&
         rule.part_operands == std::vector<std::int32_t>{0, 1};
}

/// Walks from sums back to the ops that make parts of them.
class Walks {
 public:
  explicit Walks(const Program& program)
      : program_(program),
        maker_(program.values.size(), -1),
        chain_of_(program.values.size(), -1),
        readers_(program.values.size()),
        is_pinned_(program.values.size(), false) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (std::int32_t v : program.ops[i].results) {
        if (v != no_value && maker_[v] < 0) maker_[v] = static_cast<std::int32_t>(i);
      }
    }
    for (const Join& join : program.joins) starts_[join.target].push_back(join.source);
    for (const Pin& pin : program.pins) is_pinned_[pin.value] = true;
  }

  /// The ops that make parts of what loop `loop` carries as its value number `k`; none if
  /// something else is done with them in the loop.
  std::vector<std::int32_t> makers_of(std::int32_t loop, std::size_t k) {
    const Loop& of = program_.loops[loop];
    const std::int32_t sum = of.carried[k];
    if (of.yielded[k] == no_value || of.yielded[k] == sum) return {};
    ++chain_;
    makers_.clear();
    values_.clear();
    bool is_added_to = false;
    waiting_ = {{of.yielded[k], true}};
    while (!waiting_.empty()) {
      const Waiting next = waiting_.back();
      waiting_.pop_back();
      if (next.value == sum && !next.is_added) return {};
      is_added_to = is_added_to || next.value == sum;
      if (next.value != sum && !follow(next)) return {};
    }
    values_.push_back(sum);
    chain_of_[sum] = chain_;
    if (!is_added_to || !are_read_by_chain(of)) return {};
    return makers_;
  }

 private:
  struct Waiting {
    std::int32_t value;
    /// Nothing but additions is between it and what the loop yields.
    bool is_added;
  };

  /// Takes a value for parts of a sum, if it can be that.
  bool follow(const Waiting& next) {
    const std::int32_t value = next.value;
    if (value == no_value) return false;
    if (program_.values[value].is_free || chain_of_[value] == chain_) return true;
    if (is_pinned_[value]) return false;
    chain_of_[value] = chain_;
    values_.push_back(value);
    const std::int32_t op = maker_[value];
    if (op < 0) {
      // What an inner loop carries, or a constraint.
      const auto joined = starts_.find(value);
      if (joined == starts_.end()) return false;
      for (std::int32_t source : joined->second) waiting_.push_back({source, false});
      return true;
    }
    const Rule& rule = program_.rules[program_.ops[op].rule];
    const bool is_maker = rule.adds_up && program_.ops[op].results.size() == 1;
    if (is_maker) makers_.push_back(op);
    if (rule.part_operands.empty()) return is_maker;
    const bool is_added = next.is_added && is_addition(rule);
    for (std::int32_t position : operands_that_are_parts(op)) {
      waiting_.push_back({program_.ops[op].operands[position], is_added});
    }
    return true;
  }

  std::vector<std::int32_t> operands_that_are_parts(std::int32_t op) const {
    const Rule& rule = program_.rules[program_.ops[op].rule];
    if (!rule.has_one_part) return rule.part_operands;
    for (std::int32_t position : rule.part_operands) {
      const std::int32_t value = program_.ops[op].operands[position];
      if (value != no_value && !program_.values[value].is_free) return {position};
    }
    return {rule.part_operands.front()};
  }

  /// Whether nothing in the loop reads the parts but what does the same to each.
  bool are_read_by_chain(const Loop& loop) {
    if (!has_readers_) find_readers();
    for (std::int32_t value : values_) {
      for (const auto& [op, position] : readers_[value]) {
        if (op < loop.first_op || op >= loop.last_op) continue;
        const std::vector<std::int32_t>& results = program_.ops[op].results;
        const bool is_in_chain =
            results.size() == 1 && results[0] != no_value && chain_of_[results[0]] == chain_;
        if (!is_in_chain) return false;
        const std::vector<std::int32_t> parts = operands_that_are_parts(op);
        if (std::find(parts.begin(), parts.end(), position) == parts.end()) return false;
      }
    }
    return true;
  }

  void find_readers() {
    has_readers_ = true;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const std::vector<std::int32_t>& operands = program_.ops[i].operands;
      for (std::size_t k = 0; k < operands.size(); ++k) {
        if (operands[k] == no_value) continue;
        readers_[operands[k]].push_back(
            {static_cast<std::int32_t>(i), static_cast<std::int32_t>(k)});
      }
    }
  }

  struct Reader {
    std::int32_t op, position;
  };

  const Program& program_;
  std::vector<std::int32_t> maker_;
  std::unordered_map<std::int32_t, std::vector<std::int32_t>> starts_;
  /// By value: the last chain that it was part of.
  std::vector<std::int32_t> chain_of_;
  std::int32_t chain_ = -1;
  std::vector<std::int32_t> makers_, values_;
  std::vector<Waiting> waiting_;
  bool has_readers_ = false;
  std::vector<std::vector<Reader>> readers_;
  std::vector<bool> is_pinned_;
};

SummedOp summed_op(const Program& program, const ProgramMemory& memory, const Loop& loop,
                   std::int32_t sum, std::int32_t op) {
  const TensorType& whole = program.types[program.values[sum].type];
  const TensorType& part = program.types[program.values[program.ops[op].results[0]].type];
  LiveRange live = memory.live[memory.alias[sum]];
  if (live.is_empty() && loop.first_op < loop.last_op) {
    live = {memory.point[loop.first_op], memory.point[loop.last_op - 1] + 1};
  }
  return {op,
          sum,
          loop.trips,
          whole.bytes() / part.bytes(),
          static_cast<double>(whole.element_bits) / static_cast<double>(part.element_bits),
          live};
}

}  // namespace

std::vector<SummedOp> summed_ops(const Program& program, const ProgramMemory& memory) {
  std::vector<SummedOp> found;
  const bool may_add_up = std::any_of(program.rules.begin(), program.rules.end(),
                                      [](const Rule& rule) { return rule.adds_up; });
  if (program.loops.empty() || !may_add_up) return found;
  const LoopNest nest(program);
  Walks walks(program);
  std::vector<bool> is_known(program.ops.size(), false);
  for (std::size_t l = 0; l < program.loops.size(); ++l) {
    const Loop& loop = program.loops[l];
    if (nest.parent(static_cast<std::int32_t>(l)) != no_loop || loop.trips <= 1) continue;
    for (std::size_t k = 0; k < loop.carried.size(); ++k) {
      const std::int32_t sum = loop.carried[k];
      if (sum == no_value || program.values[sum].is_free) continue;
      for (std::int32_t op : walks.makers_of(static_cast<std::int32_t>(l), k)) {
        if (is_known[op] || program.ops[op].results[0] == no_value) continue;
        is_known[op] = true;
        found.push_back(summed_op(program, memory, loop, sum, op));
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const SummedOp& a, const SummedOp& b) { return a.op < b.op; });
  return found;
}

}  // namespace autoshard::planning
