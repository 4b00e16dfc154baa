#include "planning/classes.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>

namespace autoshard::planning {
namespace {

using Colour = std::uint64_t;

Colour mix(Colour a, Colour b) {
  Colour x = a * 0x9e3779b97f4a7c15ull ^ (b + 0x7f4a7c159e3779b9ull + (a << 6) + (a >> 2));
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 29;
  return x;
}

Colour bits_of(double number) {
  Colour bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

bool is_choice(const Program& program, std::int32_t value) {
  return value != no_value && !program.values[value].is_free;
}

/// Numbers colours 0, 1, 2, .. in the order in which they are first seen.
class Numbering {
 public:
  std::int32_t of(Colour colour) {
    return numbers_.try_emplace(colour, static_cast<std::int32_t>(numbers_.size()))
        .first->second;
  }
  std::int32_t size() const { return static_cast<std::int32_t>(numbers_.size()); }

 private:
  std::unordered_map<Colour, std::int32_t> numbers_;
};

/// Adds to `key` what tells the parts of kernels apart.
void add_part(const KernelPart& part, std::string& key) {
  for (std::int32_t times : part.reads) key += std::to_string(times) + ',';
  for (bool is_written : part.writes) key += is_written ? '1' : '0';
  if (!part.is_launched) key += '-';
  if (!part.packs) key += '~';
  if (part.times > 1) key += 'x' + std::to_string(part.times);
  if (part.intensity > 0) key += 'i' + std::to_string(part.intensity);
  if (part.repeat.is_there()) {
    key += '*' + std::to_string(part.repeat.made) + ',' + std::to_string(part.repeat.beside) +
           ',' + std::to_string(part.repeat.tiles);
  }
  for (double padding : part.padding) key += '/' + std::to_string(padding);
  for (const FusedWork& work : part.fused) {
    key += ' ' + std::to_string(work.tensor);
    for (double amount : {work.bytes, work.packed, work.flops}) {
      key += ' ' + std::to_string(amount);
    }
  }
}

/// The signature of every op.
std::vector<std::int32_t> signatures_of(const Program& program, const ProgramMemory* memory,
                                        const std::vector<std::int32_t>& together,
                                        std::vector<OpSignature>& signatures) {
  std::vector<std::int32_t> signature_of(program.ops.size());
  std::unordered_map<std::string, std::int32_t> known;
  std::string key;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    OpSignature signature{
        op.rule,
        memory ? memory->parts[i] : KernelPart::alone(op.operands.size(), op.results.size())};
    if (!together.empty()) signature.together = together[i];
    key = std::to_string(op.rule) + ":" + std::to_string(signature.together) + ":";
    if (memory) add_part(signature.part, key);
    auto [entry, is_new] =
        known.try_emplace(key, static_cast<std::int32_t>(signatures.size()));
    if (is_new) signatures.push_back(std::move(signature));
    signature_of[i] = entry->second;
  }
  return signature_of;
}

/// Colours after `rounds` of refinement: Weisfeiler and Leman 1968, on the graph of values,
/// ops and joins.
struct Colours {
  std::vector<Colour> values, ops;
};

Colours refine(const Program& program, const std::vector<std::int32_t>& signature_of,
               const std::vector<std::int32_t>& together, const std::vector<SummedOp>& summed,
               int rounds) {
  const std::size_t num_values = program.values.size(), num_ops = program.ops.size();
  Colours now{std::vector<Colour>(num_values), std::vector<Colour>(num_ops)};
  for (std::size_t v = 0; v < num_values; ++v) {
    now.values[v] = mix(program.values[v].type, program.values[v].is_free);
    if (!together.empty()) now.values[v] = mix(now.values[v], together[v]);
  }
  for (const Argument& argument : program.arguments) {
    if (argument.value == no_value) continue;
    now.values[argument.value] = mix(now.values[argument.value], 2 + argument.is_donated);
  }
  for (std::int32_t value : program.results) {
    if (value != no_value) now.values[value] = mix(now.values[value], 5);
  }
  for (std::size_t p = 0; p < program.pins.size(); ++p) {
    const Pin& pin = program.pins[p];
    Colour colour = 7;
    for (const DimPin& dim : pin.dims) {
      colour = mix(colour, dim.is_open);
      colour = mix(colour, dim.num_shards ? *dim.num_shards + 1 : 0);
      for (AxisIndex axis : dim.axes) colour = mix(colour, axis + 100);
      colour = mix(colour, 11);
    }
    for (AxisIndex axis : pin.replicated) colour = mix(colour, axis + 1000);
    now.values[pin.value] = mix(now.values[pin.value], colour);
  }
  for (std::size_t i = 0; i < num_ops; ++i) {
    now.ops[i] = mix(signature_of[i], bits_of(program.ops[i].trips));
    for (bool kept : program.ops[i].kept_operands) now.ops[i] = mix(now.ops[i], kept);
  }
  std::vector<Colour> around(num_values);
  for (int round = 0; round < rounds; ++round) {
    std::fill(around.begin(), around.end(), 0);
    for (std::size_t i = 0; i < num_ops; ++i) {
      const Op& op = program.ops[i];
      for (std::size_t k = 0; k < op.operands.size(); ++k) {
        if (op.operands[k] != no_value) around[op.operands[k]] += mix(now.ops[i], 2 * k);
      }
      for (std::size_t k = 0; k < op.results.size(); ++k) {
        if (op.results[k] != no_value) around[op.results[k]] += mix(now.ops[i], 2 * k + 1);
      }
    }
    for (const Join& join : program.joins) {
      around[join.source] += mix(now.values[join.target], 3);
      around[join.target] += mix(now.values[join.source], 4);
    }
    for (std::size_t i = 0; i < num_ops; ++i) {
      const Op& op = program.ops[i];
      Colour colour = now.ops[i];
      for (const auto* list : {&op.operands, &op.results}) {
        for (std::int32_t v : *list) colour = mix(colour, v == no_value ? 1 : now.values[v]);
      }
      now.ops[i] = colour;
    }
    for (std::size_t v = 0; v < num_values; ++v) {
      now.values[v] = mix(now.values[v], around[v]);
    }
  }
  for (const SummedOp& one : summed) {
    const Colour sum = mix(now.values[one.sum], bits_of(one.trips));
    now.ops[one.op] = mix(now.ops[one.op], sum);
  }
  return now;
}

/// One reading of a value.
struct Reading {
  std::int32_t op;
  std::int32_t position;
};

/// Makes the classes of copies and gives each reading its sharding class.
class Copies {
 public:
  Copies(const Program& program, const ProgramMemory* memory, const Colours& colours,
         const ClassOptions& options, Classes& classes)
      : program_(program),
        memory_(memory),
        colours_(colours),
        options_(options),
        classes_(classes) {}

