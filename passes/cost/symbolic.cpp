#include "cost/symbolic.h"

#include <algorithm>
#include <cmath>

namespace autoshard {
namespace {

/// Batched matmuls are kept whole from this many batch elements a device on: the cores of the
/// chip that MindSpore's constant was made for.
constexpr double cores = 32;

double share(std::int64_t parts) {
  return static_cast<double>(parts - 1) / static_cast<double>(parts);
}

double square(double x) { return x * x; }

bool holds(const RuleTensor& tensor, std::int32_t factor) {
  return std::any_of(tensor.dims.begin(), tensor.dims.end(), [factor](const auto& dim) {
    return std::find(dim.begin(), dim.end(), factor) != dim.end();
  });
}

bool is_convolution(const Rule& rule) {
  if (rule.work != Work::matmul || rule.operands.size() < 2 || rule.results.empty()) {
    return false;
  }
  return rule.operands[0].type != no_type && rule.operands[1].type != no_type &&
         rule.results[0].type != no_type && !matmul_factors(rule);
}

/// The tensors of one op on one device.
struct Local {
  const Rule& rule;
  const std::vector<TensorType>& types;
  const std::vector<double>& sizes;

  double operator()(const RuleTensor& tensor) const {
    return local_elements(tensor, rule, types, sizes);
  }
};

double convolution_cost(const Local& local, std::int32_t factor, double s) {
  const Rule& rule = local.rule;
  const double left = local(rule.operands[0]), right = local(rule.operands[1]);
  const double out = local(rule.results[0]);
  if (factor < 0) return left + right + out;
  const Factor& cut = rule.factors[factor];
  if (cut.kind == FactorKind::reduction) return s * out;
  if (cut.kind == FactorKind::permutation) return s * (left + right);
  if (!holds(rule.operands[0], factor)) return s * left;
  // Groups are in all three tensors, a batch dim is not in the filter: nothing else is needed
  // of the groups, all of the filter of the batch.
  return holds(rule.operands[1], factor) ? 0 : s * right;
}

double other_cost(const Local& local, std::int32_t factor, double s) {
  if (factor < 0) return 0;
  const Rule& rule = local.rule;
  const Factor& cut = rule.factors[factor];
  double total = 0;
  if (cut.kind == FactorKind::reduction) {
    for (const RuleTensor& tensor : rule.results) total += s * local(tensor);
  } else if (cut.kind == FactorKind::permutation && cut.halo != 0) {
    const double halo =
        cut.halo < 0 ? 1 : std::min(1.0, static_cast<double>(cut.halo) / local.sizes[factor]);
    for (const RuleTensor& tensor : rule.operands) {
      if (holds(tensor, factor)) total += s * halo * local(tensor);
    }
  }
  return total;
}

}  // namespace

MatMulCosts matmul_costs(const MatMulSizes& sizes, bool has_batch, double mem_coeff,
                         std::int64_t parts) {
  const double s = share(parts);
  const double left = sizes.batch * sizes.i * sizes.k;
  const double right = sizes.batch * sizes.k * sizes.j;
  const double out = sizes.batch * sizes.i * sizes.j;
  if (!has_batch) {
    const double i = mem_coeff * right * s, j = left * s, k = out * s;
    const double none = square(std::min({i, j, k})) / replicate_below;
    return {not_possible, not_possible, i, j, k, none};
  }
  const double m = 0.15 * std::min({left, right, out}) * s;
  const double r = sizes.batch <= 1 ? cores : std::max(cores / sizes.batch - 1, 0.0);
  return {r * m,   std::abs(r * m - 1),        right * s, left * s,
          out * s, square(m) / replicate_below};
}

MatMulCut MatMulFactors::cut_of(std::int32_t factor) const {
  const auto in = [factor](const std::vector<std::int32_t>& list) {
    return std::find(list.begin(), list.end(), factor) != list.end();
  };
  if (in(i)) return MatMulCut::i;
  if (in(j)) return MatMulCut::j;
  if (in(k)) return MatMulCut::k;
  if (!in(batch)) return MatMulCut::none;
  return factor == batch.back() ? MatMulCut::expert : MatMulCut::batch;
}

std::optional<MatMulFactors> matmul_factors(const Rule& rule) {
  if (rule.operands.size() != 2 || rule.results.size() != 1) return std::nullopt;
  if (rule.operands[0].type == no_type || rule.operands[1].type == no_type) {
    return std::nullopt;
  }
  MatMulFactors found;
  for (std::int32_t f = 0; f < static_cast<std::int32_t>(rule.factors.size()); ++f) {
    const bool left = holds(rule.operands[0], f), right = holds(rule.operands[1], f);
    const bool out = holds(rule.results[0], f);
    const FactorKind kind = rule.factors[f].kind;
    if (kind == FactorKind::reduction && left && right && !out) {
      found.k.push_back(f);
    } else if (kind != FactorKind::pass_through || !out) {
      return std::nullopt;
    } else if (left && right) {
      found.batch.push_back(f);
    } else if (left || right) {
      (left ? found.i : found.j).push_back(f);
    } else {
      return std::nullopt;
    }
  }
  // An outer product is a matmul with k = 1; without its kind it could be any product.
  if (found.k.empty() && rule.work != Work::matmul) return std::nullopt;
  return found;
}

bool is_main(const Rule& rule) { return matmul_factors(rule) || is_convolution(rule); }

std::vector<SymbolicLevel> symbolic_levels(const Mesh& mesh, AxisMask axes) {
  std::vector<SymbolicLevel> levels;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (!((axes >> axis) & 1u)) continue;
    std::int64_t rest = mesh.axis_sizes[axis];
    for (std::int64_t parts = 2; rest > 1; ++parts) {
      // What is left when parts * parts exceeds it is a prime.
      if (parts * parts > rest) parts = rest;
      for (; rest % parts == 0; rest /= parts) {
        levels.push_back({static_cast<AxisIndex>(axis), parts});
      }
    }
  }
  return levels;
}

