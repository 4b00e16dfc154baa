#include "micro_batch/classifier.h"

#include <algorithm>

namespace autoshard::micro_batch {

using importer::Block;
using importer::OpStructure;

Classifier::Classifier(const importer::ModuleStructure& module, std::int64_t micro_batches,
                       const std::function<OpCut(std::int32_t)>& describe)
    : module(module),
      micro_batches(micro_batches),
      is_whole(module.ops.size()),
      is_each(module.ops.size()),
      describe_(describe),
      cuts_(module.num_classes),
      is_described_(module.num_classes),
      is_read_(module.num_values) {
  for (const std::int32_t value : module.operands) is_read_[value] = true;
  time.assign(module.num_values, {});
  is_zero.assign(module.num_values, false);
  made_in_loop_.assign(module.num_values, false);
  begins_sum.assign(module.ops.size(), false);
  in_loop.assign(module.ops.size(), false);
  part.assign(module.operands.size(), {});
  is_once.assign(module.operands.size(), false);
}

const OpCut& Classifier::cut_of(std::int32_t op) {
  const std::int32_t number = module.ops[op].op_class;
  if (!is_described_[number]) {
    cuts_[number] = describe_(op);
    is_described_[number] = true;
  }
  return cuts_[number];
}

std::span<const std::int32_t> Classifier::operands(std::int32_t op) const {
  const OpStructure& read = module.ops[op];
  return {module.operands.data() + read.first_operand,
          static_cast<std::size_t>(read.num_operands)};
}

std::span<const Block> Classifier::blocks(std::int32_t op) const {
  const OpStructure& read = module.ops[op];
  return {module.regions.data() + read.first_region,
          static_cast<std::size_t>(read.num_regions)};
}

void Classifier::Met::meet(const ValueTime& met) {
  slice |= met.time == Time::slice;
  addend |= met.time == Time::addend;
  after |= met.time == Time::after;
  each |= met.time == Time::each;
}

Classifier::Met Classifier::met(std::span<const std::int32_t> values) const {
  Met found;
  for (const std::int32_t value : values) {
    found.meet(time[value]);
    found.in_loop |= made_in_loop_[value] != 0;
  }
  return found;
}

/// What an op reads, in its regions too. Values that are made in there were forgotten before.
Classifier::Met Classifier::captured(std::int32_t op) const {
  const OpStructure& first = module.ops[op];
  const std::int32_t last = first.end - 1;
  const std::int32_t end = module.ops[last].first_operand + module.ops[last].num_operands;
  return met({module.operands.data() + first.first_operand,
              static_cast<std::size_t>(end - first.first_operand)});
}

void Classifier::set_results(std::int32_t op, ValueTime wanted) {
  for (std::int32_t k = 0; k < module.ops[op].num_results; ++k) time[result(op, k)] = wanted;
}

void Classifier::set_arguments(const Block& block, const std::vector<ValueTime>& times) {
  for (std::int32_t k = 0; k < block.num_arguments; ++k) {
    time[block.first_argument + k] = times[k];
    is_zero[block.first_argument + k] = false;
    made_in_loop_[block.first_argument + k] = true;
  }
}

void Classifier::set_before(std::int32_t op) {
  forget(op);
  set_results(op, {});
  in_loop[op] = false;
  for (std::int32_t k = 0; k < module.ops[op].num_results; ++k) {
    made_in_loop_[result(op, k)] = false;
  }
}

/// All that was found out of the inside of an op, and of its operands.
void Classifier::forget(std::int32_t op) {
  for (std::int32_t inner = op; inner < module.ops[op].end; ++inner) {
    const OpStructure& read = module.ops[inner];
    begins_sum[inner] = false;
    for (std::int32_t k = 0; k < read.num_operands; ++k) {
      part[read.first_operand + k] = {};
      is_once[read.first_operand + k] = false;
    }
    for (const Block& inside : blocks(inner)) {
      for (std::int32_t k = 0; k < inside.num_arguments; ++k) {
        time[inside.first_argument + k] = {};
        made_in_loop_[inside.first_argument + k] = false;
      }
    }
    if (inner == op) continue;
    set_results(inner, {});
    for (std::int32_t k = 0; k < read.num_results; ++k) {
      made_in_loop_[result(inner, k)] = false;
    }
  }
}

void Classifier::block(const Block& block, int depth) {
  for (std::int32_t op = block.first_op; op < block.last_op; op = module.ops[op].end) {
    read(op, depth);
  }
}

void Classifier::read(std::int32_t op, int depth) {
  set_before(op);
  if (is_whole[op]) return;
  const OpKind kind = cut_of(op).kind;
  if (kind == OpKind::plain) plain(op, depth);
  if (kind == OpKind::identity) identity(op);
  if (kind == OpKind::loop) loop(op, depth);
  if (kind == OpKind::branches) branches(op, depth);
  bool runs_in_loop = met(operands(op)).in_loop, waits = false;
  for (std::int32_t k = 0; k < module.ops[op].num_results; ++k) {
    const Time made = time[result(op, k)].time;
    waits |= made == Time::after;
    runs_in_loop |= made != Time::before && made != Time::after;
  }
  // A barrier of both is in the loop; what is known after it passes it by.
  if (!runs_in_loop || (waits && kind != OpKind::identity)) return;
  in_loop[op] = true;
  for (std::int32_t k = 0; k < module.ops[op].num_results; ++k) {
    made_in_loop_[result(op, k)] = true;
  }
}

void Classifier::plain(std::int32_t op, int depth) {
  const OpCut& rule = cut_of(op);
  const std::span<const std::int32_t> read = operands(op);
  bool is_nothing = rule.is_zero || (rule.linear == Linear::together && !rule.data.empty());
  if (rule.linear == Linear::together) {
    for (const std::int32_t k : rule.data) is_nothing &= is_zero[read[k]] != 0;
  }
  for (std::int32_t k = 0; k < module.ops[op].num_results; ++k) {
    is_zero[result(op, k)] = is_nothing;
  }
  const Met found = met(read);
  const bool passes = found.addend && passes_addends(op, rule, found, depth);
  if (found.after || (found.addend && !passes)) {
    if (found.slice || depth > 0) throw CannotCut{Why::mixes, op};
    set_results(op, {Time::after});
  } else if (found.slice) {
    cut(op);
  } else if (found.addend) {
    set_results(op, {Time::addend});
  } else {
    set_results(op, {found.each ? Time::each : Time::before});
  }
}

/// Whether the op makes addends of addends. Whole data operands count once then.
bool Classifier::passes_addends(std::int32_t op, const OpCut& rule, const Met& found,
                                int depth) {
  const std::span<const std::int32_t> read = operands(op);
  if (found.slice) {  // only what it adds to
    for (std::int32_t k = 0; k < static_cast<std::int32_t>(read.size()); ++k) {
      if (time[read[k]].time == Time::addend && k != rule.added_to) return false;
    }
    return true;
  }
  if (rule.linear == Linear::none || (depth == 0 && (!rule.is_early || found.each))) {
    return false;
  }
  std::int32_t addends = 0;
  for (std::int32_t k = 0; k < static_cast<std::int32_t>(read.size()); ++k) {
    const bool is_data = std::find(rule.data.begin(), rule.data.end(), k) != rule.data.end();
    const Time met = time[read[k]].time;
    if (met == Time::addend) {
      if (!is_data) return false;
      ++addends;
    } else if (is_data && rule.linear == Linear::together && !is_zero[read[k]]) {
      if (depth == 0 || met != Time::before) return false;
      is_once[module.ops[op].first_operand + k] = true;
    }
  }
  return rule.linear == Linear::together || addends == 1;
}

Classifier::FactorCut Classifier::factor_of(std::int32_t op,
                                            const std::vector<std::vector<std::int32_t>>& dims,
                                            const Part& wanted) {
  const OpCut& rule = cut_of(op);
  std::int64_t minor = 1;
  const std::vector<std::int32_t>& factors = dims.at(wanted.dim);
  for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
    const std::int64_t size = rule.factors[*factor].size;
    if (wanted.stride % minor == 0 && (minor * size) % (wanted.stride * micro_batches) == 0) {
      return {*factor, wanted.stride / minor};
    }
    minor *= size;
  }
  throw CannotCut{factors.empty() ? Why::part : Why::uneven, op};
}

