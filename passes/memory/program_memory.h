/// Which values of a program take memory, and when: all that is known before anything is cut.
///
/// Compilers fuse: a value that only fused ops read is never stored, and what it is made of
/// must live until they have run. What is stored takes its bytes from the op that makes it to
/// the last op that reads it. The analyses, each a function of those before it:
///
///   program_index  where values come from         loop_nest  how loops nest
///   aliases        which values are one array     live_outs  which ones leave the program
///   orders, layouts                               in which order dims lie, what is copied
///   matmul_orders                                 which operands of matmuls are transposed
///   tile_padding                                  how much larger tiles make values
///   uses                                          who reads what
///   fusion_rules, fusions, joint_kernels          which ops are one kernel
///   matmul_kernels                                what those of matmuls compute besides
///   op_order       when kernels run
///   live_ranges, in_place                         from when to when values live
///   stack_copies, window_maxima, buffer_reuse     what else is stored, and where
///   peak           what a plan takes of a device  (the only one that needs the plan)
///
/// docs/design/memory.md gives every rule and its reason.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "compilers/compiler.h"
#include "memory/buffer.h"
#include "model/kernel_part.h"
#include "model/program.h"

namespace autoshard {

/// A program's memory. Program points are op indices: point i is while the i-th op runs.
struct ProgramMemory {
  /// Everything that takes memory; a value twice if it has two copies.
  std::vector<Buffer> buffers;
  /// The length of the program.
  std::int32_t num_points = 0;
  /// By value: the live range of its first buffer. Empty for values that live in fusions, for
  /// free values, and for those that share another one's buffer.
  std::vector<LiveRange> live;
  /// By value: from when to when one that lives in fusions would live if it were stored: from
  /// the first fusion that computes it to the last one. Empty for values that are stored
  /// anyway or need no memory.
  std::vector<LiveRange> live_if_stored;
  /// By value: the one whose buffer a view or constraint shares; others are their own.
  std::vector<std::int32_t> alias;
  /// By value: its bytes in memory over those of its elements; see memory/tile_padding.h.
  std::vector<double> padding;
  /// By op: the program point at which it runs, with the fusion it belongs to, or earlier than
  /// the program has it if that frees memory.
  std::vector<std::int32_t> point;
  /// By op: its part of its kernel. What several fusions compute is read in each of them with
  /// `Fusion::reads_in_each`, else in the first. Kernels that write several results are those
  /// of memory/joint_kernels.h, those of matmuls of memory/matmul_kernels.h and
  /// `OpOrder::matmul`.
  std::vector<KernelPart> parts;
  /// By alias of a result that takes the buffer of a donated argument: what is copied if a
  /// collective gathers it. With `Buffers::copies_gathered_arguments`.
  std::map<std::int32_t, GatheredResult> copied_if_gathered;
  /// What is there early for gradients of maxima over windows, if the compiler has the time.
  /// With `Buffers::window_indices`.
  std::vector<Buffer> window_maxima;
  /// By value that a loop carries: how often devices read or write all of it beside ops, for
  /// each run of the loop: 1 for a constant that it begins with, with
  /// `Buffers::filled_stacks`; 2 for what is copied over a donated argument.
  std::vector<double> passes;
  /// What loops read and do not change.
  std::vector<PassedOn> passed_on;
  /// From the first op of each loop to its last one; of a stage those that are in no other.
  std::vector<LiveRange> loops;
  /// Stages of a pipeline of which it is what one takes; see memory/stage_shares.h.
  int stages = 1;
  /// By value, of a stage: whether there is one for all trips of outer loops; and, in order,
  /// how such ones live that loops carry or read.
  std::vector<bool> is_of_all_trips;
  std::vector<LiveRange> of_all_trips;

  /// The part of what lives so that a stage takes, and of copies of a value.
  double share(const LiveRange& live) const;
  double share(const LiveRange& live, std::int32_t value) const;

  /// The point behind the last kernel that computes an op which runs at `point`.
  std::int32_t end_of_op(const Op& op, std::int32_t point) const;

  /// Whether a value has a buffer.
  bool is_stored(std::int32_t value) const { return live[value].last > 0; }
  /// The copies of a result and its argument, or null.
  const GatheredResult* copied_if_gathered_of(std::int32_t value) const {
    const auto found = copied_if_gathered.find(alias[value]);
    return found == copied_if_gathered.end() ? nullptr : &found->second;
  }
};

/// Runs all analyses.
///
/// Example: an argument x of 4 bytes, y = exp(x), z = sort(y), which is returned: three
/// buffers of 4 bytes: x at [0, 2), y at [0, 2), z at [0, 2).
ProgramMemory memory_of(const Program& program, const Compiler& compiler = {});

}  // namespace autoshard
