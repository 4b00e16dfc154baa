/// When each value of a program is known, if the program works through its batch in parts.
///
/// A batch of B examples is cut into M micro-batches, one after the other in a loop:
/// micro-batch m has the examples m, m + M, m + 2M, ... "Which micro-batch" is an axis whose
/// devices are moments, so that factor rules say how it passes through ops, and a sum is the
/// only thing that may take it away. Every value is one of
///
///   before  known before the loop, whole: parameters, constants, and what is made of them
///   slice   each micro-batch has its part, cut along one dim
///   addend  each micro-batch has an addend of the whole shape; the value is their sum
///   after   known after the loop: what is made of finished sums
///   each    of every micro-batch by itself, where the user says that this is meant
///
/// Example: loss = sum(square(x @ w)) / 8 of x: 8x4 and w: 4x2, M = 2. `x` is a slice along
/// dim 0, so are `x @ w` and its square; the sum is an addend, the quotient is after.
///
/// What an op reads of sums before they are finished (the tokens that a mask leaves) is
/// computed of the whole batch before the loop, with all that leads to it, if no matmul does;
/// so is an op that cannot be cut. Anything else throws `Refused`.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "importer/bytecode.h"
#include "model/program.h"

namespace autoshard::micro_batch {

enum class Time : std::uint8_t { before, slice, addend, after, each };

/// A value in time. The element `i` of `dim` is of micro-batch `i / stride % M`.
///
/// Example: 8 examples of 4 tokens, flattened to 32 rows: row i is of example i / 4, stride 4.
struct ValueTime {
  Time time = Time::before;
  std::int32_t dim = -1;    ///< of a slice; else -1
  std::int64_t stride = 0;  ///< of a slice; else 0

  bool operator==(const ValueTime&) const = default;
};

enum class OpKind : std::uint8_t {
  plain,     ///< cut by its factors
  identity,  ///< result k is operand k: barriers, constraints, marks
  loop,      ///< `stablehlo.while`
  branches,  ///< `stablehlo.case` and `stablehlo.if`
};

/// In which operands an op is linear, so that it passes addends on.
enum class Linear : std::uint8_t {
  none,
  together,  ///< in all data operands at once, as an addition
  each,      ///< in every data operand by itself, as a product
};

/// What all ops of one class have in common.
struct OpCut {
  OpKind kind = OpKind::plain;
  std::vector<Factor> factors = {};
  /// Factors of each dim, major first; none where nothing is known of the op.
  std::vector<std::vector<std::vector<std::int32_t>>> operands = {}, results = {};
  /// The op adds up over its reduction factors.
  bool adds = false;
  Linear linear = Linear::none;
  /// Operands that it is linear in; the others are indices, predicates, divisors, ..
  std::vector<std::int32_t> data = {};
  /// Operand to which it adds what it adds up; -1: none.
  std::int32_t added_to = -1;
  /// Addends pass it outside of loops, too: it makes them smaller, or wider in bits.
  bool is_early = false;
  /// A matmul: too much to be computed of the whole batch.
  bool is_heavy = false;
  /// A constant of zeros.
  bool is_zero = false;
  /// Each reader may make its own copy: constants and iotas.
  bool is_free = false;
};

/// An operand of an op.
struct Use {
  std::int32_t op, operand;
};

/// A result of an op.
struct Made {
  std::int32_t op, result;
};

/// The part of a value that a micro-batch reads.
struct Need {
  std::int32_t op, operand;
  std::int32_t dim;
  std::int64_t stride;
};

/// A value of the loop over micro-batches that is a slice.
struct Slice {
  std::int32_t op;
  std::int32_t region;  ///< whose argument it is; -1: a result of `op`
  std::int32_t index;
  std::int32_t dim;
  std::int64_t stride;
};

enum class Where : std::uint8_t { before, loop, after };

/// Ops and values by their numbers in `ModuleStructure`.
struct Times {
  std::vector<Slice> slices;
  /// Where each op of `main` itself runs; those in its regions are where it is.
  std::vector<Where> where;
  /// Operands that are whole, of which a micro-batch reads its part.
  std::vector<Need> needs;
  /// Operands that are whole where an addend is wanted: they count in the first micro-batch
  /// only.
  std::vector<Use> once;
  /// Operands of ops in the loop that are made outside of it, in regions too.
  std::vector<Use> captured;
  /// Loops and branches in the loop whose regions read the number of the micro-batch.
  std::vector<std::int32_t> counting;
  /// Results of barriers in the loop that are known after it: the operands themselves.
  std::vector<Made> passed;
  /// Ops that sum up over a micro-batch alone, as the user says.
  std::vector<std::int32_t> each;
  /// Ops computed of the whole batch before the loop.
  std::vector<std::int32_t> whole;
  /// What leaves the loop: sums, stacks of slices, values that each micro-batch computes
  /// alike, means of what the user takes of each.
  std::vector<Made> sums, stacks, last, means;
};

/// Why an op cannot be cut.
enum class Why : std::uint8_t {
  mixes,     ///< it reads a sum that is not finished
  examples,  ///< it combines examples with one another
  part,      ///< it needs the whole dim, or knows no rule
  uneven,    ///< M does not divide the factor, or the parts lie in two factors
  no_sum,    ///< it reduces over the batch, but does not add
  carried,   ///< a loop or branches carry two kinds of it
};

/// The program cannot be cut.
struct Refused : std::runtime_error {
  Refused(Why why, std::int32_t op, std::int32_t sum, std::int32_t heavy)
      : std::runtime_error("cannot be cut"), why(why), op(op), sum(sum), heavy(heavy) {}
  Why why;
  /// Where it fails.
  std::int32_t op;
  /// The op whose sum it reads; -1: none.
  std::int32_t sum;
  /// A matmul that leads to it, so that it is not computed before; -1: it does not become
  /// whole.
  std::int32_t heavy;
};

struct Batch {
  /// Numbers of the arguments of `main` that hold examples in dim 0.
  std::vector<std::int32_t> arguments;
  std::int64_t micro_batches = 1;
  /// Ops whose sums the user takes of each micro-batch, where they are needed there.
  std::vector<std::int32_t> each;
};

/// Finds when each value is known.
///
/// Args:
///   module: Without calls. `main`: number of the function.
///   describe: Is asked once for each class of ops.
///
/// Expects that M divides dim 0 of every argument that holds the batch. Throws `Refused`.
/// Takes time in proportion to ops, loops some times over.
Times times_of(const importer::ModuleStructure& module, std::int32_t main, const Batch& batch,
               const std::function<OpCut(std::int32_t op)>& describe);

}  // namespace autoshard::micro_batch
