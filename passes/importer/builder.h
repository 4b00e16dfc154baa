/// Fills a `Program` op after op, from the structure of a module and what Python says of each
/// class of ops.
///
/// Nearly all ops of a module are plain: they read values, make new ones, and have a rule.
/// Those are read here; an op with a meaning of its own (calls, loops, pins, ..) is left to
/// the caller, who adds values, joins and ops through the same functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "importer/bytecode.h"
#include "model/hash_index.h"
#include "model/program.h"

namespace autoshard::importer {

/// What all ops of one class have in common.
struct OpClass {
  /// The caller reads it.
  bool is_special = false;
  /// So many of its operands are placed in its result: the caller reads it only where one of
  /// them is on the host. 0: always, if it is special.
  std::int32_t num_placed = 0;
  /// A constant or an iota: every reader makes its own copy, and it is no op of the program.
  bool is_free = false;
  /// Its result is free if its operand is, or is a scalar.
  bool is_broadcast = false;
  /// It only renames or moves elements: a mark reaches its main op through it.
  bool only_moves = false;
  /// A cast. One back to a type from what it is rounded to is no op for who rounds.
  bool is_cast = false;
  /// A constant, all of whose elements are 0.
  bool is_zero = false;
  /// It writes a part of its first operand (a dynamic update slice).
  bool is_update = false;
  /// It adds two operands.
  bool is_sum = false;
  /// `no_type` for rank 0.
  std::vector<std::int32_t> result_types;
};

/// What a compiler casts the operands of matmuls to, though the program does not say so.
struct Rounding {
  /// `no_type`: they stay.
  std::int32_t type = no_type;
  /// The rule of the cast.
  std::int32_t rule = -1;
};

/// A cast that is an op of the program alone.
struct RoundedOperand {
  std::int32_t op, source, result;
  /// Which operand of the op of the module that `read_ops` has for it.
  std::int32_t position;
};

/// An operand that is rounded back to what a cast of the module was made of: the program reads
/// that, and nothing reads the cast for it.
struct UnreadCast {
  std::int32_t cast, reader;  // ops of the program
  std::int32_t result;        // of the cast
  std::int32_t position;      // of the operand
};

/// A module by numbers, and what its ops and values are in the program.
struct ReadModule {
  ModuleStructure structure;
  /// By value of the module: the program's; `no_value` for rank 0, and for what is none.
  std::vector<std::int32_t> value_of;
  /// By op of the module: the program's; -1: it is none.
  std::vector<std::int32_t> op_of;
};

/// What Python is asked for.
struct Describe {
  /// An op that stands for its class.
  std::function<OpClass(std::int32_t op)> op_class;
  /// The rule of an op; it depends on its class and on the types of its operands and results.
  std::function<std::int32_t(std::int32_t op, const std::vector<std::int32_t>& operand_types,
                             const std::vector<std::int32_t>& result_types)>
      rule;
  /// What an operand of a type is rounded to.
  std::function<Rounding(std::int32_t type)> rounding;
};

/// `values` of the module are its SSA values as `ModuleStructure` counts them, `value` alone
/// is one of the program.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(ModuleStructure module);

  const ModuleStructure& module() const { return module_; }

  // Values

  /// `no_value` if `type` is `no_type`.
  std::int32_t new_value(std::int32_t type, bool is_free = false);
  std::int32_t num_values() const { return static_cast<std::int32_t>(values_.size()); }
  const Value& value(std::int32_t value) const { return values_[value]; }
  /// The program's value of each; `no_value` for rank 0, and for what nobody bound.
  std::int32_t value_of(std::int32_t ssa) const { return value_of_[ssa]; }
  void bind(std::int32_t ssa, std::int32_t value) { value_of_[ssa] = value; }
  /// `value` is in the memory of the host.
  void set_on_host(std::int32_t value);
  /// The first reader of `value` takes it as it is, or that of what is only moved before.
  void set_marked(std::int32_t value);

  // Ops

  /// Reads the plain ops from `op` to the first special one, or to `end`; returns where it
  /// stopped.
  std::int32_t add_plain(std::int32_t op, std::int32_t end, double trips,
                         const Describe& describe);
  /// Reads one op as if it were plain. `result_types`: null for those of its class.
  void add(std::int32_t op, double trips, const Describe& describe,
           const std::vector<std::int32_t>* result_types = nullptr);
  /// Results that are values the program has already, or that the caller made.
  void alias(std::int32_t op, std::span<const std::int32_t> values);
  std::int32_t num_ops() const { return static_cast<std::int32_t>(ops_.size()); }
  /// The op of the program that the last op of the module is that was added; casts may stand
  /// on both sides of it. -1: it is none.
  std::int32_t last_added() const { return last_added_; }
  const std::vector<std::int32_t>& operands_of(std::int32_t program_op) const {
    return ops_.at(program_op).operands;
  }
  /// An op takes other operands, some of them as they are.
  void set_operands(std::int32_t program_op, std::vector<std::int32_t> operands,
                    std::vector<bool> kept);
  void join(std::int32_t source, std::int32_t target, double trips);
  /// How far the program got: what a loop contains is behind it.
  struct Mark {
    std::int32_t op, join;
  };
  Mark mark() const { return {num_ops(), static_cast<std::int32_t>(joins_.size())}; }
  /// What was added since `mark` runs `factor` times as often.
  void scale_trips(const Mark& mark, double factor);
  /// Ops that are added while it is above 0 are computed by the host.
  int host_depth = 0;

