#include "memory/tile_padding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "model/products.h"

namespace autoshard {
namespace {

/// A product without a batch writes and reads matrices as a batch of products wants them,
/// unless the batch in its columns pads less: to twice the elements at most, if it is at least
/// half as large as a tile has columns. Where matrices pad less than that, it depends on how
/// many of the batch a device has, which is not known before it is cut.
constexpr double most_direct_padding = 2;

/// Two dims of a value, in no order: those of the matrices that it consists of. -1: none.
struct MatrixDims {
  std::int32_t first = -1, second = -1;
  /// The first one is that of images, of which each device has its share.
  bool are_of_images = false;

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

/// Whether an op is a convolution.
bool is_convolution(const Rule& rule) {
  return rule.work == Work::matmul && rule.has_workspace && rule.operands.size() == 2 &&
         rule.results.size() == 1;
}

/// Whether all of a dim is in the kernel of a convolution as well: channels.
bool is_in(const RuleTensor& kernel, const std::vector<std::int32_t>& dim) {
  return !dim.empty() &&
         std::all_of(dim.begin(), dim.end(), [&](std::int32_t f) { return has(kernel, f); });
}

/// Images and channels of what a convolution reads or writes: the first dim, if both have it
/// and its kernel has not, and the one that its kernel has.
///
/// Example: none of the gradient of a window, whose first dim is one of the window.
MatrixDims images_of(const Rule& rule, const RuleTensor& tensor) {
  const RuleTensor& kernel = rule.operands[1];
  MatrixDims found;
  if (tensor.dims.empty() || tensor.dims[0].empty()) return found;
  for (std::int32_t f : tensor.dims[0]) {
    const bool is_of_both = has(rule.operands[0], f) && has(rule.results[0], f);
    if (!is_of_both || has(kernel, f) || rule.factors[f].halo != 0) return found;
  }
  for (std::size_t d = 1; d < tensor.dims.size(); ++d) {
    if (is_in(kernel, tensor.dims[d])) {
      found = {0, static_cast<std::int32_t>(d), true};
    }
  }
  return found;
}

/// Calls `visit(op, value)` of each value in `reached` for the op that makes it and those that
/// read it; what `visit` adds to `reached` is visited, too.
template <typename Visit>
void each_beside(const ProgramIndex& index, const std::vector<std::int32_t>& reached,
                 const Visit& visit) {
  for (std::size_t next = 0; next < reached.size(); ++next) {
    const std::int32_t value = reached[next];
    if (index.producer[value] != no_op) visit(index.producer[value], value);
    for (std::int32_t op : index.readers_of(value)) visit(op, value);
  }
}

/// Calls `reach` of the operands and results of an op that have as many elements as a value.
template <typename Reach>
void each_as_large(const ProgramIndex& index, std::int32_t op, std::int32_t value,
                   const Reach& reach) {
  const auto visit = [&](std::int32_t v) {
    if (v != no_value && index.elements(v) == index.elements(value)) reach(v);
  };
  for (std::int32_t v : index.op(op).operands) visit(v);
  for (std::int32_t v : index.op(op).results) visit(v);
}

class Spread {
 public:
  explicit Spread(const ProgramIndex& index) : index_(index), dims_(index.num_values) {}

  /// From all batches of products and convolutions, the first ones first.
  std::vector<MatrixDims> run() {
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (is_batch_of_matrices(index_.rule(i))) {
        add_product(i);
      } else if (is_convolution(index_.rule(i))) {
        add_convolution(i);
      }
    }
    each_beside(index_, reached_,
                [&](std::int32_t op, std::int32_t value) { pass_through(op, value); });
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

  void add_convolution(std::int32_t i) {
    const Rule& rule = index_.rule(i);
    reach(index_.op(i).operands[0], images_of(rule, rule.operands[0]));
    reach(index_.op(i).results[0], images_of(rule, rule.results[0]));
  }

