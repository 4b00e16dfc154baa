#include "importer/builder.h"

#include <algorithm>
#include <utility>

namespace autoshard::importer {

ProgramBuilder::ProgramBuilder(ModuleStructure module)
    : module_(std::move(module)),
      classes_(module_.num_classes),
      is_described_(module_.num_classes),
      value_of_(module_.num_values, no_value),
      after_(module_.num_values, -1),
      num_reads_(module_.num_values, 0),
      is_zero_scalar_(module_.num_values, false),
      rounds_operands_(module_.num_classes, false),
      rounding_reader_(module_.num_values, -1) {
  for (const std::int32_t ssa : module_.operands) ++num_reads_[ssa];
  ops_.reserve(module_.ops.size());
  values_.reserve(module_.num_values);
}

std::int32_t ProgramBuilder::new_value(std::int32_t type, bool is_free) {
  if (type == no_type) return no_value;
  values_.push_back({type, is_free});
  maker_.push_back(-1);
  rounded_.push_back(no_value);
  is_on_host_.push_back(false);
  is_made_on_host_.push_back(false);
  is_marked_.push_back(false);
  return num_values() - 1;
}

void ProgramBuilder::set_on_host(std::int32_t value) {
  num_on_host_ += !is_on_host_[value];
  is_on_host_[value] = true;
}

void ProgramBuilder::set_marked(std::int32_t value) {
  num_marked_ += !is_marked_[value];
  is_marked_[value] = true;
}

std::int32_t ProgramBuilder::add_plain(std::int32_t op, std::int32_t end, double trips,
                                       const Describe& describe) {
  while (op < end && !is_special(op, describe)) {
    add(op, trips, describe);
    op = module_.ops[op].end;
  }
  return op;
}

void ProgramBuilder::add(std::int32_t number, double trips, const Describe& describe,
                         const std::vector<std::int32_t>* given_types) {
  last_added_ = -1;
  const OpStructure& read = module_.ops[number];
  const std::span<const std::int32_t> operands(module_.operands.data() + read.first_operand,
                                               read.num_operands);
  if (read.num_results == 0) {  // it is there for its effect
    for (const std::int32_t ssa : operands) set_read(value_of_[ssa]);
    return;
  }
  const OpClass& op_class = class_of(number, describe);
  const std::vector<std::int32_t>& result_types =
      given_types != nullptr ? *given_types : op_class.result_types;

  Op op;
  op.trips = trips;
  bool has_scalars = false;
  operand_types_.clear();
  for (const std::int32_t ssa : operands) {
    const std::int32_t value = rounds_operands_[read.op_class]
                                   ? rounded(ssa, number, number, trips, describe)
                                   : value_of_[ssa];
    if (value != value_of_[ssa] && is_cast_of(value_of_[ssa], value)) {
      passed_casts_.push_back({maker_[value_of_[ssa]], -1, value_of_[ssa],
                               static_cast<std::int32_t>(op.operands.size())});
    }
    op.operands.push_back(value);
    operand_types_.push_back(value == no_value ? no_type : values_[value].type);
    has_scalars |= value == no_value;
  }
  const bool is_free =
      op_class.is_free || (op_class.is_broadcast &&
                           (op.operands[0] == no_value || values_[op.operands[0]].is_free));
  if (op_class.is_sum && !op_class.is_special) {
    const std::int32_t sum = added_in_place(number, op.operands);
    if (sum != no_value) {
      alias(number, {&sum, 1});
      for (const std::int32_t ssa : operands) {
        set_after(read.first_result, std::max(after_[read.first_result], after_[ssa]));
      }
      return;
    }
  }
  const auto is_zero = [&](std::int32_t k) {
    return op.operands[k] == no_value ? is_zero_scalar_[operands[k]]
                                      : values_[op.operands[k]].is_zero;
  };
  const bool makes_zeros = op_class.is_zero || (op_class.is_broadcast && is_zero(0));
  bool makes_scalars = false, scalar_is_read = false;
  for (std::int32_t k = 0; k < read.num_results; ++k) {
    const std::int32_t value = new_value(result_types[k], is_free);
    op.results.push_back(value);
    value_of_[read.first_result + k] = value;
    if (makes_zeros && value == no_value) is_zero_scalar_[read.first_result + k] = true;
    if (makes_zeros && value != no_value) values_[value].is_zero = true;
    makes_scalars |= value == no_value;
    scalar_is_read |= value == no_value && num_reads_[read.first_result + k] > 0;
  }
  ops_with_results_.push_back(number);
  if (op_class.is_free) return;
  if (op_class.is_cast && op.results[0] != no_value && op.operands[0] != no_value &&
      rounding_of(result_types[0], describe).type == operand_types_[0]) {
    know_rounded(op.results[0], op.operands[0]);
  }

  if (has_barriers || has_scalars) {
    for (const std::int32_t ssa : operands) op.after = std::max(op.after, after_[ssa]);
  }
  if (makes_scalars) {
    const auto is_scalar = [](std::int32_t value) { return value == no_value; };
    const bool all = std::all_of(op.operands.begin(), op.operands.end(), is_scalar) &&
                     std::all_of(op.results.begin(), op.results.end(), is_scalar);
    for (std::int32_t k = 0; k < read.num_results; ++k) {
      set_after(read.first_result + k, all ? op.after : num_ops());
    }
    if (all) return;
  }
  op.rule = rule_of(number, operand_types_, result_types, describe);
  op.kept_operands.resize(op.operands.size());
  if (num_on_host_ > 0 || host_depth > 0) op.kept_operands = kept_on_host(op);
  if (num_marked_ > 0) reach_main_op(op, op_class.only_moves);
  last_added_ = num_ops();
  for (std::size_t k = passed_casts_.size(); k-- > 0 && passed_casts_[k].reader < 0;) {
    passed_casts_[k].reader = last_added_;
  }
  const bool updates_zeros = op_class.is_update && !op_class.is_special && is_zero(0);
  push(std::move(op), number, number, scalar_is_read);
  updates_zeros_.back() = updates_zeros && num_reads_[read.first_result] == 1;
  for (std::int32_t k = 0; k < read.num_results; ++k) {
    const std::int32_t ssa = read.first_result + k;
    if (rounding_reader_[ssa] >= 0) {
      rounded(ssa, rounding_reader_[ssa], number, trips, describe);
    }
  }
}

void ProgramBuilder::push(Op op, std::int32_t read_op, std::int32_t at, bool makes_scalar) {
  for (const std::int32_t value : op.results) {
    if (value != no_value) maker_[value] = num_ops();
  }
  ops_.push_back(std::move(op));
  makes_scalars_.push_back(makes_scalar);
  updates_zeros_.push_back(false);
  read_ops_.push_back(read_op);
  locations_.push_back(module_.ops[at].location);
}

std::vector<std::int32_t> ProgramBuilder::first_ops() const {
  std::vector<std::int32_t> found(module_.num_classes, -1);
  for (std::size_t op = module_.ops.size(); op-- > 0;) {
    found[module_.ops[op].op_class] = static_cast<std::int32_t>(op);
  }
  return found;
}

void ProgramBuilder::round_operands_of(std::span<const std::int32_t> classes) {
  for (const std::int32_t number : classes) rounds_operands_[number] = true;
  for (std::size_t op = module_.ops.size(); op-- > 0;) {
    const OpStructure& read = module_.ops[op];
    if (!rounds_operands_[read.op_class]) continue;
    for (std::int32_t k = 0; k < read.num_operands; ++k) {
      rounding_reader_[module_.operands[read.first_operand + k]] =
          static_cast<std::int32_t>(op);
    }
  }
}

/// What the op `reader` of the module reads for `ssa`, cast where `at` stands.
std::int32_t ProgramBuilder::rounded(std::int32_t ssa, std::int32_t reader, std::int32_t at,
                                     double trips, const Describe& describe) {
  const std::int32_t value = value_of_[ssa];
  if (value == no_value || values_[value].is_free || is_on_host_[value] || host_depth > 0) {
    return value;
  }
  if (rounded_[value] != no_value) return rounded_[value];
  const Rounding rounding = rounding_of(values_[value].type, describe);
  if (rounding.type == no_type) return value;
  Op cast;
  cast.rule = rounding.rule;
  cast.operands = {value};
  cast.results = {new_value(rounding.type)};
  cast.trips = trips;
  cast.kept_operands = {false};
  if (has_barriers) cast.after = after_[ssa];
  if (num_marked_ > 0) reach_main_op(cast, true);
  know_rounded(value, cast.results[0]);
  const OpStructure& read = module_.ops[reader];
  const auto operands = module_.operands.begin() + read.first_operand;
  const auto position = std::find(operands, operands + read.num_operands, ssa) - operands;
  rounded_operands_.push_back(
      {num_ops(), value, cast.results[0], static_cast<std::int32_t>(position)});
  push(std::move(cast), reader, at, false);
  return rounded_[value];
}

const Rounding& ProgramBuilder::rounding_of(std::int32_t type, const Describe& describe) {
  const auto at = static_cast<std::size_t>(type);
  if (at >= roundings_.size()) {
    roundings_.resize(at + 1);
    is_rounding_known_.resize(at + 1, false);
  }
  if (!is_rounding_known_[at]) {
    roundings_[at] = describe.rounding(type);
    is_rounding_known_[at] = true;
  }
  return roundings_[at];
}

void ProgramBuilder::know_rounded(std::int32_t value, std::int32_t result) {
  rounded_[value] = result;
  known_rounded_.push_back(value);
}

bool ProgramBuilder::is_cast_of(std::int32_t value, std::int32_t source) const {
  if (value == no_value || maker_[value] < 0) return false;
  const std::vector<std::int32_t>& operands = ops_[maker_[value]].operands;
  return operands.size() == 1 && operands[0] == source;
}

std::int32_t ProgramBuilder::added_in_place(std::int32_t sum,
                                            const std::vector<std::int32_t>& operands) {
  if (host_depth > 0 || num_on_host_ > 0 || num_marked_ > 0) return no_value;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const std::int32_t written = operands[k], other = operands[1 - k];
    const auto operand_of = [&](std::size_t which) {
      const auto first = static_cast<std::size_t>(module_.ops[sum].first_operand);
      return module_.operands[first + which];
    };
    const std::int32_t ssa = operand_of(k), after = after_[operand_of(1 - k)];
    if (written == no_value || other == no_value || values_[other].is_free) continue;
    const std::int32_t update = maker_[written];
    // What is written over has to be there before, and what it waits for.
    if (num_reads_[ssa] != 1 || update < 0 || other >= written || after >= update) continue;
    if (!updates_zeros_[update]) continue;
    updates_zeros_[update] = false;
    ops_[update].operands[0] = other;
    ops_[update].after = std::max(ops_[update].after, after);
    return written;
  }
  return no_value;
}

