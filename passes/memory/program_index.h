/// Where every value of a program comes from: what the analyses of memory look up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory/lists.h"
#include "memory/loop_nest.h"
#include "model/program.h"

namespace autoshard {

/// In place of an op, an argument or a slot: there is none.
inline constexpr std::int32_t no_op = -1;
inline constexpr std::int32_t no_argument = -1;
inline constexpr std::int32_t no_slot = -1;

/// A carried value of a loop that changes from trip to trip.
struct CarriedSlot {
  std::int32_t loop;
  std::int32_t carried;
  /// As the body yields it.
  std::int32_t yielded;
};

/// A program, and tables by value and by op of what its lists say.
struct ProgramIndex {
  explicit ProgramIndex(const Program& program);

  const Program& program;
  LoopNest loops;
  std::int32_t num_ops;
  std::size_t num_values;
  /// Program points: one an op, and one in a program without ops.
  std::int32_t num_points;
  /// By value: its bytes before any cut.
  std::vector<double> bytes;
  /// By value: the op that makes it, the number of the argument that it is, and the slot that
  /// it is the carried value of.
  std::vector<std::int32_t> producer, argument, slot;
  std::vector<CarriedSlot> slots;
  /// By value: the ops that have it as operand, one with it twice twice.
  Lists<std::int32_t> readers;

  const Op& op(std::int32_t op) const { return program.ops[op]; }
  const Rule& rule(std::int32_t op) const { return program.rules[program.ops[op].rule]; }
  bool is_free(std::int32_t value) const { return program.values[value].is_free; }
  bool is_argument(std::int32_t value) const { return argument[value] != no_argument; }
  bool is_carried(std::int32_t value) const { return slot[value] != no_slot; }
  const CarriedSlot& slot_of(std::int32_t value) const { return slots[slot[value]]; }
  Range<std::int32_t> readers_of(std::int32_t value) const { return in(readers, value); }
  const std::vector<std::int64_t>& dims(std::int32_t value) const {
    return program.types[program.values[value].type].dims;
  }
  /// The loop whose body a value belongs to.
  std::int32_t home(std::int32_t value) const {
    if (is_carried(value)) return slot_of(value).loop;
    return producer[value] == no_op ? no_loop : loops.of_op(producer[value]);
  }
  /// The number of elements of a value; `no_value`: 1.
  double elements(std::int32_t value) const;
  /// The number of devices of the mesh.
  double devices() const;
};

}  // namespace autoshard
