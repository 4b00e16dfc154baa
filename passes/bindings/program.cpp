#include "model/program.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "model/resized.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {
namespace {

using Ints = Column<std::int32_t>;
using Doubles = Column<double>;
using Flags = Column<std::uint8_t>;
using List = std::vector<std::int32_t>;
using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;

/// The ops and values of a program, one array for each field of all of them.
struct Columns {
  Ints value_type;
  Flags value_is_free;
  Ints op_rule;
  Doubles op_trips;
  Ints operand_offset, operands;
  Flags operand_kept;
  Ints result_offset, results;
  Ints join_source, join_target;
  Doubles join_trips;
  std::optional<Ints> op_after, op_until;
};

void set_columns(Program& program, const Columns& columns) {
  const auto& [value_type, value_is_free, op_rule, op_trips, operand_offset, operands,
               operand_kept, result_offset, results, join_source, join_target, join_trips,
               op_after, op_until] = columns;
  if (value_type.size() != value_is_free.size() ||
      operand_offset.size() != op_rule.size() + 1 ||
      result_offset.size() != op_rule.size() + 1 || op_trips.size() != op_rule.size() ||
      operands.size() != operand_kept.size() || join_source.size() != join_target.size() ||
      join_source.size() != join_trips.size() ||
      (op_after && op_after->size() != op_rule.size()) ||
      (op_until && op_until->size() != op_rule.size())) {
    throw InvalidProgram("arrays differ in length");
  }
  for (std::size_t v = 0; v < value_type.size(); ++v) {
    program.values.push_back({value_type(v), value_is_free(v) != 0});
  }
  program.ops.reserve(op_rule.size());
  for (std::size_t i = 0; i < op_rule.size(); ++i) {
    Op op;
    op.rule = op_rule(i);
    op.trips = op_trips(i);
    if (op_after) op.after = (*op_after)(i);
    if (op_until) op.until = (*op_until)(i);
    for (std::int32_t k = operand_offset(i); k < operand_offset(i + 1); ++k) {
      op.operands.push_back(operands(k));
      op.kept_operands.push_back(operand_kept(k) != 0);
    }
    for (std::int32_t k = result_offset(i); k < result_offset(i + 1); ++k) {
      op.results.push_back(results(k));
    }
    program.ops.push_back(std::move(op));
  }
  for (std::size_t j = 0; j < join_source.size(); ++j) {
    program.joins.push_back({join_source(j), join_target(j), join_trips(j)});
  }
}

/// Gives ops rules of their own, of which these factors may not be cut. Ops that shared a rule
/// and lose the same factors share the new one.
void keep_whole(Program& program, const Pairs& whole_factors) {
  std::map<std::int32_t, List> factors_of_op;
  for (const auto& [op, factor] : whole_factors) factors_of_op[op].push_back(factor);
  std::map<std::pair<std::int32_t, List>, std::int32_t> made;
  for (auto& [number, factors] : factors_of_op) {
    Op& op = program.ops.at(number);
    std::sort(factors.begin(), factors.end());
    const auto [found, is_new] =
        made.try_emplace({op.rule, factors}, static_cast<std::int32_t>(program.rules.size()));
    if (is_new) {
      Rule rule = program.rules[op.rule];
      for (std::int32_t factor : factors) {
        rule.factors.at(factor).kind = FactorKind::need_replication;
      }
      program.rules.push_back(std::move(rule));
    }
    op.rule = found->second;
  }
}

/// Says how often each op runs in a step, and so how often what it makes is joined.
void set_trips(Program& program, const Doubles& op_trips) {
  if (op_trips.size() != program.ops.size()) {
    throw std::invalid_argument("op_trips: one is needed for each op");
  }
  std::vector<double> more(program.values.size(), 1.0);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    Op& op = program.ops[i];
    for (const std::int32_t value : op.results) {
      if (value != no_value && op.trips > 0) more[value] = op_trips(i) / op.trips;
    }
    op.trips = op_trips(i);
  }
  for (Join& join : program.joins) {
    join.trips *= more[join.source];
    more[join.target] = more[join.source];
  }
}

/// Gives ops copies of what they read, which they take as these are held: one for each list of
/// operands, all of one value.
void hold_operands(Program& program, const std::vector<Pairs>& held_operands) {
  for (const Pairs& readers : held_operands) {
    if (readers.empty()) throw std::invalid_argument("held_operands: a list is empty");
    const auto [first_op, first_operand] = readers.front();
    const std::int32_t source = program.ops.at(first_op).operands.at(first_operand);
    if (source == no_value) throw std::invalid_argument("held_operands: no value is read");
    const auto copy = static_cast<std::int32_t>(program.values.size());
    program.values.push_back({program.values[source].type});
    program.joins.push_back({source, copy, program.ops[first_op].trips});
    for (const auto& [op, operand] : readers) {
      Op& reader = program.ops.at(op);
      if (reader.operands.at(operand) != source) {
        throw std::invalid_argument("held_operands: a list is of several values");
      }
      reader.operands[operand] = copy;
      reader.kept_operands.at(operand) = true;
    }
  }
}