std::vector<UnreadCast> ProgramBuilder::unread_casts() const {
  std::vector<bool> is_read(values_.size(), false);
  for (const Op& op : ops_) {
    for (const std::int32_t value : op.operands) {
      if (value != no_value) is_read[value] = true;
    }
  }
  std::vector<UnreadCast> found;
  for (const UnreadCast& one : passed_casts_) {
    if (is_read[one.result]) continue;
    is_read[one.result] = true;
    found.push_back(one);
  }
  return found;
}

void ProgramBuilder::forget_rounded(std::size_t since) {
  for (std::size_t k = since; k < known_rounded_.size(); ++k) {
    rounded_[known_rounded_[k]] = no_value;
  }
  known_rounded_.resize(std::min(since, known_rounded_.size()));
}

void ProgramBuilder::alias(std::int32_t op, std::span<const std::int32_t> values) {
  const OpStructure& read = module_.ops[op];
  for (std::int32_t k = 0; k < read.num_results; ++k) {
    value_of_[read.first_result + k] = values[k];
  }
  ops_with_results_.push_back(op);
}

void ProgramBuilder::set_operands(std::int32_t program_op, std::vector<std::int32_t> operands,
                                  std::vector<bool> kept) {
  ops_[program_op].operands = std::move(operands);
  ops_[program_op].kept_operands = std::move(kept);
}