  /// From one value of an elementwise op, a view or a pooling of images to the others.
  void pass_through(std::int32_t i, std::int32_t value) {
    const Rule& rule = index_.rule(i);
    const bool is_pooling = rule.work == Work::reduce && dims_[value].are_of_images;
    if (rule.work != Work::elementwise && rule.work != Work::view && !is_pooling) return;
    const auto &operands = index_.op(i).operands, &results = index_.op(i).results;
    const auto each = [&](const auto& visit) {
      for (std::size_t k = 0; k < operands.size(); ++k) visit(operands[k], rule.operands[k]);
      for (std::size_t k = 0; k < results.size(); ++k) visit(results[k], rule.results[k]);
    };
    std::int32_t first = -1, second = -1;
    const bool of_images = dims_[value].are_of_images;
    each([&](std::int32_t v, const RuleTensor& tensor) {
      if (v != value || first >= 0) return;
      first = only_factor(rule, tensor, dims_[value].first);
      second = only_factor(rule, tensor, dims_[value].second);
    });
    if (first < 0 || second < 0) return;
    each([&](std::int32_t v, const RuleTensor& tensor) {
      if (v == no_value) return;
      reach(v, {dim_of(rule, tensor, first), dim_of(rule, tensor, second), of_images});
    });
  }

  const ProgramIndex& index_;
  std::vector<MatrixDims> dims_;
  std::vector<std::int32_t> reached_;
};

/// Whether an op writes or reads matrices of a product without a batch.
bool is_plain_product(const Rule& rule) {
  return rule.work == Work::matmul && !rule.has_workspace && !has_batch(rule) &&
         !is_vector_product(rule);
}

/// By value: products without a batch write it or read it, or what elementwise ops and views
/// make of it, up to those that batches of products read or write.
std::vector<bool> beside_plain_products(const ProgramIndex& index,
                                        const std::vector<MatrixDims>& dims) {
  std::vector<bool> found(index.num_values, false);
  std::vector<std::int32_t> reached;
  const auto reach = [&](std::int32_t value) {
    if (value == no_value || found[value] || dims[value].are_known()) return;
    if (index.is_argument(value)) return;
    found[value] = true;
    reached.push_back(value);
  };
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (!is_plain_product(index.rule(i))) continue;
    for (std::int32_t v : index.op(i).operands) reach(v);
    for (std::int32_t v : index.op(i).results) reach(v);
  }
  each_beside(index, reached, [&](std::int32_t op, std::int32_t value) {
    const Work work = index.rule(op).work;
    if (work != Work::elementwise && work != Work::view) return;
    each_as_large(index, op, value, reach);
  });
  return found;
}

/// Whether an op is a view of all elements of one value.
bool is_whole_view(const ProgramIndex& index, std::int32_t i) {
  const auto &operands = index.op(i).operands, &results = index.op(i).results;
  return index.rule(i).work == Work::view && operands.size() == 1 && results.size() == 1 &&
         operands[0] != no_value && results[0] != no_value && !index.is_free(operands[0]) &&
         index.bytes[operands[0]] == index.bytes[results[0]];
}

double up(double size, double multiple) { return std::ceil(size / multiple) * multiple; }

/// Elements of `rows` x `columns` in tiles.
double tiled(double rows, double columns, const Layout& layout) {
  const double wide = up(columns, static_cast<double>(layout.tile_columns));
  double tile = static_cast<double>(layout.tile_rows);
  while (tile / 2 >= rows && tile >= 2) tile /= 2;
  return up(rows, tile) * wide;
}

/// Whether a view leaves the rows and columns of the matrices that it reads or writes as they
/// are in tiles: dims as a whole, or such that end with whole tiles.
bool keeps_tiles(const ProgramIndex& index, std::int32_t view, std::int32_t matrices,
                 const MatrixDims& dims, const Layout& layout) {
  const Rule& rule = index.rule(view);
  const bool is_read = index.op(view).operands[0] == matrices;
  const RuleTensor& from = is_read ? rule.operands[0] : rule.results[0];
  const RuleTensor& to = is_read ? rule.results[0] : rule.operands[0];
  const auto is_kept = [&](std::int32_t d, std::int64_t tile) {
    const auto& factors = from.dims[static_cast<std::size_t>(d)];
    return std::any_of(to.dims.begin(), to.dims.end(), [&](const auto& dim) {
      if (dim == factors || dim.empty() || factors.empty()) return dim == factors;
      return dim.back() == factors.back() && rule.factors[dim.back()].size % tile == 0;
    });
  };
  const std::int64_t rows = layout.tile_rows, columns = layout.tile_columns;
  return (is_kept(dims.first, rows) && is_kept(dims.second, columns)) ||
         (is_kept(dims.first, columns) && is_kept(dims.second, rows));
}

/// Notes views that split or join rows or columns of matrices within tiles: they are copies,
/// and what elementwise ops make of what lies beside these lies as they do, in the order of
/// dims that pads least, as if the first dim were cut over all devices.
void add_regrouped(const ProgramIndex& index, const Layout& layout,
                   const std::vector<MatrixDims>& dims, const std::vector<bool>& is_beside,
                   TilePadding& found) {
  std::vector<bool> is_regrouped(index.num_values, false);
  std::vector<std::int32_t> reached;
  const auto may_be = [&](std::int32_t value) {
    return !dims[value].are_known() && !is_beside[value] && !index.is_argument(value) &&
           !index.is_free(value);
  };
  const auto reach = [&](std::int32_t value) {
    if (is_regrouped[value] || !may_be(value)) return;
    is_regrouped[value] = true;
    reached.push_back(value);
    const auto& of = index.dims(value);
    std::vector<double> sizes(of.begin(), of.end());
    if (!sizes.empty()) sizes[0] = std::ceil(sizes[0] / index.devices());
    found.of_value[value] = least_padding(sizes, layout);
  };
  const auto add = [&](std::int32_t view, std::int32_t matrices, std::int32_t other) {
    if (!found.is_matrix[matrices] || !may_be(other)) return;
    if (keeps_tiles(index, view, matrices, dims[matrices], layout)) return;
    found.is_copy[view] = true;
    reach(other);
  };
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (!is_whole_view(index, i)) continue;
    const std::int32_t read = index.op(i).operands[0], written = index.op(i).results[0];
    add(i, read, written);
    add(i, written, read);
  }
  each_beside(index, reached, [&](std::int32_t op, std::int32_t value) {
    if (index.rule(op).work == Work::elementwise) each_as_large(index, op, value, reach);
  });
}

}  // namespace

