/// What a plan says of the values and ops of its program, as recomputation asks for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compilers/compiler.h"
#include "memory/buffer.h"
#include "memory/program_memory.h"
#include "model/program.h"
#include "planning/plan_table.h"

namespace autoshard::recomputation {

/// A cast that compilers add before a matmul: the value that it reads, and what it makes.
using Rounded = std::pair<std::int32_t, std::int32_t>;

struct PlanNumbers {
  std::int32_t num_points = 0;
  /// By op: the program point at which it runs.
  std::vector<std::int32_t> points = {};
  /// By op: seconds of all its runs in a step, with what operands and results send.
  std::vector<double> seconds = {};
  /// By op: is a result sent between devices?
  std::vector<bool> sends = {};
  /// Operands that are sent, by op, in the order of ops.
  std::vector<std::pair<std::int32_t, std::int32_t>> sent_operands = {};
  /// By value: when it or what it is rounded to lives. Empty: it takes no memory of its own.
  std::vector<LiveRange> live = {};
  /// By value: bytes in the memory of one device of that of both that lives last.
  std::vector<double> bytes = {};
  /// The same of its elements alone, without the padding of tiles.
  std::vector<double> element_bytes = {};
  /// What the program keeps.
  std::shared_ptr<const ProgramMemory> memory = {};
};

/// Expects a plan with costs of this program.
PlanNumbers numbers_of(const Program& program, const planning::PlanTable& plan,
                       const Compiler& compiler, std::span<const Rounded> rounded);

}  // namespace autoshard::recomputation