void ProgramBuilder::join(std::int32_t source, std::int32_t target, double trips) {
  if (source != target && source != no_value) joins_.push_back({source, target, trips});
}

void ProgramBuilder::scale_trips(const Mark& mark, double factor) {
  for (std::size_t op = mark.op; op < ops_.size(); ++op) ops_[op].trips *= factor;
  for (std::size_t j = mark.join; j < joins_.size(); ++j) joins_[j].trips *= factor;
}

std::int32_t ProgramBuilder::wait_for(std::span<const std::int32_t> of) {
  std::int32_t last = -1;
  for (const std::int32_t ssa : of) {
    last = std::max(last, after_[ssa]);
    const std::int32_t value = value_of_[ssa];
    if (value == no_value || maker_[value] < 0) continue;
    last = std::max(last, maker_[value]);
    Op& maker = ops_[maker_[value]];
    if (maker.until < 0) maker.until = num_ops();
  }
  return last;
}

Program ProgramBuilder::take() {
  Program program;
  program.values = std::move(values_);
  program.ops = std::move(ops_);
  program.joins = std::move(joins_);
  return program;
}

ReadModule ProgramBuilder::take_module() {
  ReadModule read{std::move(module_), std::move(value_of_), {}};
  read.op_of.assign(read.structure.ops.size(), -1);
  // A cast comes before its matmul, which stands for both.
  for (std::size_t op = 0; op < read_ops_.size(); ++op) {
    read.op_of[read_ops_[op]] = static_cast<std::int32_t>(op);
  }
  return read;
}

