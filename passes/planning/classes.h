/// Who shares one choice: equal layers are decided once, and readers share copies.
///
/// A plan gives every value a sharding and every op a strategy. The search decides them for
/// *classes* of values and ops. Members of a class have the same type or rule, so any choice
/// for the class is one for all its members: folding leaves plans out, it never makes a wrong
/// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/program_memory.h"
#include "model/program.h"
#include "planning/loop_sums.h"
#include "planning/sent_together.h"

namespace autoshard::planning {

/// Ops with equal costs: one rule, the same tensors read from and written to memory, and equal
/// work in their kernel.
struct OpSignature {
  std::int32_t rule;
  KernelPart part;
  /// How many sums to a scalar run as one (planning/sent_together.h).
  std::int32_t together = 1;
};

/// What has one sharding: a class of values, or of copies that several readers of a value
/// share.
struct ShardingClass {
  std::int32_t type;
  /// One of the values.
  std::int32_t value;
  /// How many values or copies it stands for.
  double count = 0;
  /// For copies: the sharding class they are made from; else -1.
  std::int32_t source = -1;
  /// How many collectives run as one with its own (planning/sent_together.h).
  std::int32_t together = 1;
  /// Passes over all of it beside ops (`ProgramMemory::passes`), of all loops that carry it.
  double passes = 0;
};

/// Ops with one choice of axes.
struct OpClass {
  std::int32_t signature;
  /// One of the ops.
  std::int32_t op;
  /// Sum over the ops of how often they run.
  double trips = 0;
};

/// How ops of a class read or make members of a sharding class, as operand or result number
/// `position`.
struct Use {
  std::int32_t sharding_class;
  std::int32_t op;
  std::int32_t position;
  bool is_result;
  /// The operand is taken as it is (`Op::kept_operands`).
  bool is_kept;
  /// Sum over the ops of how often they run.
  double trips;
  /// Index in `Classes::sums` of what loops add up of the results; -1: nothing.
  std::int32_t sum = -1;
};

/// Parts that a class of ops makes of sums (planning/loop_sums.h).
struct ClassSum {
  std::int32_t op;
  /// The class of the sums.
  std::int32_t sharding_class;
  /// The elements of sums are so many times as wide as those of the results.
  double bits;
  /// Sum over the ops of how often they run, and of how often parts of their results are
  /// reduced behind loops.
  double runs = 0, trips = 0;
  std::vector<SummedOp> members = {};

  /// What it takes to reduce parts behind loops, over what it takes in trips.
  double share() const { return bits * trips / runs; }
};

/// How one sharding class flows into another, resharded if they differ: joins, and values into
/// copies.
struct Flow {
  std::int32_t source;
  std::int32_t target;
  double trips;
  /// How many of these begin a loop: what it carries is stored, a slice as well.
  double stored = 0;
};

/// A copy of a value for some of its readers.
struct Copy {
  std::int32_t value;
  std::int32_t sharding_class;
  /// In program order.
  std::int32_t first_reader;
  /// While the first to the last reader runs; without `ProgramMemory` empty.
  LiveRange live;
  double trips;
};

struct Classes {
  std::vector<OpSignature> signatures;
  std::vector<ShardingClass> values;
  std::vector<OpClass> ops;
  /// Unread ops have those of the operands alone that they keep: all else is cut as they like.
  std::vector<Use> uses;
  std::vector<Flow> flows;
  std::vector<Copy> copies;
  std::vector<ClassSum> sums;
  /// Class of each value; -1 for free values.
  std::vector<std::int32_t> class_of_value;
  /// Class of each op.
  std::vector<std::int32_t> class_of_op;
  /// What each operand of each op is read from: a value's sharding class or a copy's; -1 for
  /// rank 0, free values and what unread ops do not keep. Operands of op i begin at
  /// operand_offset[i].
  std::vector<std::int32_t> operand_class;
  std::vector<std::int32_t> operand_offset;
};

/// Where programs are folded, two ops or values that look alike this many steps around share
/// one choice.
inline constexpr int fold_rounds = 6;
/// Programs of fewer ops are not.
inline constexpr std::size_t fold_from_ops = 400;

struct ClassOptions {
  /// Rounds of refinement after which two ops or values that still look alike share one
  /// choice: they agree in everything up to this many steps away. Negative: nothing is shared.
  int fold_rounds = -1;
  /// Readers of a value share a copy while the next one is at most this many ops away. 0: each
  /// has its own; negative: any distance.
  std::int64_t copy_distance = -1;
  /// As `sent_together`; empty: none are.
  Together together = {};
};

/// How far apart readers share a copy where memory matters: a sixteenth of the program, so
/// that what the forward half gathers does not live until the backward half reads it; at least
/// 64 ops.
std::int64_t search_copy_distance(const Program& program);

/// By join, whether its value begins a loop.
std::vector<bool> begin_loops(const Program& program);

/// By node of the network of `classes` (sharding classes, then op classes): the node of
/// another one for the same program that one of its members was in, or -1.
std::vector<std::int32_t> nodes_in(const Program& program, const Classes& classes,
                                   const Classes& other);

/// Colours values and ops by what they are and what is around them, and joins equal colours.
/// `memory` says what is read from memory; null: everything.
Classes classes_of(const Program& program, const ProgramMemory* memory,
                   const ClassOptions& options);

}  // namespace autoshard::planning