  // Casts that matmuls read through, each behind what makes its operand, else before the first
  // that reads it

  /// The first op of each class.
  std::vector<std::int32_t> first_ops() const;
  /// Ops of these classes read their operands rounded, as `Describe::rounding` says.
  void round_operands_of(std::span<const std::int32_t> classes);
  std::size_t num_rounded() const { return known_rounded_.size(); }
  /// What was rounded since then is not there any more, as behind a loop or a branch.
  void forget_rounded(std::size_t since);
  const std::vector<RoundedOperand>& rounded_operands() const { return rounded_operands_; }
  /// The first reader of each cast of which no op of the program reads what it makes.
  std::vector<UnreadCast> unread_casts() const;

  // What scalars wait for

  /// The last op that a value of the module waits for; -1: none. Of values of rank 0 and of
  /// what barriers give (`op` of `set_after` is -1 for no op).
  std::int32_t after(std::int32_t ssa) const { return after_[ssa]; }
  void set_after(std::int32_t ssa, std::int32_t op) {
    if (op >= 0) after_[ssa] = op;
  }
  /// The op that makes a value.
  void set_maker(std::int32_t value, std::int32_t op) { maker_[value] = op; }
  /// What a barrier waits for: the last op that one of some values of the module waits for or
  /// is made by. Their makers are done before ops that are not read yet.
  std::int32_t wait_for(std::span<const std::int32_t> of);
  /// From now on ops wait for what barriers give, too.
  bool has_barriers = false;

  // What was read

  /// The op of the module that each op of the program is; of a cast the one that reads it.
  const std::vector<std::int32_t>& read_ops() const { return read_ops_; }
  /// Where each stands; of a cast where its operand is made.
  const std::vector<std::int32_t>& locations() const { return locations_; }
  /// Ops of the module with results, in order.
  const std::vector<std::int32_t>& ops_with_results() const { return ops_with_results_; }
  const std::vector<Op>& ops() const { return ops_; }

  /// The program without what the caller knows: types, rules, pins, ..
  Program take();
  /// The module, once all of it is read: nothing else can be asked then.
  ReadModule take_module();
  /// By op: it makes values of rank 0 that an op of the module reads.
  const std::vector<bool>& makes_scalars() const { return makes_scalars_; }
  /// `value` is read by an op that is none of the program.
  void set_read(std::int32_t value) { read_elsewhere_.push_back(value); }
  const std::vector<std::int32_t>& read_elsewhere() const { return read_elsewhere_; }

 private:
  const OpClass& class_of(std::int32_t op, const Describe& describe);
  bool is_special(std::int32_t op, const Describe& describe);
  std::int32_t rule_of(std::int32_t op, const std::vector<std::int32_t>& operand_types,
                       const std::vector<std::int32_t>& result_types,
                       const Describe& describe);
  std::int32_t rounded(std::int32_t ssa, std::int32_t reader, std::int32_t at, double trips,
                       const Describe& describe);
  const Rounding& rounding_of(std::int32_t type, const Describe& describe);
  /// Does an op make `value` of `source` alone?
  bool is_cast_of(std::int32_t value, std::int32_t source) const;
  /// If zeros of which a part is written, for a sum alone, are one of its operands, that part
  /// is written over the other one, as compilers do (docs/design/cost_model.md). Returns the
  /// value that the sum is then; `no_value`: it is an op of the program.
  std::int32_t added_in_place(std::int32_t sum, const std::vector<std::int32_t>& operands);
  void know_rounded(std::int32_t value, std::int32_t result);
  void push(Op op, std::int32_t read_op, std::int32_t at, bool makes_scalar);
  std::vector<bool> kept_on_host(const Op& op);
  void reach_main_op(Op& op, bool only_moves);

  ModuleStructure module_;
  /// By class; one that nobody asked for has no entry yet.
  std::vector<OpClass> classes_;
  std::vector<bool> is_described_;
  /// Class, whether the host computes it, types of operands and results, of each rule that was
  /// asked for, and which it was.
  std::vector<std::vector<std::int32_t>> rule_keys_;
  std::vector<std::int32_t> rules_;
  HashIndex rule_index_;
  std::vector<std::int32_t> key_, operand_types_;
  std::vector<Rounding> roundings_;
  std::vector<bool> is_rounding_known_;

  std::vector<std::int32_t> value_of_, after_;  // by value of the module
  std::vector<Value> values_;
  std::vector<std::int32_t> maker_;    // by value
  std::vector<std::int32_t> rounded_;  // by value; `no_value`: it is not
  std::vector<std::int32_t> known_rounded_;
  std::vector<RoundedOperand> rounded_operands_;
  std::vector<UnreadCast> passed_casts_;
  std::vector<bool> is_on_host_, is_made_on_host_, is_marked_;
  int num_on_host_ = 0, num_marked_ = 0;
  std::vector<Op> ops_;
  std::int32_t last_added_ = -1;
  std::vector<std::int32_t> num_reads_;  // by value of the module
  std::vector<bool> is_zero_scalar_;     // by value of the module
  std::vector<bool> updates_zeros_;      // by op
  std::vector<bool> rounds_operands_;    // by class
  /// By value of the module: the first op that reads it rounded; -1: none.
  std::vector<std::int32_t> rounding_reader_;
  std::vector<bool> makes_scalars_;  // by op
  std::vector<std::int32_t> read_elsewhere_;
  std::vector<Join> joins_;
  std::vector<std::int32_t> read_ops_, locations_, ops_with_results_;
};

}  // namespace autoshard::importer