std::int32_t place_of(AxisIndex axis, const std::vector<AxisList>& lists) {
  for (std::size_t at = 0; at < lists.size(); ++at) {
    if (std::find(lists[at].begin(), lists[at].end(), axis) != lists[at].end()) {
      return static_cast<std::int32_t>(at);
    }
  }
  return -1;
}

double local_elements(const RuleTensor& tensor, const Rule& rule,
                      const std::vector<TensorType>& types, const std::vector<double>& sizes) {
  double total = 1;
  if (tensor.type == no_type) return total;
  for (std::int64_t dim : types[tensor.type].dims) total *= static_cast<double>(dim);
  if (total == 0) return 0;  // else factors of size 0 are divided by themselves
  for (const auto& dim : tensor.dims) {
    for (std::int32_t f : dim) total *= sizes[f] / static_cast<double>(rule.factors[f].size);
  }
  return total;
}

double symbolic_cost(const Rule& rule, const std::vector<TensorType>& types,
                     const FactorAxes& axes, const Mesh& mesh, AxisMask known,
                     double mem_coeff) {
  std::vector<double> sizes;
  for (const Factor& factor : rule.factors) sizes.push_back(static_cast<double>(factor.size));
  const std::optional<MatMulFactors> matmul = matmul_factors(rule);
  const bool convolution = !matmul && is_convolution(rule);
  bool cuts_j = false, cuts_k = false;
  double total = 0;
  for (const SymbolicLevel& level : symbolic_levels(mesh, known)) {
    const std::int32_t factor = place_of(level.axis, axes);
    if (matmul) {
      const MatMulCut cut = matmul->cut_of(factor);
      cuts_j |= cut == MatMulCut::j;
      cuts_k |= cut == MatMulCut::k;
      if (cuts_j && cuts_k) return not_possible;
      total += matmul_costs(local_sizes(*matmul, sizes), !matmul->batch.empty(), mem_coeff,
                            level.parts)[static_cast<int>(cut)];
    } else if (convolution) {
      total += convolution_cost({rule, types, sizes}, factor, share(level.parts));
    } else {
      total += other_cost({rule, types, sizes}, factor, share(level.parts));
    }
    if (factor >= 0) sizes[factor] /= static_cast<double>(level.parts);
  }
  return total;
}

MatMulSizes local_sizes(const MatMulFactors& factors, const std::vector<double>& sizes) {
  const auto product = [&](const std::vector<std::int32_t>& list) {
    double total = 1;
    for (std::int32_t f : list) total *= sizes[f];
    return total;
  };
  return {product(factors.batch), product(factors.i), product(factors.k), product(factors.j)};
}

double symbolic_reshard(const std::vector<std::int64_t>& dims, const Sharding& from,
                        const Sharding& to, const Mesh& mesh, AxisMask known) {
  if (from == to) return 0;
  double local = 1, total = 0;
  for (std::int64_t dim : dims) local *= static_cast<double>(dim);
  for (const SymbolicLevel& level : symbolic_levels(mesh, known)) {
    const std::int32_t wanted = place_of(level.axis, to.dims);
    if (place_of(level.axis, from.dims) != wanted) total += elements_per_resharded * local;
    if (wanted >= 0) local /= static_cast<double>(level.parts);
  }
  return total;
}

}  // namespace autoshard
