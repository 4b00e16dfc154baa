/// The ops of a loop over micro-batches, as a line.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "importer/bytecode.h"
#include "pipeline/line.h"

namespace autoshard::pipeline {

/// What all ops of one class have in common.
struct OpKind {
  /// A product of matrices, a kernel, a loop: cuts lie between these.
  bool is_heavy = false;
  /// A constant or an iota.
  bool is_free = false;
  /// It moves elements or computes each by itself, so that doing it again is cheap.
  bool is_light = false;
  /// Only moves elements, or makes more of them.
  bool is_view = false;
  bool is_loop = false;
  bool is_add = false;
  /// Part of the model that the op marks, which is its stage where each stage has one part;
  /// -1: it is no mark.
  std::int32_t mark = -1;
  std::vector<double> result_bytes = {};
};

using Describe = std::function<OpKind(std::int32_t op)>;

/// A module, with what its ops are.
class Ops {
 public:
  Ops(const importer::ModuleStructure& module, Describe describe);

  const importer::ModuleStructure& module;

  const OpKind& kind(std::int32_t op);
  /// Asks now of all ops of a block.
  void describe(const importer::Block& block);
  /// Nothing is asked any more.
  void forget_describe() { describe_ = nullptr; }
  /// Ops of a block, without its terminator.
  std::vector<std::int32_t> ops_of(const importer::Block& block) const;
  /// The values made outside of an op that it reads, also in its regions, each once.
  std::vector<std::int32_t> reads(std::int32_t op) const;
  std::vector<std::int32_t> operands(std::int32_t op) const;
  /// The op whose result, or argument of whose regions, a value is.
  std::int32_t owner(std::int32_t value) const { return owner_[value]; }
  double bytes(std::int32_t value) {
    const std::int32_t op = owner_[value];
    return kind(op).result_bytes[value - module.ops[op].first_result];
  }

 private:
  Describe describe_;
  std::vector<OpKind> kinds_;
  std::vector<char> is_described_;
  std::vector<std::int32_t> owner_;
};

struct Loop {
  std::int32_t main, op;
  /// Bytes of the arguments of its body.
  std::vector<double> argument_bytes;
};

/// The body of a loop over micro-batches.
struct Body {
  std::vector<std::int32_t> ops;
  /// What each op reads.
  std::vector<std::vector<std::int32_t>> reads;
  /// By op: its number on the line; -1: it has none.
  std::vector<std::int32_t> node;
  /// By op: made of constants alone.
  std::vector<char> is_free;
  /// By op without a number: it adds to what the loop sums up, and does so on every stage that
  /// has something to add. Others are made by each reader for itself: they are made of the
  /// number of the micro-batch, of constants and of parts of what is known before the loop.
  std::vector<char> is_sum;
  Line line;
};

/// `seconds`: of each op of the module, once a micro-batch.
Body body_of(Ops& ops, const Loop& loop, const std::vector<double>& seconds);

}  // namespace autoshard::pipeline