Part Classifier::part_of(std::int32_t op, const std::vector<std::vector<std::int32_t>>& dims,
                         const FactorCut& cut) {
  const OpCut& rule = cut_of(op);
  for (std::int32_t dim = 0; dim < static_cast<std::int32_t>(dims.size()); ++dim) {
    std::int64_t minor = 1;
    for (auto factor = dims[dim].rbegin(); factor != dims[dim].rend(); ++factor) {
      if (*factor == cut.factor) return {dim, cut.stride * minor};
      minor *= rule.factors[*factor].size;
    }
  }
  return {};
}

bool Classifier::may_be_cut(std::int32_t op, const FactorCut& cut) {
  const Factor& factor = cut_of(op).factors[cut.factor];
  return factor.kind == FactorKind::pass_through || factor.kind == FactorKind::reduction;
}

void Classifier::cut(std::int32_t op) {
  const OpCut& rule = cut_of(op);
  const std::span<const std::int32_t> read = operands(op);
  if (rule.operands.size() != read.size()) throw CannotCut{Why::part, op};
  FactorCut found{-1, 0};
  for (std::size_t k = 0; k < read.size(); ++k) {
    const ValueTime& met = time[read[k]];
    if (met.time != Time::slice) continue;
    const FactorCut here = factor_of(op, rule.operands[k], {met.dim, met.stride});
    if (found.factor >= 0 && (here.factor != found.factor || here.stride != found.stride)) {
      throw CannotCut{Why::examples, op};
    }
    found = here;
  }
  if (!may_be_cut(op, found)) throw CannotCut{Why::part, op};
  for (std::size_t k = 0; k < read.size(); ++k) {
    const Part wanted = part_of(op, rule.operands[k], found);
    if (wanted.dim < 0 || time[read[k]].time == Time::slice) continue;
    const Time met = time[read[k]].time;
    if (met != Time::before && met != Time::each) throw CannotCut{Why::examples, op};
    part[module.ops[op].first_operand + k] = wanted;
  }
  if (rule.factors[found.factor].kind == FactorKind::reduction) {
    add_up(op);
    return;
  }
  for (const std::int32_t value : read) {
    if (time[value].time == Time::addend) throw CannotCut{Why::mixes, op};
  }
  for (std::int32_t k = 0; k < module.ops[op].num_results; ++k) {
    const Part made = part_of(op, rule.results[k], found);
    if (made.dim < 0 && !is_read_[result(op, k)]) continue;  // the workspace of a kernel
    if (made.dim < 0) throw CannotCut{Why::part, op};
    time[result(op, k)] = {Time::slice, made.dim, made.stride};
  }
}

