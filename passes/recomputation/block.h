/// The ops of one block of a program as numbers, for what may be computed again.
///
/// Positions are those of the ops in the block, points those of the program
/// (memory/program_memory.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace autoshard::recomputation {

/// Where a value is while others wait to read it.
enum class Storage : std::uint8_t {
  kept,    ///< in memory, whatever is chosen: arguments, results, scalars, what loops make
  stored,  ///< in memory, unless it is dropped and computed again
  fused,   ///< nowhere: the fusion that reads it computes it
  free,    ///< nowhere: made of constants
};

/// Rows of numbers one behind the other: those that are asked for hundreds of times lie
/// together.
class Rows {
 public:
  void set(std::int32_t row, std::span<const std::int32_t> numbers) {
    if (row >= static_cast<std::int32_t>(rows_.size())) rows_.resize(row + 1);
    const auto first = static_cast<std::int32_t>(all_.size());
    all_.insert(all_.end(), numbers.begin(), numbers.end());
    rows_[row] = {first, static_cast<std::int32_t>(all_.size())};
  }
  std::span<const std::int32_t> operator[](std::int32_t row) const {
    return {all_.data() + rows_[row].first, all_.data() + rows_[row].second};
  }

 private:
  std::vector<std::int32_t> all_;
  std::vector<std::pair<std::int32_t, std::int32_t>> rows_;  ///< first, and behind the last
};

struct Value {
  std::int32_t maker = -1;  ///< position of the op that makes it; -1: an argument
  std::int32_t end = 0;     ///< point from which its memory is free
  double bytes = 0;         ///< in the memory of one device
  Storage storage = Storage::kept;
  /// Is it one of the program's values? Scalars are none.
  bool is_counted = false;
  /// Is it made of parameters alone?
  bool is_parameter = false;
  /// Is it fused, and made of more than `sources` has room for?
  bool has_many_sources = false;
  /// Its number in the module, and in the program; -1: it is none there.
  std::int32_t in_module = -1, in_program = -1;
  /// Position of the matmul that it is stored for, if that is not its maker; else -1.
  std::int32_t matmul = -1;
};

struct Op {
  std::int32_t point = 0;
  /// Point at which the last value from memory that it needs is there.
  std::int32_t ready = 0;
  double seconds = 0;  ///< of all its runs in a step, with what it sends
  /// Is its result sent between devices?
  bool sends = false;
  /// Is something made of parameters alone sent for it?
  bool gathers = false;
  /// Its number in the module, and in the program; -1: it is none there.
  std::int32_t in_module = -1, in_program = -1;
};

struct Block {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::int32_t num_points = 0;
  /// The first values are the block's arguments.
  std::int32_t num_arguments = 0;
  Rows operands = {}, results = {};  ///< by op: numbers of values
  /// By value: positions in order, each once.
  std::vector<std::vector<std::int32_t>> readers = {};
  /// By value: positions in order of the ops that read it from memory: its readers, and those
  /// of fused values that are made of it.
  Rows demanders = {};
  /// By value: of a fused one what it is made of, through other fused ones, each once: these
  /// and what they read. Constants are not among them.
  Rows sources = {};
};

/// Sets the sources of what the op at `position` makes; those of its operands are there.
void set_sources(Block& block, std::int32_t position);

/// A value that is not kept between two of its readers, by positions.
struct Dropped {
  std::int32_t number = 0;  ///< of the value
  std::int32_t early = -1;  ///< the last reader before, or the maker
  std::int32_t late = 0;    ///< the first reader behind
  std::int32_t middle = 0;  ///< the point half way
};

/// The longest stretch in which a value only waits.
struct Gap {
  Dropped value;
  std::int32_t first = 0;  ///< the first point at which it waits
  std::int32_t end = 0;    ///< the point at which it is read again
};

/// Values that may go while they wait, in the order of the program: stored ones that the block
/// does not return. `stays`: values of the program that do not go.
std::vector<Gap> gaps_of(const Block& block, const std::vector<bool>& stays);

}  // namespace autoshard::recomputation