void bind_rule(nb::module_& module) {
  nb::class_<TensorType>(module, "TensorType", "Shape and element width of a tensor.")
      .def(
          "__init__",
          [](TensorType* self, std::vector<std::int64_t> dims, std::int64_t element_bits,
             bool is_on_host) {
            new (self) TensorType{std::move(dims), element_bits, is_on_host};
          },
          "dims"_a, "element_bits"_a, "is_on_host"_a = false)
      .def_ro("dims", &TensorType::dims)
      .def_ro("element_bits", &TensorType::element_bits)
      .def_ro("is_on_host", &TensorType::is_on_host,
              "In the memory of the host, which has no collectives.");

  nb::class_<Factor>(module, "Factor", "One independent index of an op.")
      .def(nb::init<std::int64_t, FactorKind, std::int64_t, std::vector<double>>(), "size"_a,
           "kind"_a = FactorKind::pass_through, "halo"_a = 0,
           "shares"_a = std::vector<double>{})
      .def_ro("size", &Factor::size)
      .def_ro("kind", &Factor::kind)
      .def_ro("halo", &Factor::halo)
      .def_ro("shares", &Factor::shares);

  nb::class_<RuleTensor>(module, "RuleTensor",
                         "One tensor of a rule: its type, and which factors make up each dim.")
      .def(nb::init<std::int32_t, Dims>(), "type"_a, "dims"_a)
      .def_ro("type", &RuleTensor::type)
      .def_ro("dims", &RuleTensor::dims);

  nb::class_<Rule>(module, "Rule",
                   "How an op's tensors are made of factors, and what it does with their "
                   "elements; see passes/model/program.h.")
      .def(
          "__init__",
          [](Rule* self, std::vector<Factor> factors, std::vector<RuleTensor> operands,
             std::vector<RuleTensor> results, Work work, Arithmetic arithmetic, double flops,
             bool is_cheap, bool has_workspace, std::vector<double> operand_bytes,
             std::vector<double> result_bytes, std::int32_t touched_as,
             std::int32_t in_place_operand, double padded_bytes, double dilation,
             Expense expense, Function function, double kernels, double scratch_bytes,
             double moved_again, double exponentials, double vector_flops,
             std::vector<double> transforms, bool adds_up, List part_operands,
             bool has_one_part) {
            new (self) Rule{std::move(factors),
                            std::move(operands),
                            std::move(results),
                            work,
                            arithmetic,
                            flops,
                            is_cheap,
                            has_workspace,
                            std::move(operand_bytes),
                            std::move(result_bytes),
                            touched_as,
                            in_place_operand,
                            padded_bytes,
                            dilation,
                            scratch_bytes,
                            moved_again,
                            exponentials,
                            vector_flops,
                            std::move(transforms),
                            expense,
                            function,
                            kernels,
                            adds_up,
                            std::move(part_operands),
                            has_one_part};
          },
          "factors"_a, "operands"_a, "results"_a, nb::kw_only(), "work"_a = Work::other,
          "arithmetic"_a = Arithmetic::f32, "flops"_a = 0.0, "is_cheap"_a = false,
          "has_workspace"_a = false, "operand_bytes"_a = std::vector<double>{},
          "result_bytes"_a = std::vector<double>{}, "touched_as"_a = -1,
          "in_place_operand"_a = -1, "padded_bytes"_a = 0.0, "dilation"_a = 1.0,
          "expense"_a = Expense::cheap, "function"_a = Function::none, "kernels"_a = 1.0,
          "scratch_bytes"_a = 0.0, "moved_again"_a = 0.0, "exponentials"_a = 0.0,
          "vector_flops"_a = 0.0, "transforms"_a = std::vector<double>{}, "adds_up"_a = false,
          "part_operands"_a = List{}, "has_one_part"_a = false)
      .def_ro("factors", &Rule::factors)
      .def_ro("operands", &Rule::operands)
      .def_ro("results", &Rule::results)
      .def_ro("work", &Rule::work)
      .def_ro("arithmetic", &Rule::arithmetic)
      .def_ro("flops", &Rule::flops)
      .def_ro("is_cheap", &Rule::is_cheap)
      .def_ro("has_workspace", &Rule::has_workspace)
      .def_ro("operand_bytes", &Rule::operand_bytes)
      .def_ro("result_bytes", &Rule::result_bytes)
      .def_ro("touched_as", &Rule::touched_as)
      .def_ro("in_place_operand", &Rule::in_place_operand)
      .def_ro("padded_bytes", &Rule::padded_bytes)
      .def_ro("dilation", &Rule::dilation)
      .def_ro("scratch_bytes", &Rule::scratch_bytes)
      .def_ro("moved_again", &Rule::moved_again)
      .def_ro("exponentials", &Rule::exponentials)
      .def_ro("vector_flops", &Rule::vector_flops)
      .def_ro("transforms", &Rule::transforms)
      .def_ro("expense", &Rule::expense)
      .def_ro("function", &Rule::function)
      .def_ro("kernels", &Rule::kernels)
      .def_ro("adds_up", &Rule::adds_up)
      .def_ro("part_operands", &Rule::part_operands)
      .def_ro("has_one_part", &Rule::has_one_part);
}