  void make() {
    if (options_.copy_distance == 0) return;
    std::vector<std::vector<Reading>> readings(program_.values.size());
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      if (op.is_unread) continue;
      for (std::size_t k = 0; k < op.operands.size(); ++k) {
        if (is_choice(program_, op.operands[k]) && !op.kept_operands[k]) {
          readings[op.operands[k]].push_back(
              {static_cast<std::int32_t>(i), static_cast<std::int32_t>(k)});
        }
      }
    }
    for (std::size_t v = 0; v < readings.size(); ++v) {
      split(static_cast<std::int32_t>(v), readings[v]);
    }
  }

 private:
  /// Readers that run equally often and close to each other share one copy.
  void split(std::int32_t value, const std::vector<Reading>& readings) {
    std::vector<Reading> group;
    for (const Reading& reading : readings) {
      if (!group.empty()) {
        const Reading& last = group.back();
        const bool is_near =
            options_.copy_distance < 0 || reading.op - last.op <= options_.copy_distance;
        if (!is_near || program_.ops[reading.op].trips != program_.ops[last.op].trips) {
          share(value, group);
          group.clear();
        }
      }
      group.push_back(reading);
    }
    share(value, group);
  }

  void share(std::int32_t value, const std::vector<Reading>& group) {
    if (group.size() < 2) return;
    Colour readers = 0;
    for (const Reading& reading : group) {
      readers += mix(colours_.ops[reading.op], reading.position);
    }
    const Colour colour = mix(mix(colours_.values[value], readers), 13);
    const std::int32_t source = classes_.class_of_value[value];
    const double trips = program_.ops[group.front().op].trips;
    auto [entry, is_new] =
        copies_.try_emplace(colour, static_cast<std::int32_t>(classes_.values.size()));
    if (is_new) {
      classes_.values.push_back(
          {program_.values[value].type, value, 0, source, classes_.values[source].together});
      flows_.push_back(static_cast<std::int32_t>(classes_.flows.size()));
      classes_.flows.push_back({source, entry->second, 0});
      first_ = std::min(first_, entry->second);
    }
    classes_.values[entry->second].count += 1;
    classes_.flows[flows_[entry->second - first_]].trips += trips;
    LiveRange live;
    if (memory_) {
      live.first = memory_->num_points;
      for (const Reading& reading : group) {
        const std::int32_t point = memory_->point[reading.op];
        live.first = std::min(live.first, point);
        live.last = std::max(live.last, memory_->end_of_op(program_.ops[reading.op], point));
      }
    }
    classes_.copies.push_back({value, entry->second, group.front().op, live, trips});
    for (const Reading& reading : group) {
      classes_.operand_class[classes_.operand_offset[reading.op] + reading.position] =
          entry->second;
    }
  }