void Classifier::add_up(std::int32_t op) {
  const OpCut& rule = cut_of(op);
  if (is_each[op]) {
    set_results(op, {Time::each});
    return;
  }
  if (!rule.adds) throw CannotCut{Why::no_sum, op};
  if (rule.added_to >= 0) settle(op, rule.added_to, {Time::addend});
  begins_sum[op] = true;
  set_results(op, {Time::addend});
}

void Classifier::identity(std::int32_t op) {
  const std::span<const std::int32_t> read = operands(op);
  for (std::int32_t k = 0; k < module.ops[op].num_results; ++k) {
    time[result(op, k)] = time[read[k]];
    is_zero[result(op, k)] = is_zero[read[k]];
  }
}

void Classifier::loop(std::int32_t op, int depth) {
  forget(op);
  const Met found = captured(op);
  if (!found.slice && !found.each && !(depth > 0 && found.addend)) {
    if (depth > 0 && found.after) throw CannotCut{Why::mixes, op};
    set_results(op, {found.after || found.addend ? Time::after : Time::before});
    return;
  }
  if (found.after) throw CannotCut{Why::mixes, op};
  read_loop(op, depth, {});
}

void Classifier::read_loop(std::int32_t op, int depth, const std::vector<ValueTime>& wanted) {
  const std::span<const std::int32_t> initial = operands(op);
  const std::span<const Block> inside = blocks(op);
  const std::int32_t last = inside[1].last_op;
  std::vector<ValueTime> carried;
  for (std::size_t k = 0; k < initial.size(); ++k) {
    carried.push_back(wanted.empty() ? time[initial[k]]
                                     : join(op, time[initial[k]], wanted[k]));
  }
  while (true) {
    forget(op);
    for (const Block& one : inside) set_arguments(one, carried);
    for (const Block& one : inside) block(one, depth + 1);
    const Time condition = time[operands(inside[0].last_op)[0]].time;
    if (condition != Time::before) throw CannotCut{Why::mixes, op};
    bool changes = false;
    for (std::size_t k = 0; k < carried.size(); ++k) {
      const ValueTime joined = join(op, carried[k], time[operands(last)[k]]);
      changes |= !(joined == carried[k]);
      carried[k] = joined;
    }
    if (!changes) break;
  }
  for (std::size_t k = 0; k < carried.size(); ++k) {
    settle(op, static_cast<std::int32_t>(k), carried[k]);
    settle(last, static_cast<std::int32_t>(k), carried[k]);
    time[result(op, static_cast<std::int32_t>(k))] = carried[k];
  }
}