void bind_records(nb::module_& module) {
  nb::class_<DimPin>(module, "DimPin", "What the user fixed for one dim of a value.")
      .def(
          "__init__",
          [](DimPin* self, const List& axes, bool is_open,
             std::optional<std::int64_t> num_shards) {
            new (self) DimPin{{axes.begin(), axes.end()}, is_open, num_shards};
          },
          "axes"_a = List{}, "is_open"_a = false, "num_shards"_a = nb::none());

  nb::class_<Pin>(module, "Pin",
                  "What the user fixed for a value; `replicated` are axes that cut no dim.")
      .def(
          "__init__",
          [](Pin* self, std::int32_t value, std::vector<DimPin> dims, const List& replicated) {
            new (self) Pin{value, std::move(dims), {replicated.begin(), replicated.end()}};
          },
          "value"_a, "dims"_a, "replicated"_a = List{});

  nb::class_<Loop>(module, "Loop", "A loop, by the range of its ops.")
      .def(nb::init<std::int32_t, std::int32_t, double, List, List>(), "first_op"_a,
           "last_op"_a, "trips"_a, "carried"_a, "yielded"_a)
      .def_ro("first_op", &Loop::first_op)
      .def_ro("last_op", &Loop::last_op, "Behind its ops.")
      .def_ro("trips", &Loop::trips)
      .def_ro("carried", &Loop::carried)
      .def_ro("yielded", &Loop::yielded);

  nb::class_<Argument>(module, "Argument", "One array that enters the program.")
      .def(nb::init<std::int32_t, bool>(), "value"_a, "is_donated"_a = false)
      .def_ro("value", &Argument::value)
      .def_ro("is_donated", &Argument::is_donated);
}

}  // namespace

