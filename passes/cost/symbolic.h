/// The symbolic cost: elements instead of seconds, and one coefficient that trades data
/// parallelism against model parallelism.
///
/// No chip, no link and no element type enters. An op is cut level by level, into a prime
/// number of parts each time; a level costs what the cut of each op costs at the sizes that
/// the levels before it left, and 16 elements for every element of a tensor that its writer
/// and its reader cut differently. docs/design/symbolic_cost.md has the formulas with
/// examples.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "model/program.h"

namespace autoshard {

/// The cost of a cut that is not possible.
inline constexpr double not_possible = std::numeric_limits<double>::infinity();

/// Elements charged for each local element of a tensor that is resharded at a level.
inline constexpr double elements_per_resharded = 16;
/// A matmul whose cheapest cut costs less than this many elements is better not cut.
inline constexpr double replicate_below = 25;

/// What a level can cut of a matmul `out[b, i, j] = sum_k left[b, i, k] * right[b, k, j]`, in
/// the order in which ties are decided. `batch` are all batch dims but the last one, which
/// is `expert`.
enum class MatMulCut : std::uint8_t { batch, expert, i, j, k, none };
inline constexpr int num_matmul_cuts = 6;

/// One cost for every `MatMulCut`.
using MatMulCosts = std::array<double, num_matmul_cuts>;

/// Sizes on one device before the level: products over the dims of each kind.
struct MatMulSizes {
  double batch = 1, i = 1, k = 1, j = 1;
};

/// Elements that cutting a matmul into `parts` costs, by formula alone: whether the sizes are
/// divisible is not looked at. With s = (parts - 1) / parts, which is 1/2 for two parts:
///
///   without batch dims            with batch dims
///   i     mem_coeff * k*j * s     batch   r * m
///   j     i*k * s                 expert  |r * m - 1|
///   k     i*j * s                 i, j, k  right * s, left * s, out * s
///   none  min(i, j, k)^2 / 25     none    m^2 / 25
///
/// where left, right and out are elements of the three tensors, m = 0.15 * s * their minimum,
/// and r = max(32 / batch - 1, 0), or 32 if batch = 1. What a kind of matmul cannot cut is
/// `not_possible`.
///
/// Example: i = 8192, k = 4096, j = 1, mem_coeff = 0.01, two parts: i = 20.48, j = 16777216,
/// k = 4096, none = 16.777216. The minimum in `none` runs over all three formulas, even over
/// that of a size that cannot be cut: so does MindSpore's, whose numbers these are.
///
/// Expects sizes and `parts` >= 1 and `mem_coeff` > 0.
MatMulCosts matmul_costs(const MatMulSizes& sizes, bool has_batch, double mem_coeff,
                         std::int64_t parts = 2);

/// Which factors of a rule make up the sizes of a matmul.
struct MatMulFactors {
  std::vector<std::int32_t> batch, i, k, j;

  MatMulCut cut_of(std::int32_t factor) const;
};

/// The factors of a `dot_general`, in program order; nothing if `rule` is no matmul. A rule
/// is one if it has two operands and one result, every factor either passes through to the
/// result or is a reduction factor of both operands, and there is one of the latter (or
/// `Work::matmul` says that it is an outer product).
std::optional<MatMulFactors> matmul_factors(const Rule& rule);

/// The sizes of a matmul whose factors have `sizes` on a device.
MatMulSizes local_sizes(const MatMulFactors& factors, const std::vector<double>& sizes);

/// Whether the symbolic cost decides ops of this rule: matmuls and convolutions. All others
/// follow them.
bool is_main(const Rule& rule);

/// Elements of a tensor of an op on a device on which the factors have `sizes`; 1 for rank 0.
double local_elements(const RuleTensor& tensor, const Rule& rule,
                      const std::vector<TensorType>& types, const std::vector<double>& sizes);

/// One level: `parts` is a prime of the size of `axis`. Axes of a mesh are decided in order,
/// an axis of size 8 as three levels that cut the same dim.
struct SymbolicLevel {
  AxisIndex axis;
  std::int64_t parts;

  bool operator==(const SymbolicLevel&) const = default;
};

/// The levels of the axes in `axes`, in mesh order.
std::vector<SymbolicLevel> symbolic_levels(const Mesh& mesh, AxisMask axes);

/// Index of the list in `lists` that holds `axis`, -1 if none does.
std::int32_t place_of(AxisIndex axis, const std::vector<AxisList>& lists);

/// Sum over the levels of what cutting an op as `axes` costs, all levels being those of
/// `known`. `not_possible` if it cuts both j and k of one matmul.
///
///   matmul           `matmul_costs` at the local sizes
///   convolution      s * right for a batch dim, s * left for output channels, s * out for
///                    input channels, s * (left + right) for a spatial dim; left + right + out
///                    if nothing is cut
///   any other op     s * out for a reduction, s * its operands for a dim with a halo, else 0
///
/// with s = (parts - 1) / parts and local elements. One run of the op: multiply by its trips.
double symbolic_cost(const Rule& rule, const std::vector<TensorType>& types,
                     const FactorAxes& axes, const Mesh& mesh, AxisMask known,
                     double mem_coeff);

/// Sum over the levels of `known` at which `from` and `to` cut different dims: 16 times the
/// elements that `to` left on a device before that level.
double symbolic_reshard(const std::vector<std::int64_t>& dims, const Sharding& from,
                        const Sharding& to, const Mesh& mesh, AxisMask known);

}  // namespace autoshard
