#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "importer/builder.h"
#include "recomputation/kernels_again.h"
#include "recomputation/plan_numbers.h"
#include "recomputation/read_block.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using recomputation::Block;
using recomputation::BlockOfModule;
using recomputation::Dropped;
using recomputation::OpKind;
using recomputation::PlannedModule;
using recomputation::PlanNumbers;
using recomputation::Rounded;

namespace {

using Ints = std::vector<std::int32_t>;

/// A planned module, and the blocks that it is made of.
struct PlannedBlocks {
  PlanNumbers numbers;
  std::vector<Rounded> rounded;
  PlannedModule module;
  std::vector<BlockOfModule> blocks;

  PlannedBlocks(const importer::ReadModule& read, const Program& program, PlanNumbers made,
                std::vector<Rounded> rounded_operands, std::vector<OpKind> kinds,
                std::int32_t main_op, Ints parameters, bool stores_behind_matmuls)
      : numbers(std::move(made)),
        rounded(std::move(rounded_operands)),
        module{read,
               program,
               numbers,
               std::move(kinds),
               main_op,
               std::move(parameters),
               stores_behind_matmuls} {
    blocks = blocks_of(module);
  }
  PlannedBlocks(const PlannedBlocks&) = delete;
  PlannedBlocks& operator=(const PlannedBlocks&) = delete;
};

void check(const importer::ReadModule& read, const Program& program,
           const planning::PlanTable& plan, const std::vector<OpKind>& kinds,
           std::int32_t main_op, const Ints& parameters) {
  const auto is_within = [](std::int32_t number, std::size_t end) {
    return number >= 0 && static_cast<std::size_t>(number) < end;
  };
  if (plan.op_seconds.size() != program.ops.size() ||
      plan.cuts.value_sharding.size() != program.values.size()) {
    throw nb::value_error("the plan has no costs, or is another program's");
  }
  for (const std::int32_t op : read.op_of) {
    if (op >= 0 && !is_within(op, program.ops.size()))
      throw nb::value_error("another program");
  }
  if (kinds.size() != static_cast<std::size_t>(read.structure.num_classes) ||
      !is_within(main_op, read.structure.ops.size()) ||
      read.structure.ops[main_op].num_regions != 1) {
    throw nb::value_error("the module has other classes, or another main");
  }
  const auto& main = read.structure.regions[read.structure.ops[main_op].first_region];
  for (const std::int32_t at : parameters) {
    if (!is_within(at, main.num_arguments)) throw nb::value_error("no such argument");
  }
}

}  // namespace