  const Program& program_;
  const ProgramMemory* memory_;
  const Colours& colours_;
  const ClassOptions& options_;
  Classes& classes_;
  std::unordered_map<Colour, std::int32_t> copies_;
  std::vector<std::int32_t> flows_;
  std::int32_t first_ = std::numeric_limits<std::int32_t>::max();
};

void add_uses(const Program& program, const ProgramMemory* memory, Classes& classes) {
  std::unordered_map<Colour, std::size_t> known;
  const auto add = [&](std::int32_t sharding_class, std::int32_t op, std::int32_t position,
                       bool is_result, bool is_kept, double trips) {
    const Colour ends =
        (static_cast<Colour>(sharding_class) << 32) | static_cast<std::uint32_t>(op);
    const Colour at =
        (static_cast<Colour>(position) << 2) | (is_result ? 2u : 0u) | (is_kept ? 1u : 0u);
    auto [entry, is_new] = known.try_emplace(mix(ends, at), classes.uses.size());
    if (is_new) classes.uses.push_back({sharding_class, op, position, is_result, is_kept, 0});
    classes.uses[entry->second].trips += trips;
  };
  known.reserve(program.ops.size() * 3);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const std::int32_t sharding_class = classes.operand_class[classes.operand_offset[i] + k];
      if (sharding_class < 0) continue;
      add(sharding_class, classes.class_of_op[i], static_cast<std::int32_t>(k), false,
          op.kept_operands[k], op.trips);
    }
    if (op.is_unread) continue;
    for (std::size_t k = 0; k < op.results.size(); ++k) {
      if (!is_choice(program, op.results[k])) continue;
      add(classes.class_of_value[op.results[k]], classes.class_of_op[i],
          static_cast<std::int32_t>(k), true, false, op.trips);
    }
  }
  std::unordered_map<Colour, std::size_t> flows;
  const std::vector<bool> begins = begin_loops(program);
  for (std::size_t j = 0; j < program.joins.size(); ++j) {
    const Join& join = program.joins[j];
    if (memory && begins[j] && is_choice(program, join.target)) {
      classes.values[classes.class_of_value[join.target]].passes +=
          join.trips * memory->passes[join.target];
    }
    if (!is_choice(program, join.source) || !is_choice(program, join.target)) continue;
    const std::int32_t source = classes.class_of_value[join.source],
                       target = classes.class_of_value[join.target];
    auto [entry, is_new] = flows.try_emplace(
        mix(static_cast<Colour>(source), static_cast<Colour>(target)), classes.flows.size());
    if (is_new) classes.flows.push_back({source, target, 0});
    classes.flows[entry->second].trips += join.trips;
    if (begins[j]) classes.flows[entry->second].stored += join.trips;
  }
}

void add_sums(const Program& program, const std::vector<SummedOp>& summed, Classes& classes) {
  std::vector<std::int32_t> sum_of(classes.ops.size(), -1);
  for (const SummedOp& one : summed) {
    const std::int32_t op = classes.class_of_op[one.op];
    if (sum_of[op] < 0) {
      sum_of[op] = static_cast<std::int32_t>(classes.sums.size());
      classes.sums.push_back({op, classes.class_of_value[one.sum], one.bits});
    }
    ClassSum& of = classes.sums[sum_of[op]];
    of.runs += program.ops[one.op].trips;
    of.trips += program.ops[one.op].trips / one.trips;
    of.members.push_back(one);
  }
  for (Use& use : classes.uses) {
    if (use.is_result) use.sum = sum_of[use.op];
  }
}

}  // namespace

