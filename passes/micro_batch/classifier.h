/// Forward through the ops: the time of every value, from those of the arguments.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "micro_batch/times.h"

namespace autoshard::micro_batch {

/// An op that cannot be cut as it stands; caught where it may still be computed before the
/// loop.
struct CannotCut {
  Why why;
  std::int32_t op;
};

/// A part of an operand; none where `dim` is -1.
struct Part {
  std::int32_t dim = -1;
  std::int64_t stride = 0;
  bool operator==(const Part&) const = default;
};

class Classifier {
 public:
  Classifier(const importer::ModuleStructure& module, std::int64_t micro_batches,
             const std::function<OpCut(std::int32_t)>& describe);

  const importer::ModuleStructure& module;
  const std::int64_t micro_batches;

  // By value, and by op.
  std::vector<ValueTime> time;
  std::vector<char> is_zero;
  std::vector<char> is_whole, is_each;
  /// Makes addends by adding up.
  std::vector<char> begins_sum;
  /// Runs in the loop: it reads or makes what differs between micro-batches, or reads a value
  /// that such an op makes.
  std::vector<char> in_loop;
  /// By place in `module.operands`.
  std::vector<Part> part;
  std::vector<char> is_once;

  const OpCut& cut_of(std::int32_t op);
  /// One op and all in it. Throws `CannotCut`.
  void read(std::int32_t op, int depth);
  /// A loop some of whose results are to be slices, although all it starts from is whole.
  void read_loop(std::int32_t op, int depth, const std::vector<ValueTime>& wanted);
  /// Everything in an op is known before the loop.
  void set_before(std::int32_t op);

  std::span<const std::int32_t> operands(std::int32_t op) const;
  std::int32_t result(std::int32_t op, std::int32_t k) const {
    return module.ops[op].first_result + k;
  }
  /// First blocks of the regions of an op.
  std::span<const importer::Block> blocks(std::int32_t op) const;
  bool is_made_in_loop(std::int32_t value) const { return made_in_loop_[value]; }

  struct FactorCut {
    std::int32_t factor;
    std::int64_t stride;  ///< within the factor
  };
  /// The factor in which a slice of a tensor lies. Throws `CannotCut`.
  FactorCut factor_of(std::int32_t op, const std::vector<std::vector<std::int32_t>>& dims,
                      const Part& part);
  /// Where a tensor has it; dim -1: nowhere.
  Part part_of(std::int32_t op, const std::vector<std::vector<std::int32_t>>& dims,
               const FactorCut& cut);
  bool may_be_cut(std::int32_t op, const FactorCut& cut);

 private:
  struct Met {
    bool slice = false, addend = false, after = false, each = false, in_loop = false;
    void meet(const ValueTime& time);
  };

  void plain(std::int32_t op, int depth);
  void cut(std::int32_t op);
  void add_up(std::int32_t op);
  void identity(std::int32_t op);
  void loop(std::int32_t op, int depth);
  void branches(std::int32_t op, int depth);
  void block(const importer::Block& block, int depth);
  bool passes_addends(std::int32_t op, const OpCut& cut, const Met& met, int depth);
  Met met(std::span<const std::int32_t> values) const;
  Met captured(std::int32_t op) const;
  void set_results(std::int32_t op, ValueTime time);
  void set_arguments(const importer::Block& block, const std::vector<ValueTime>& times);
  /// A carried value or a result of branches: what it is if it may be one or the other.
  ValueTime join(std::int32_t op, const ValueTime& a, const ValueTime& b) const;
  /// Hand an operand on as `wanted`.
  void settle(std::int32_t op, std::int32_t operand, const ValueTime& wanted);
  void forget(std::int32_t op);

  const std::function<OpCut(std::int32_t)>& describe_;
  std::vector<OpCut> cuts_;
  std::vector<char> is_described_;
  std::vector<char> made_in_loop_;
  std::vector<char> is_read_;
};

}  // namespace autoshard::micro_batch