void bind_planned_blocks(nb::module_& module) {
  nb::class_<OpKind>(module, "OpKind",
                     "What all ops of one class are; see passes/recomputation/read_block.h.")
      .def(
          "__init__",
          [](OpKind* self, bool is_held, bool is_free, bool is_while, bool runs_regions,
             bool is_matmul, bool is_elementwise, bool makes_index) {
            new (self) OpKind{is_held,   is_free,        is_while,   runs_regions,
                              is_matmul, is_elementwise, makes_index};
          },
          nb::kw_only(), "is_held"_a, "is_free"_a, "is_while"_a, "runs_regions"_a,
          "is_matmul"_a, "is_elementwise"_a, "makes_index"_a);

  nb::class_<PlannedBlocks>(module, "PlannedBlocks",
                            "The blocks of a planned module; see "
                            "passes/recomputation/read_block.h.")
      .def(
          "__init__",
          [](PlannedBlocks* self, const importer::ReadModule& read, const Program& program,
             const planning::PlanTable& plan, const std::map<std::string, double>& compiler,
             std::vector<Rounded> rounded, std::vector<OpKind> kinds, std::int32_t main_op,
             Ints parameters, bool stores_behind_matmuls) {
            check(read, program, plan, kinds, main_op, parameters);
            PlanNumbers numbers =
                recomputation::numbers_of(program, plan, compiler_of(compiler), rounded);
            new (self) PlannedBlocks(read, program, std::move(numbers), std::move(rounded),
                                     std::move(kinds), main_op, std::move(parameters),
                                     stores_behind_matmuls);
          },
          "read"_a, "program"_a, "plan"_a, nb::kw_only(), "compiler"_a, "rounded"_a, "kinds"_a,
          "main_op"_a, "parameters"_a, "stores_behind_matmuls"_a, nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 3>())
      .def_prop_ro(
          "blocks",
          [](const PlannedBlocks& self) {
            std::vector<std::pair<std::int32_t, std::int32_t>> found;
            for (const BlockOfModule& one : self.blocks)
              found.emplace_back(one.op, one.region);
            return found;
          },
          "Op and region of `main` and of the bodies of its loops, outer ones first.")
      .def(
          "block",
          [](const PlannedBlocks& self, std::size_t number, const Ints& index_arguments) {
            const BlockOfModule& one = self.blocks.at(number);
            const auto& structure = self.module.read.structure;
            const auto& body =
                structure.regions[structure.ops[one.op].first_region + one.region];
            for (const std::int32_t at : index_arguments) {
              if (at < 0 || at >= body.num_arguments)
                throw nb::value_error("no such argument");
            }
            return read_block(self.module, self.blocks, number, index_arguments);
          },
          "number"_a, "index_arguments"_a,
          "One of them. `index_arguments` are one integer each.")
      .def(
          "ops_at",
          [](const PlannedBlocks& self, std::size_t number, const Block& block) {
            return ops_at(self.module, block, number == 0);
          },
          "number"_a, "block"_a,
          "By position: the first op of the program that runs there or behind it; one more "
          "for "
          "the end.")
      .def(
          "seconds_besides",
          [](const PlannedBlocks& self, const Block& block, const planning::PlanTable& plan,
             const Cluster& cluster, const std::vector<std::vector<Dropped>>& groups,
             bool keep_sent, bool keep_parameters, int num_rounds) {
            const Program& program = self.module.program;
            if (!plan.plan || plan.plan->ops.size() != program.ops.size()) {
              throw nb::value_error("the plan has no costs, or is another program's");
            }
            return recomputation::seconds_besides(
                block,
                {program, *plan.plan, cluster, self.numbers.memory->parts, self.rounded},
                groups, {keep_sent, keep_parameters}, num_rounds);
          },
          "block"_a, "plan"_a, "cluster"_a, "groups"_a, nb::kw_only(), "keep_sent"_a,
          "keep_parameters"_a, "num_rounds"_a,
          "What values add to a step besides `Clones.seconds`; see "
          "passes/recomputation/kernels_again.h. `block` is `main`, as it was read.")
      .def_prop_ro(
          "points",
          [](const PlannedBlocks& self) -> const auto& { return self.numbers.points; },
          "Program point of each op.")
      .def_prop_ro(
          "seconds",
          [](const PlannedBlocks& self) -> const auto& { return self.numbers.seconds; },
          "Seconds of all runs of each op, with what it sends.")
      .def_prop_ro(
          "sends", [](const PlannedBlocks& self) -> const auto& { return self.numbers.sends; },
          "Is a result of each op sent?")
      .def_prop_ro(
          "bytes", [](const PlannedBlocks& self) -> const auto& { return self.numbers.bytes; },
          "Bytes of each value in the memory of one device.")
      .def_prop_ro(
          "element_bytes",
          [](const PlannedBlocks& self) -> const auto& { return self.numbers.element_bytes; },
          "The same without the padding of tiles.")
      .def_prop_ro(
          "live_ranges",
          [](const PlannedBlocks& self) {
            std::vector<std::pair<std::int32_t, std::int32_t>> found;
            for (const LiveRange& live : self.numbers.live)
              found.emplace_back(live.first, live.last);
            return found;
          },
          "Program point at which each value is made, and the first without it or what it is "
          "rounded to.");
}

}  // namespace autoshard