void Classifier::branches(std::int32_t op, int depth) {
  forget(op);
  const Met found = captured(op);
  if (!found.slice && !found.each && !(depth > 0 && found.addend)) {
    if (depth > 0 && found.after) throw CannotCut{Why::mixes, op};
    set_results(op, {found.after || found.addend ? Time::after : Time::before});
    return;
  }
  const Time index = time[operands(op)[0]].time;
  if (found.after || (index != Time::before && index != Time::each)) {
    throw CannotCut{Why::mixes, op};
  }
  std::vector<ValueTime> made(module.ops[op].num_results);
  for (const Block& one : blocks(op)) {
    block(one, depth + 1);
    for (std::size_t k = 0; k < made.size(); ++k) {
      made[k] = join(op, made[k], time[operands(one.last_op)[k]]);
    }
  }
  for (std::size_t k = 0; k < made.size(); ++k) {
    const bool differs = index == Time::each && made[k].time == Time::before;
    if (differs) made[k].time = Time::each;
    for (const Block& one : blocks(op)) {
      settle(one.last_op, static_cast<std::int32_t>(k), made[k]);
    }
    time[result(op, static_cast<std::int32_t>(k))] = made[k];
  }
}

ValueTime Classifier::join(std::int32_t op, const ValueTime& a, const ValueTime& b) const {
  if (a == b || b.time == Time::before) return a;
  if (a.time == Time::before) return b;
  throw CannotCut{Why::carried, op};
}

void Classifier::settle(std::int32_t op, std::int32_t operand, const ValueTime& wanted) {
  const std::int32_t place = module.ops[op].first_operand + operand;
  const std::int32_t value = module.operands[place];
  if (time[value] == wanted) return;
  if (time[value].time != Time::before) throw CannotCut{Why::carried, op};
  if (wanted.time == Time::slice) part[place] = {wanted.dim, wanted.stride};
  if (wanted.time == Time::addend) is_once[place] = !is_zero[value];
}

}  // namespace autoshard::micro_batch