std::vector<bool> begin_loops(const Program& program) {
  std::unordered_map<std::int32_t, std::int32_t> yielded;
  for (const Loop& loop : program.loops) {
    for (std::size_t k = 0; k < loop.carried.size(); ++k) {
      yielded.emplace(loop.carried[k], loop.yielded[k]);
    }
  }
  std::vector<bool> begins;
  begins.reserve(program.joins.size());
  for (const Join& join : program.joins) {
    const auto carried = yielded.find(join.target);
    begins.push_back(carried != yielded.end() && carried->second != join.source);
  }
  return begins;
}

std::int64_t search_copy_distance(const Program& program) {
  return std::max<std::int64_t>(64, static_cast<std::int64_t>(program.ops.size()) / 16);
}

Classes classes_of(const Program& program, const ProgramMemory* memory,
                   const ClassOptions& options) {
  Classes classes;
  const std::vector<std::int32_t> signature_of =
      signatures_of(program, memory, options.together.of_scalar_sums, classes.signatures);
  const std::vector<SummedOp> summed =
      memory ? summed_ops(program, *memory) : std::vector<SummedOp>();
  const std::vector<std::int32_t>& together = options.together.of_values;
  Colours colours =
      refine(program, signature_of, together, summed, std::max(options.fold_rounds, 0));
  if (options.fold_rounds < 0) {
    for (std::size_t v = 0; v < colours.values.size(); ++v) colours.values[v] = v;
    for (std::size_t i = 0; i < colours.ops.size(); ++i) colours.ops[i] = i;
  }
  Numbering values, ops;
  classes.class_of_value.assign(program.values.size(), -1);
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    if (program.values[v].is_free) continue;
    const std::int32_t sharding_class = values.of(colours.values[v]);
    if (sharding_class == static_cast<std::int32_t>(classes.values.size())) {
      classes.values.push_back({program.values[v].type, static_cast<std::int32_t>(v), 0, -1,
                                together.empty() ? 1 : together[v]});
    }
    classes.values[sharding_class].count += 1;
    classes.class_of_value[v] = sharding_class;
  }
  classes.operand_offset.push_back(0);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const std::int32_t op_class = ops.of(colours.ops[i]);
    if (op_class == static_cast<std::int32_t>(classes.ops.size())) {
      classes.ops.push_back({signature_of[i], static_cast<std::int32_t>(i), 0});
    }
    classes.ops[op_class].trips += program.ops[i].trips;
    classes.class_of_op.push_back(op_class);
    const Op& op = program.ops[i];
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const bool is_none =
          op.operands[k] == no_value || (op.is_unread && !op.kept_operands[k]);
      classes.operand_class.push_back(is_none ? -1 : classes.class_of_value[op.operands[k]]);
    }
    classes.operand_offset.push_back(static_cast<std::int32_t>(classes.operand_class.size()));
  }
  Copies(program, memory, colours, options, classes).make();
  add_uses(program, memory, classes);
  add_sums(program, summed, classes);
  return classes;
}

std::vector<std::int32_t> nodes_in(const Program& program, const Classes& classes,
                                   const Classes& other) {
  std::vector<std::int32_t> nodes;
  nodes.reserve(classes.values.size() + classes.ops.size());
  for (const ShardingClass& sharding_class : classes.values) {
    nodes.push_back(sharding_class.source < 0 ? other.class_of_value[sharding_class.value]
                                              : -1);
  }
  for (const Copy& copy : classes.copies) {
    if (nodes[copy.sharding_class] >= 0) continue;
    const std::vector<std::int32_t>& operands = program.ops[copy.first_reader].operands;
    const auto position = std::find(operands.begin(), operands.end(), copy.value);
    const std::int32_t there =
        other.operand_class[other.operand_offset[copy.first_reader] +
                            static_cast<std::int32_t>(position - operands.begin())];
    if (there >= 0 && other.values[there].source >= 0) nodes[copy.sharding_class] = there;
  }
  for (const OpClass& op : classes.ops) {
    nodes.push_back(static_cast<std::int32_t>(other.values.size()) + other.class_of_op[op.op]);
  }
  return nodes;
}

}  // namespace autoshard::planning
