/// Ops of a train step along one line, the order in which a micro-batch goes forward.
///
/// A pipeline cuts the line; a stage is what lies between two cuts. Ops that lead to the loss
/// go forward along the line, all others (gradients, and what is computed again for them) go
/// back along it. Where an op of the way back lies is decided by the bytes that cross a cut:
/// residuals and parameters draw it to where they were read, its cotangent to where that is
/// made.
///
/// Example: y = x @ a, z = y @ b, with gradients. The units are the two products; the gradient
/// of b and of y lie at unit 1, the gradient of a lies at unit 0, wherever they stand in the
/// program.
#pragma once

#include <cstdint>
#include <vector>

namespace autoshard::pipeline {

/// A value that costs something where a cut separates those that make and read it.
struct Value {
  /// Counted in full also for what is known before the loop: it goes once a step, but takes
  /// memory on every stage that reads it, and so does its gradient.
  double bytes = 0;
  std::int32_t maker = -1;  ///< a node; -1: known before the loop
  std::vector<std::int32_t> readers;
};

/// The nodes are ops in program order, without those that each reader makes for itself.
struct Line {
  std::vector<char> is_forward;
  /// Is one of the units, between which cuts may lie: it does much, or has a mark.
  std::vector<char> is_unit;
  /// Stage that a mark of the user wants; -1: none.
  std::vector<std::int32_t> mark;
  std::vector<double> seconds;
  std::vector<Value> values;
  /// By node: the values that it reads and makes.
  std::vector<std::vector<std::int32_t>> reads, makes;

  std::int32_t size() const { return static_cast<std::int32_t>(seconds.size()); }
};

/// The first stage that a node may be on, as marks lead to it, and the last one.
struct Range {
  std::int32_t first, last;
};

/// Marks contradict the order of the program where a range is empty.
std::vector<Range> ranges_of(const Line& line, std::int32_t stages);

struct Places {
  /// By node: the unit at which it lies.
  std::vector<std::int32_t> unit;
  /// The nodes that are units, in their order.
  std::vector<std::int32_t> units;
};

/// Where each node lies. The order of forward nodes is the first stage that they may be on,
/// then the program's. Nodes of the way back lie at a unit that may be on their stages.
Places places_of(const Line& line, const std::vector<Range>& ranges);

/// Bytes of values that are made or read on both sides of each cut; [u]: between unit u - 1
/// and u. What is known before the loop counts where both sides read it, as for a layer that
/// is computed again on one side and computed on the other one.
std::vector<double> crossing(const Line& line, const Places& places);

}  // namespace autoshard::pipeline