double padding_of_matrix(double rows, double columns, const Layout& layout) {
  if (layout.tile_columns == 0 || rows * columns == 0) return 1;
  const double least = std::min(tiled(rows, columns, layout), tiled(columns, rows, layout));
  return least / (rows * columns);
}

double padding_of_columns(double rows, double columns, const Layout& layout) {
  if (layout.tile_columns == 0 || rows * columns == 0) return 1;
  return tiled(rows, columns, layout) / (rows * columns);
}

double least_padding(std::span<const double> dims, const Layout& layout) {
  if (layout.tile_columns == 0 || dims.size() < 2) return 1;
  double least = padding_of_matrix(dims[0], dims[1], layout);
  for (std::size_t one = 0; one < dims.size(); ++one) {
    for (std::size_t other = one + 1; other < dims.size(); ++other) {
      least = std::min(least, padding_of_matrix(dims[one], dims[other], layout));
    }
  }
  return least;
}

TilePadding tile_padding_of(const ProgramIndex& index, const Layout& layout) {
  TilePadding found{
      std::vector<double>(index.num_values, 1), std::vector<double>(index.num_values, 1),
      std::vector<bool>(index.num_values, false), std::vector<bool>(index.num_ops, false)};
  if (layout.tile_columns == 0) return found;
  std::vector<double>& padding = found.of_value;
  const double devices = index.devices();
  const std::vector<MatrixDims> dims = Spread(index).run();
  for (std::size_t v = 0; v < index.num_values; ++v) {
    if (!dims[v].are_known()) continue;
    found.is_matrix[v] = !dims[v].are_of_images;
    const auto& sizes = index.dims(static_cast<std::int32_t>(v));
    double rows = static_cast<double>(sizes[dims[v].first]);
    if (dims[v].are_of_images) rows = std::ceil(rows / devices);
    padding[v] = padding_of_matrix(rows, static_cast<double>(sizes[dims[v].second]), layout);
  }
  const std::vector<bool> is_beside = beside_plain_products(index, dims);
  add_regrouped(index, layout, dims, is_beside, found);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (!is_whole_view(index, i)) continue;
    const std::int32_t read = index.op(i).operands[0], written = index.op(i).results[0];
    const auto is_transposed = [&](std::int32_t matrices) {
      const auto& sizes = index.dims(matrices);
      return padding[matrices] >= most_direct_padding && 2 * sizes[0] >= layout.tile_columns;
    };
    if ((is_beside[read] && is_transposed(written)) ||
        (is_beside[written] && is_transposed(read))) {
      found.is_copy[i] = true;
    }
  }
  return found;
}

}  // namespace autoshard