const OpClass& ProgramBuilder::class_of(std::int32_t op, const Describe& describe) {
  const std::int32_t number = module_.ops[op].op_class;
  if (!is_described_[number]) {
    classes_[number] = describe.op_class(op);
    is_described_[number] = true;
  }
  return classes_[number];
}

bool ProgramBuilder::is_special(std::int32_t op, const Describe& describe) {
  const OpClass& op_class = class_of(op, describe);
  if (!op_class.is_special || op_class.num_placed == 0) return op_class.is_special;
  const OpStructure& read = module_.ops[op];
  for (std::int32_t k = 0; k < std::min(op_class.num_placed, read.num_operands); ++k) {
    const std::int32_t value = value_of_[module_.operands[read.first_operand + k]];
    if (value != no_value && is_on_host_[value]) return true;
  }
  return false;
}

std::int32_t ProgramBuilder::rule_of(std::int32_t op,
                                     const std::vector<std::int32_t>& operand_types,
                                     const std::vector<std::int32_t>& result_types,
                                     const Describe& describe) {
  key_.assign({module_.ops[op].op_class, host_depth > 0});
  key_.insert(key_.end(), operand_types.begin(), operand_types.end());
  key_.insert(key_.end(), result_types.begin(), result_types.end());
  const auto is_wanted = [&](int at) { return rule_keys_[at] == key_; };
  return rules_[rule_index_.find_or_insert(hash_of(key_), is_wanted, [&] {
    rule_keys_.push_back(key_);
    rules_.push_back(describe.rule(op, operand_types, result_types));
    return static_cast<int>(rules_.size()) - 1;
  })];
}

/// Which operands an op takes as they are, because nothing can reshard them there.
std::vector<bool> ProgramBuilder::kept_on_host(const Op& op) {
  std::vector<bool> kept;
  for (const std::int32_t value : op.operands) {
    kept.push_back(value != no_value &&
                   (is_on_host_[value] || (host_depth > 0 && is_made_on_host_[value])));
  }
  if (host_depth > 0) {
    for (const std::int32_t value : op.results) {
      if (value != no_value) is_made_on_host_[value] = true;
    }
  }
  return kept;
}

/// The first reader of a marked value takes it as it is; through ops that only move.
void ProgramBuilder::reach_main_op(Op& op, bool only_moves) {
  for (std::size_t k = 0; k < op.operands.size(); ++k) {
    if (op.operands[k] != no_value && is_marked_[op.operands[k]]) op.kept_operands[k] = true;
  }
  if (std::find(op.kept_operands.begin(), op.kept_operands.end(), true) ==
      op.kept_operands.end()) {
    return;
  }
  for (const std::int32_t value : op.operands) {
    if (value != no_value && is_marked_[value]) {
      is_marked_[value] = false;
      --num_marked_;
    }
  }
  if (only_moves) {
    for (const std::int32_t value : op.results) {
      if (value != no_value) set_marked(value);
    }
  }
}

}  // namespace autoshard::importer