void bind_program(nb::module_& module) {
  bind_rule(module);
  bind_records(module);

  nb::class_<Program>(module, "Program",
                      "A module as the core sees it; see passes/model/program.h.")
      .def(
          "__init__",
          [](Program* self, const std::vector<std::int64_t>& axis_sizes,
             std::vector<TensorType> types, std::vector<Rule> rules, Ints value_type,
             Flags value_is_free, Ints op_rule, Doubles op_trips, Ints operand_offset,
             Ints operands, Flags operand_kept, Ints result_offset, Ints results,
             Ints join_source, Ints join_target, Doubles join_trips, std::vector<Pin> pins,
             const std::optional<Ints>& op_after, const std::optional<Ints>& op_until,
             std::vector<Loop> loops, std::vector<Argument> arguments, List program_results,
             List early, List any_order, bool all_to_all) {
            Program program;
            program.mesh = {axis_sizes, all_to_all};
            program.types = std::move(types);
            program.rules = std::move(rules);
            set_columns(program, {value_type, value_is_free, op_rule, op_trips, operand_offset,
                                  operands, operand_kept, result_offset, results, join_source,
                                  join_target, join_trips, op_after, op_until});
            program.pins = std::move(pins);
            program.loops = std::move(loops);
            program.arguments = std::move(arguments);
            program.results = std::move(program_results);
            program.early = std::move(early);
            program.any_order = std::move(any_order);
            check(program);
            new (self) Program(std::move(program));
          },
          nb::kw_only(), "axis_sizes"_a, "types"_a, "rules"_a, "value_type"_a,
          "value_is_free"_a, "op_rule"_a, "op_trips"_a, "operand_offset"_a, "operands"_a,
          "operand_kept"_a, "result_offset"_a, "results"_a, "join_source"_a, "join_target"_a,
          "join_trips"_a, "pins"_a, "op_after"_a = nb::none(), "op_until"_a = nb::none(),
          "loops"_a = std::vector<Loop>{}, "arguments"_a = std::vector<Argument>{},
          "program_results"_a = List{}, "early"_a = List{}, "any_order"_a = List{},
          "all_to_all"_a = true,
          "Fields of all ops and values, and of what they read and make, one array each.")
      .def(
          "changed",
          [](const Program& p, const std::vector<std::int64_t>& axis_sizes,
             std::vector<Pin> pins, const Pairs& kept_operands, const Pairs& whole_factors,
             const std::vector<Pairs>& held_operands, const std::optional<Doubles>& op_trips) {
            Program changed = p;
            changed.mesh.axis_sizes = axis_sizes;
            changed.pins = std::move(pins);
            if (op_trips) set_trips(changed, *op_trips);
            for (const auto& [op, operand] : kept_operands) {
              changed.ops.at(op).kept_operands.at(operand) = true;
            }
            keep_whole(changed, whole_factors);
            hold_operands(changed, held_operands);
            check(changed);
            return changed;
          },
          nb::kw_only(), "axis_sizes"_a, "pins"_a, "kept_operands"_a = Pairs{},
          "whole_factors"_a = Pairs{}, "held_operands"_a = std::vector<Pairs>{},
          "op_trips"_a = nb::none(),
          "The same program on another mesh and with other pins; besides, (op, operand) that "
          "are not resharded, and (op, factor) that are not cut. Each list of (op, operand) "
          "of "
          "`held_operands` reads a copy of its one value, which is a new value that pins may "
          "name: the last ones, in this order. `op_trips` says how often each op runs.")
      .def(
          "resized",
          [](const Program& p, double examples, const Program& other, double other_examples,
             double wanted) {
            std::optional<Program> found =
                resized({p, examples}, {other, other_examples}, wanted);
            if (found) check(*found);
            return found;
          },
          "examples"_a, "other"_a, "other_examples"_a, "wanted"_a,
          "The step in micro-batches of `wanted` examples, by two readings of others; None: "
          "they differ in more than that. See passes/model/resized.h.")
      .def(
          "with_bodies",
          [](const Program& p, const std::vector<std::pair<std::int32_t, double>>& bodies) {
            Program changed = p;
            changed.bodies.clear();
            for (const auto& [after, bytes] : bodies) changed.bodies.push_back({after, bytes});
            check(changed);
            return changed;
          },
          "bodies"_a,
          "The same program with these computations that are one device's part: the op before "
          "each, and the bytes that it needs beside what it reads and makes.")
      .def_prop_ro("num_values", [](const Program& p) { return p.values.size(); })
      .def_prop_ro("num_ops", [](const Program& p) { return p.ops.size(); })
      .def_prop_ro("op_trips",
                   [](const Program& p) {
                     std::vector<double> trips;
                     for (const Op& op : p.ops) trips.push_back(op.trips);
                     return trips;
                   })
      .def_prop_ro(
          "makers",
          [](const Program& p) {
            std::vector<std::int32_t> makers(p.values.size(), no_value);
            for (std::size_t i = 0; i < p.ops.size(); ++i) {
              for (const std::int32_t value : p.ops[i].results) {
                if (value != no_value) makers[value] = static_cast<std::int32_t>(i);
              }
            }
            return to_array(std::move(makers));
          },
          nb::rv_policy::automatic, "For each value the op that makes it; -1: none does.")
      .def(
          "rule_of",
          [](const Program& p, std::int32_t op) { return p.rules[p.ops.at(op).rule]; }, "op"_a)
      .def(
          "operands_of",
          [](const Program& p, std::int32_t op) { return p.ops.at(op).operands; }, "op"_a,
          "The values that an op reads; -1: none.")
      .def(
          "readers_of",
          [](const Program& p, const List& values) {
            const std::unordered_set<std::int32_t> wanted(values.begin(), values.end());
            Pairs found;
            for (std::size_t i = 0; i < p.ops.size(); ++i) {
              const List& operands = p.ops[i].operands;
              for (std::size_t k = 0; k < operands.size(); ++k) {
                if (wanted.count(operands[k]) != 0) found.emplace_back(i, k);
              }
            }
            return found;
          },
          "values"_a, "(op, operand) of all ops that read one of the values, in order.")
      .def(
          "moved_by",
          [](const Program& p, const List& ops) {
            for (const std::int32_t op : ops) {
              const Op& one = p.ops.at(op);
              if (one.operands.empty() || one.results.empty())
                throw InvalidProgram("an op moves nothing");
            }
            std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>> found;
            for (const Moved& one : moved_by(p, ops)) {
              found.emplace_back(one.made, one.maker, one.reader);
            }
            return found;
          },
          "ops"_a,
          "What ops make that hand on a value, the op that makes what they read, and the "
          "first "
          "one behind that reads it; -1: none.")
      .def_prop_ro(
          "joins",
          [](const Program& p) {
            Pairs found;
            for (const Join& join : p.joins) found.emplace_back(join.source, join.target);
            return found;
          },
          "(source, target) of each.")
      .def_ro("loops", &Program::loops)
      .def_ro("arguments", &Program::arguments)
      .def_ro("results", &Program::results);
}

}  // namespace autoshard
