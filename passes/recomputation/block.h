/// The ops of one block of a program as numbers, for what may be computed again.
///
/// Positions are those of the ops in the block, points those of the program
/// (memory/program_memory.h).
#pragma once

#include <cstdint>
#include <vector>

namespace autoshard::recomputation {

/// Where a value is while others wait to read it.
enum class Storage : std::uint8_t {
  kept,    ///< in memory, whatever is chosen: arguments, results, scalars, what loops make
  stored,  ///< in memory, unless it is dropped and computed again
  fused,   ///< nowhere: the fusion that reads it computes it
  free,    ///< nowhere: made of constants
};

struct Value {
  std::int32_t maker = -1;  ///< position of the op that makes it; -1: an argument
  Storage storage = Storage::kept;
  /// Is it one of the program's values? Scalars are none.
  bool is_counted = false;
  /// Is it made of parameters alone?
  bool is_parameter = false;
  double bytes = 0;                        ///< on one device
  std::int32_t end = 0;                    ///< point from which its memory is free
  std::vector<std::int32_t> readers = {};  ///< positions in order, each once
  /// Positions in order of the ops that read it from memory: its readers, and those of fused
  /// values that are made of it.
  std::vector<std::int32_t> demanders = {};
};

struct Op {
  std::vector<std::int32_t> operands, results;  ///< numbers of values
  std::int32_t point = 0;
  /// Point at which the last value from memory that it needs is there.
  std::int32_t ready = 0;
  double seconds = 0;  ///< of all its runs in a step, with what it sends
  /// Is its result sent between devices?
  bool sends = false;
  /// Is something made of parameters alone sent for it?
  bool gathers = false;
};

struct Block {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::int32_t num_points = 0;
};

}  // namespace autoshard::recomputation
