/// Reads a block of a planned module without calls: who makes what, who reads it, where it is
/// stored and what it costs.
#pragma once

#include <cstdint>
#include <vector>

#include "importer/builder.h"
#include "recomputation/block.h"
#include "recomputation/plan_numbers.h"

namespace autoshard::recomputation {

/// What all ops of one class of a module are (`importer::OpStructure::op_class`).
struct OpKind {
  bool is_held = false;  ///< it is never run again
  bool is_free = false;  ///< a constant or an iota
  bool is_while = false;
  bool runs_regions = false;  ///< a loop, or a branch: the program has what is in it
  bool is_matmul = false;
  bool is_elementwise = false;  ///< or a reshape
  bool makes_index = false;     ///< one integer
};

/// A planned module without calls.
struct PlannedModule {
  const importer::ReadModule& read;
  const Program& program;
  const PlanNumbers& numbers;
  std::vector<OpKind> kinds = {};  ///< by class
  std::int32_t main_op = 0;
  /// Arguments of `main` that a result replaces.
  std::vector<std::int32_t> parameters = {};
  /// Are matmuls' results stored once what reads them element by element is computed?
  bool stores_behind_matmuls = false;
};

/// A block that is read for itself.
struct BlockOfModule {
  std::int32_t op = 0;       ///< `main`, or a loop
  std::int32_t region = 0;   ///< of its regions
  std::int32_t outside = 0;  ///< number of the block that it stands in
};

/// `main` and the bodies of its loops, outer ones first.
std::vector<BlockOfModule> blocks_of(const PlannedModule& module);

/// One of `blocks_of`. `index_arguments`: which of its arguments are one integer each: the
/// number of a layer, which says nothing of what is taken from the layers.
Block read_block(const PlannedModule& module, const std::vector<BlockOfModule>& blocks,
                 std::size_t number, const std::vector<std::int32_t>& index_arguments);

/// By op of a block: the number in the program of the first op that runs there or behind it;
/// one more for the end. That of a loop is its first op.
std::vector<std::int32_t> ops_at(const PlannedModule& module, const Block& block,
                                 bool is_main);

}  // namespace autoshard::recomputation
