/// A StableHLO module as the core sees it: values, ops with factor rules, joins and pins.
///
/// Python's importer fills a `Program`; the core never sees MLIR. Everything is known by
/// its index. A value of rank 0 is never split and has no place here: operands and results
/// of rank 0 are `no_value`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/mesh.h"
#include "model/sharding.h"

namespace autoshard {

inline constexpr std::int32_t no_value = -1;
inline constexpr std::int32_t no_type = -1;

/// Shape and element width of a tensor.
struct TensorType {
  std::vector<std::int64_t> dims;
  std::int64_t element_bits;
  /// In the memory of the host, which has no collectives: slices are taken there, no more.
  bool is_on_host = false;

  double bytes() const;
};

/// What cutting a factor means for the op that has it.
enum class FactorKind : std::uint8_t {
  pass_through,      ///< operands and results are cut alike; nothing to communicate
  reduction,         ///< results become partial sums over the axes that cut it
  need_replication,  ///< may not be cut
  permutation,       ///< as pass_through, but neighbours exchange `halo` of their block
};

struct Factor {
  std::int64_t size;
  FactorKind kind;
  /// Elements along the dim that a device needs from its neighbours, in units of `size`;
  /// negative: as many as its whole block. Of a permutation: of every operand that has the
  /// factor. Of a reduction: of the first operand, which is read in windows.
  std::int64_t halo = 0;
  /// What of the op's `flops` belongs to each place along the factor, in sum 1: a kernel with
  /// a causal mask does more for the last queries. Empty: all places have as much.
  std::vector<double> shares = {};
};

/// One tensor of a rule: its type, and which factors make up each dim, major factor first.
/// A tensor of rank 0 has no dims and the type `no_type`.
struct RuleTensor {
  std::int32_t type;
  std::vector<std::vector<std::int32_t>> dims;
};

/// What an op does with its elements, and so which formula gives its time
/// (cost/compute.h) and whether a compiler fuses it with its neighbours
/// (memory/fusion_rules.h).
enum class Work : std::uint8_t {
  elementwise,  ///< one result element from one element of each operand; fuses
  view,     ///< reshape, transpose, broadcast, slice, pad, reverse, concatenate: moves, fuses
  reduce,   ///< reduce, reduce-window: takes fused operands, its result is stored
  matmul,   ///< dot and convolution: `flops` on the matrix units
  indexed,  ///< gather, scatter, dynamic slices: moves what it touches
  other,    ///< sort, fft, random numbers, custom calls: reads and writes memory once
  kernel,   ///< as other, with `flops` on the matrix units: written by hand
  attention,           ///< as kernel: attention of a library
  attention_gradient,  ///< likewise, backwards
};

/// Whether work is that of a kernel which a compiler takes as it is.
constexpr bool is_kernel(Work work) {
  return work == Work::kernel || work == Work::attention || work == Work::attention_gradient;
}

/// Which peak rate of a chip an op's arithmetic runs at: that of its widest operand.
enum class Arithmetic : std::uint8_t { f64, f32, f16, f8, i8 };
inline constexpr int num_arithmetics = 5;

/// What an element of an elementwise op's result costs to compute: at most an ordinary
/// instruction or two; an exponential or a logarithm; a long polynomial (tanh, sine, powers);
/// several of them (erfc). `never`, as a limit: none is so expensive.
enum class Expense : std::uint8_t { cheap, exponential, polynomial, polynomials, never };

/// A function of elements for which vector units have no instruction of their own, or one that
/// takes longer. How many operations a compiler makes of it is in `Functions` of
/// compilers/compiler.h; `none`: one.
enum class Function : std::uint8_t {
  none,
  division,
  remainder,
  root,         ///< square and cubic roots, and their reciprocals
  exponential,  ///< also less 1
  logarithm,    ///< also of 1 more
  logistic,
  tanh,
  error,             ///< erf
  error_complement,  ///< erfc
  sine,              ///< cosine and tangent, too
  power,
  other,  ///< arcus and area functions, gamma functions, inverse of erf, and the like
};

/// How an op's tensors are made of factors, as in Shardy's op sharding rule
/// `([i, k], [k, j])->([i, j])`. Ops with equal rules and equal types share one.
struct Rule {
  std::vector<Factor> factors;
  std::vector<RuleTensor> operands;
  std::vector<RuleTensor> results;
  Work work = Work::other;
  Arithmetic arithmetic = Arithmetic::f32;
  /// Operations of the whole op, on all devices together: 2 per multiply-add; of a `function`
  /// as if it were one operation.
  double flops = 0;
  /// Cheap enough to be computed again in every fusion that reads it: no transcendental
  /// function. Of a reduction: it is a gather of one element of each row.
  bool is_cheap = false;
  /// Whether the op, where it is a kernel of its own, returns a tuple of its result and a
  /// workspace, over which no fusion writes (convolutions of a library).
  bool has_workspace = false;
  /// Bytes that the whole op really touches of each operand and result, where that is less
  /// than the tensor: a dynamic slice reads its slice, a gather its rows. Negative: all.
  std::vector<double> operand_bytes = {};
  std::vector<double> result_bytes = {};
  /// The tensor that is as large as what is so touched, of operands and then results: the axes
  /// that cut it cut that, whatever cuts the tensor that is touched. -1: its own axes do.
  std::int32_t touched_as = -1;
  /// The operand over which the first result is written: a dynamic update slice or scatter
  /// runs in place. An elementwise op with one is a scatter of one element to each row.
  /// -1: none.
  std::int32_t in_place_operand = -1;
  /// Bytes of the copy of the first operand that is read where its padding may not differ on
  /// its two sides; 0: they are alike.
  double padded_bytes = 0;
  /// How many elements dilated operands of a convolution have for each that is not a zero
  /// between two others, where a library is not told of the dilation; of a pad, which makes
  /// such zeros, its result for each of its operand. 1: none.
  double dilation = 1;
  /// Bytes that the whole op needs while it runs, beside its operands and results; cut as the
  /// first operand.
  double scratch_bytes = 0;
  /// Bytes that the whole op moves beside one pass over its operands and results, cut as its
  /// operations are: blocks that a kernel reads again.
  double moved_again = 0;
  /// Exponentials of a kernel, and other operations on the vector units, that those on the
  /// matrix units wait for.
  double exponentials = 0;
  double vector_flops = 0;
  /// Lengths of the dims along which a Fourier transform runs.
  std::vector<double> transforms = {};
  /// Cost of an element of an elementwise op's result.
  Expense expense = Expense::cheap;
  /// The function that an elementwise op computes.
  Function function = Function::none;
  /// Kernels that the op is where it is not one: those of a loop inside, at all its trips.
  double kernels = 1;
  /// Whether it adds up over its reduction factors, and does not take maxima or the like.
  bool adds_up = false;
  /// Operands that have to be parts of a sum so that the result is, and may be made of these
  /// before they are added up: all of them, or with `has_one_part` the first that is not free.
  /// Empty: it is no such op.
  std::vector<std::int32_t> part_operands = {};
  bool has_one_part = false;
};

/// The factor that makes up a dim of a tensor but for those of one element; -1: there are
/// several or none.
std::int32_t only_factor(const Rule& rule, const RuleTensor& tensor, std::size_t dim);

/// The operand of a gather or scatter that holds its indices.
inline constexpr std::int32_t indices_operand = 1;

/// Whether an op has such an operand: not a dynamic slice, whose indices are scalars.
inline bool has_indices(const Rule& rule) {
  const auto& operands = rule.operands;
  const bool is_scatter = rule.in_place_operand >= 0;
  if (rule.work != Work::indexed || operands.size() < (is_scatter ? 3 : 2)) return false;
  return operands[indices_operand].type != no_type &&
         (!is_scatter || operands[2].type != no_type);
}

struct Value {
  std::int32_t type;
  /// Constants, iotas and broadcasts of scalars: each reader makes its own copy, cut as it
  /// likes, so they are tied to nothing.
  bool is_free = false;
  /// All of its elements are zero.
  bool is_zero = false;
};

struct Op {
  std::int32_t rule;
  std::vector<std::int32_t> operands;
  std::vector<std::int32_t> results;
  /// How often the op runs: the product of the trip counts of the loops around it.
  double trips = 1.0;
  /// Operands that the op takes as they are, without a reshard: what the user pinned
  /// with `autoshard.shard`.
  std::vector<bool> kept_operands;
  /// The last op that its operands of rank 0 depend on; -1: none.
  std::int32_t after = -1;
  /// The first op behind a barrier that waits for its results, maybe the number of ops;
  /// -1: none does.
  std::int32_t until = -1;
  /// Nobody reads what it makes: compilers leave it out. It runs 0 times.
  bool is_unread = false;
};

/// `source` flows into `target`, resharded if their shardings differ: initial and
/// yielded values of a loop into its carried value, branch results into the result of an
/// `if`, an operand into its sharding constraint.
struct Join {
  std::int32_t source;
  std::int32_t target;
  double trips = 1.0;
};

/// A loop: its condition and body are the ops [first_op, last_op), in program order. Loops
/// nest; inner ones come before the outer one that contains them.
struct Loop {
  std::int32_t first_op, last_op;
  /// Trips of the whole loop once: its own count, without those around it.
  double trips = 1.0;
  /// Values carried from one trip to the next: one buffer for initial value, body argument,
  /// yielded value and result. Without those of rank 0.
  std::vector<std::int32_t> carried;
  /// What the body yields for each of `carried`; `no_value` if it is passed on as it is.
  std::vector<std::int32_t> yielded;
};

/// One array that enters the program.
struct Argument {
  /// `no_value` for rank 0.
  std::int32_t value;
  /// Its buffer may be reused when it was read for the last time.
  bool is_donated = false;
};

/// What the user fixed for one dim of a value.
struct DimPin {
  /// These axes first, in this order.
  AxisList axes;
  /// More axes may follow.
  bool is_open = false;
  /// If set, `axes` is empty and any axes with this many blocks will do.
  std::optional<std::int64_t> num_shards;
};

struct Pin {
  std::int32_t value;
  std::vector<DimPin> dims;
  /// Axes that may cut no dim, not even an open one.
  AxisList replicated = {};
};

/// What is one device's part already, and runs between two ops: no plan changes it.
struct Body {
  /// The op before it, whose results are still there; 0 where there is none.
  std::int32_t after;
  /// Bytes on each device while it runs, beside what it reads and makes.
  double bytes;
};

struct Program {
  Mesh mesh;
  std::vector<TensorType> types;
  std::vector<Rule> rules;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Join> joins;
  std::vector<Pin> pins;
  std::vector<Loop> loops = {};
  std::vector<Argument> arguments = {};
  /// Values that leave the program; `no_value` for rank 0. A result that becomes an argument
  /// in the next call (or that is donated to it) is that argument's value.
  std::vector<std::int32_t> results = {};
  /// Values that are stored from the first program point on, whenever the op that makes them
  /// runs: copies from the memory of the host, which compilers start as early as they like.
  std::vector<std::int32_t> early = {};
  /// Arguments and results whose dims lie in memory in any order that the compiler likes;
  /// others come and leave row by row.
  std::vector<std::int32_t> any_order = {};
  std::vector<Body> bodies = {};
};

/// What an op does that hands on the one value that it reads.
struct Moved {
  std::int32_t made = no_value;
  std::int32_t maker = -1;   ///< op that makes what it reads; -1: none
  std::int32_t reader = -1;  ///< the first op behind it that reads what it makes; -1: none
};

/// What each of these ops does; they have one operand and one result.
std::vector<Moved> moved_by(const Program& program, std::span<const std::int32_t> ops);

/// A program that breaks its own rules: the importer's mistake, never the user's.
struct InvalidProgram : std::logic_error {
  using std::logic_error::logic_error;
};

/// Checks every index, every rank and every factor product against the dims it makes up.
/// Throws `InvalidProgram`.
void check(const Program& program);

/// True if `sharding` is one that `pin` allows.
bool allows(const Pin& pin, const Sharding& sharding, const Mesh& mesh);

}  // namespace autoshard
