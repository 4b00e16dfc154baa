#include "memory/tile_padding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "model/products.h"

namespace autoshard {
namespace {

/// Two dims of a value, in no order: those of the matrices that it consists of. -1: none.
struct MatrixDims {
  std::int32_t first = -1, second = -1;

  bool are_known() const { return first >= 0; }
};

/// The dim of a tensor that has all of a factor and nothing else but factors of one element;
/// -1: there is none.
std::int32_t dim_of(const Rule& rule, const RuleTensor& tensor, std::int32_t factor) {
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    const auto& dim = tensor.dims[d];
    const bool has_it = std::find(dim.begin(), dim.end(), factor) != dim.end();
    if (!has_it) continue;
    const bool is_alone = std::all_of(dim.begin(), dim.end(), [&](std::int32_t f) {
      return f == factor || rule.factors[f].size == 1;
    });
    return is_alone ? static_cast<std::int32_t>(d) : -1;
  }
  return -1;
}

/// The factor that makes up a dim but for those of one element; -1: there are several or none.
std::int32_t factor_of(const Rule& rule, const RuleTensor& tensor, std::int32_t dim) {
  std::int32_t found = -1;
  for (std::int32_t factor : tensor.dims[dim]) {
    if (rule.factors[factor].size == 1) continue;
    if (found >= 0) return -1;
    found = factor;
  }
  return found;
}

/// The longest factor that two tensors of a product have and the third has not; -1: none.
std::int32_t longest(const Rule& rule, const RuleTensor& in, const RuleTensor& and_in,
                     const RuleTensor& not_in) {
  std::int32_t found = -1;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<std::int32_t>(f);
    if (!has(in, factor) || !has(and_in, factor) || has(not_in, factor)) continue;
    const bool is_longer = found < 0 || rule.factors[f].size > rule.factors[found].size;
    if (rule.factors[f].size > 1 && is_longer) found = factor;
  }
  return found;
}

/// Whether an op is a batch of products of matrices; convolutions have a window.
bool is_batch_of_matrices(const Rule& rule) {
  if (rule.work != Work::matmul || rule.operands.size() != 2 || rule.results.size() != 1) {
    return false;
  }
  const bool is_vector = is_vector_product(rule);
  if (is_vector || rule.has_workspace) return false;
  bool is_batch = false;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<std::int32_t>(f);
    const bool left = has(rule.operands[0], factor), right = has(rule.operands[1], factor),
               result = has(rule.results[0], factor);
    const bool is_window = rule.factors[f].halo != 0 || (right && !left && !result);
    if (is_window && rule.factors[f].size > 1) return false;
    is_batch = is_batch || (left && right && result && rule.factors[f].size > 1);
  }
  return is_batch;
}

class Spread {
 public:
  explicit Spread(const ProgramIndex& index) : index_(index), dims_(index.num_values) {}

  /// From all batches of products, the first ones first.
  std::vector<MatrixDims> run() {
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (is_batch_of_matrices(index_.rule(i))) add_product(i);
    }
    find_readers();
    for (std::size_t next = 0; next < reached_.size(); ++next) {
      const std::int32_t value = reached_[next];
      if (index_.producer[value] != no_op) pass_through(index_.producer[value], value);
      for (std::int32_t op : readers_[value]) pass_through(op, value);
    }
    return std::move(dims_);
  }

 private:
  void reach(std::int32_t value, MatrixDims dims) {
    if (value == no_value || dims.first < 0 || dims.second < 0) return;
    if (index_.is_argument(value) || dims_[value].are_known()) return;
    dims_[value] = dims;
    reached_.push_back(value);
  }

  void add_product(std::int32_t i) {
    const Rule& rule = index_.rule(i);
    const RuleTensor &left = rule.operands[0], &right = rule.operands[1],
                     &result = rule.results[0];
    const std::int32_t rows = longest(rule, left, result, right),
                       columns = longest(rule, right, result, left),
                       contracted = longest(rule, left, right, result);
    const auto add = [&](std::int32_t value, const RuleTensor& tensor, std::int32_t one,
                         std::int32_t other) {
      if (one < 0 || other < 0) return;
      reach(value, {dim_of(rule, tensor, one), dim_of(rule, tensor, other)});
    };
    add(index_.op(i).results[0], result, rows, columns);
    add(index_.op(i).operands[0], left, rows, contracted);
    add(index_.op(i).operands[1], right, contracted, columns);
  }

  void find_readers() {
    readers_.resize(index_.num_values);
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      for (std::int32_t v : index_.op(i).operands) {
        if (v != no_value) readers_[v].push_back(i);
      }
    }
  }

  /// From one value of an elementwise op or view to the others.
  void pass_through(std::int32_t i, std::int32_t value) {
    const Rule& rule = index_.rule(i);
    if (rule.work != Work::elementwise && rule.work != Work::view) return;
    const auto &operands = index_.op(i).operands, &results = index_.op(i).results;
    const auto each = [&](const auto& visit) {
      for (std::size_t k = 0; k < operands.size(); ++k) visit(operands[k], rule.operands[k]);
      for (std::size_t k = 0; k < results.size(); ++k) visit(results[k], rule.results[k]);
    };
    std::int32_t first = -1, second = -1;
    each([&](std::int32_t v, const RuleTensor& tensor) {
      if (v != value || first >= 0) return;
      first = factor_of(rule, tensor, dims_[value].first);
      second = factor_of(rule, tensor, dims_[value].second);
    });
    if (first < 0 || second < 0) return;
    each([&](std::int32_t v, const RuleTensor& tensor) {
      if (v == no_value) return;
      reach(v, {dim_of(rule, tensor, first), dim_of(rule, tensor, second)});
    });
  }

  const ProgramIndex& index_;
  std::vector<MatrixDims> dims_;
  std::vector<std::int32_t> reached_;
  std::vector<std::vector<std::int32_t>> readers_;
};

double up(double size, double multiple) { return std::ceil(size / multiple) * multiple; }

/// Elements of `rows` x `columns` in tiles.
double tiled(double rows, double columns, const Layout& layout) {
  const double wide = up(columns, static_cast<double>(layout.tile_columns));
  double tile = static_cast<double>(layout.tile_rows);
  while (tile / 2 >= rows && tile >= 2) tile /= 2;
  return up(rows, tile) * wide;
}

}  // namespace

double padding_of_matrix(double rows, double columns, const Layout& layout) {
  if (layout.tile_columns == 0 || rows * columns == 0) return 1;
  const double least = std::min(tiled(rows, columns, layout), tiled(columns, rows, layout));
  return least / (rows * columns);
}

std::vector<double> tile_padding_of(const ProgramIndex& index, const Layout& layout) {
  std::vector<double> padding(index.num_values, 1);
  if (layout.tile_columns == 0) return padding;
  const std::vector<MatrixDims> dims = Spread(index).run();
  for (std::size_t v = 0; v < index.num_values; ++v) {
    if (!dims[v].are_known()) continue;
    const auto& sizes = index.program.types[index.program.values[v].type].dims;
    padding[v] = padding_of_matrix(static_cast<double>(sizes[dims[v].first]),
                                   static_cast<double>(sizes[dims[v].second]), layout);
  }
  return padding;
}

}  // namespace autoshard
