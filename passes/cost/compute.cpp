#include "cost/compute.h"

#include <algorithm>
#include <cmath>

#include "model/products.h"

namespace autoshard {
namespace {

double blocks(const AxisList& axes, const Mesh& mesh) {
  return static_cast<double>(num_shards(axes, mesh));
}

/// The share of an op's work that the busiest of so many parts of a factor has.
double largest_share(const Factor& factor, double parts) {
  if (factor.shares.empty() || parts <= 1) return 1 / parts;
  const auto size =
      static_cast<std::size_t>(std::ceil(static_cast<double>(factor.shares.size()) / parts));
  double largest = 0;
  for (std::size_t first = 0; first < factor.shares.size(); first += size) {
    double part = 0;
    for (std::size_t k = first; k < std::min(first + size, factor.shares.size()); ++k) {
      part += factor.shares[k];
    }
    largest = std::max(largest, part);
  }
  return largest;
}

/// By how much padding makes `size` elements more.
double padding(double size, std::int64_t tile) {
  const auto t = static_cast<double>(tile);
  return std::ceil(size / t) * t / size;
}

/// Elements of one device along a factor.
double local_size(const Rule& rule, std::int32_t factor, const FactorAxes& axes,
                  const Mesh& mesh) {
  return std::ceil(static_cast<double>(rule.factors[factor].size) /
                   blocks(axes[factor], mesh));
}

/// Elements of one device in the dims of a product: rows (of the left operand and the result),
/// columns (right operand and result) and a contracted dim (both operands, or, as the window
/// of a convolution, the right one alone). What all three have is a batch of products, or the
/// groups of a convolution. The spatial dims of a convolution are rows.
struct ProductSizes {
  double rows = 1, columns = 1, contracted = 1, window = 1, groups = 1;
};

ProductSizes product_sizes(const Rule& rule, const FactorAxes& axes, const Mesh& mesh) {
  ProductSizes sizes;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<std::int32_t>(f);
    const double local = local_size(rule, factor, axes, mesh);
    const bool left = has(rule.operands[0], factor), right = has(rule.operands[1], factor),
               result = has(rule.results[0], factor);
    if (left && result && !right) sizes.rows *= local;
    if (right && result && !left) sizes.columns *= local;
    if (left && right && !result) sizes.contracted *= local;
    if (right && !left && !result) sizes.window *= local;
    if (left && right && result) sizes.groups *= local;
  }
  return sizes;
}

/// By how much the tiles of the matrix unit make the work of one device more.
double matmul_padding(const ProductSizes& sizes, const Cluster& cluster) {
  const Chip& chip = cluster.chip;
  const double contracted = sizes.contracted * sizes.window;
  if (sizes.rows * sizes.columns * contracted == 0) return 1;
  // The gradient of a window has a large one of its own: positions, which are added up with
  // the images.
  const bool has_window = sizes.window > 1 && sizes.window * sizes.contracted < sizes.rows;
  const std::int64_t channels = cluster.compiler.fusion.convolution_channels;
  return padding(sizes.rows, chip.tile_rows) * padding(sizes.columns, chip.tile_columns) *
         std::max(padding(contracted, chip.tile_columns),
                  has_window ? padding(sizes.contracted, channels) : 1);
}

/// Share of the vector units' peak that a product reaches. Tiles of memory hold the channels
/// of a convolution in columns: of one channel a group, as many as there are groups.
double vectors_share(const ProductSizes& sizes, const Compiler& compiler) {
  if (sizes.window <= 1) return 1;
  const std::int64_t columns = std::max<std::int64_t>(1, compiler.layout.tile_columns);
  return compiler.fusion.convolutions_on_vectors / padding(sizes.groups, columns);
}

/// Elements of one device in the last dim of a tensor that has more than one; 0 where that is
/// all of it.
double row_size(const Rule& rule, const RuleTensor& tensor, const FactorAxes& axes,
                const Mesh& mesh) {
  double row = 1, others = 1;
  for (auto dim = tensor.dims.rbegin(); dim != tensor.dims.rend(); ++dim) {
    double size = 1;
    for (std::int32_t f : *dim) size *= local_size(rule, f, axes, mesh);
    (row > 1 ? others : row) *= size;
  }
  return others > 1 ? row : 0;
}

/// The share of a tensor of a product; one of a single row begins where it begins.
double share_of_rows(const Rule& rule, const RuleTensor& tensor, const FactorAxes& axes,
                     const std::vector<TensorType>& types, const Mesh& mesh, double worst) {
  if (worst >= 1 || tensor.type == no_type) return 1;
  return aligned_share(row_size(rule, tensor, axes, mesh), types[tensor.type].element_bits,
                       worst);
}

/// What one device has of what is cut as a tensor is.
double local_part(double whole, const RuleTensor& tensor, const FactorAxes& axes,
                  const Mesh& mesh) {
  for (const auto& factors : tensor.dims) {
    for (std::int32_t f : factors) whole /= blocks(axes[f], mesh);
  }
  return whole;
}

/// Bytes of one device's block of a tensor.
double local_bytes(const RuleTensor& tensor, const FactorAxes& axes,
                   const std::vector<TensorType>& types, const Mesh& mesh) {
  if (tensor.type == no_type) return 0;
  return local_part(types[tensor.type].bytes(), tensor, axes, mesh);
}

/// The tensor by whose axes what an op touches of another is cut.
const RuleTensor& touched_as(const Rule& rule, const RuleTensor& tensor) {
  if (rule.touched_as < 0) return tensor;
  const auto number = static_cast<std::size_t>(rule.touched_as);
  return number < rule.operands.size() ? rule.operands[number]
                                       : rule.results[number - rule.operands.size()];
}

/// Whether an op does nothing else than to bring what it reads into padded tiles, or out of
/// them: it transposes, since the other side lies in the order of dims that fills its tiles.
bool transposes_tiles(const Rule& rule, const KernelPart& part) {
  return rule.work == Work::view && rule.operands.size() == 1 && rule.results.size() == 1 &&
         part.writes[0] && part.padding_of(0) != part.padding_of(1);
}

/// Elements of one device of a tensor as they lie in memory.
double local_elements(const RuleTensor& tensor, std::size_t number, const FactorAxes& axes,
                      const KernelPart& part, const std::vector<TensorType>& types,
                      const Mesh& mesh) {
  if (tensor.type == no_type) return 0;
  const double bytes = local_bytes(tensor, axes, types, mesh) * part.padding_of(number);
  return bytes * 8 / static_cast<double>(types[tensor.type].element_bits);
}

/// Elements of one device that a kernel brings into other tiles, the mean of both sides.
double transposed_elements(const Rule& rule, const FactorAxes& axes, const KernelPart& part,
                           const std::vector<TensorType>& types, const Mesh& mesh) {
  return (local_elements(rule.operands[0], 0, axes, part, types, mesh) +
          local_elements(rule.results[0], 1, axes, part, types, mesh)) /
         2;
}

/// Whether a device has more than one of both of what a view joins behind a broadcast.
bool joins_some(const Rule& rule, const Repeat& repeat, const FactorAxes& axes,
                const Mesh& mesh) {
  const auto is_cut_whole = [&](std::int32_t factor) {
    return static_cast<double>(rule.factors[factor].size) <= blocks(axes[factor], mesh);
  };
  return !is_cut_whole(repeat.made) && !is_cut_whole(repeat.beside);
}

/// Elements of one device that a product takes, whether it reads or computes them.
double operand_elements(const Rule& rule, const FactorAxes& axes, const KernelPart& part,
                        const std::vector<TensorType>& types, const Mesh& mesh) {
  double sum = 0;
  for (std::size_t k = 0; k < rule.operands.size(); ++k) {
    sum += local_elements(rule.operands[k], k, axes, part, types, mesh);
  }
  return sum;
}

/// Elements of one device that a kernel which ends in the op packs: those of narrow results,
/// and those that a reduction takes. A product with a vector reduces what it multiplies, of
/// which it has half as many as the `flops` of the device.
double packed_elements(const Rule& rule, double flops, const FactorAxes& axes,
                       const KernelPart& part, const std::vector<TensorType>& types,
                       const Mesh& mesh) {
  const auto elements = [&](const RuleTensor& tensor, std::size_t number) {
    return local_elements(tensor, number, axes, part, types, mesh);
  };
  double sum = 0;
  if (rule.work == Work::reduce) sum += elements(rule.operands[0], 0);
  if (is_vector_product(rule)) sum += flops / 2;
  const bool writes_all =
      rule.work == Work::elementwise || rule.work == Work::view || rule.work == Work::matmul;
  for (std::size_t k = 0; writes_all && k < rule.results.size(); ++k) {
    const RuleTensor& result = rule.results[k];
    const bool is_narrow = result.type != no_type && types[result.type].element_bits < 32;
    if (part.writes[k] && is_narrow) sum += elements(result, rule.operands.size() + k);
  }
  return sum;
}

/// Bytes of memory for which a reduction of rows of another length than 16 bytes waits: its
/// kernel reads elements one by one. They are read as 16-bit numbers, if wider in the kernel.
double unaligned_bytes(const Rule& rule, const FactorAxes& axes,
                       const std::vector<TensorType>& types, const Mesh& mesh, double worst) {
  constexpr double bits = 16;
  if (worst >= 1 || rule.work != Work::reduce || rule.is_cheap) return 0;
  const RuleTensor& tensor = rule.operands[0];
  if (tensor.type == no_type || tensor.dims.empty()) return 0;
  const auto& row = tensor.dims.back();
  const bool is_reduced = std::any_of(row.begin(), row.end(), [&](std::int32_t f) {
    return rule.factors[f].kind == FactorKind::reduction;
  });
  if (!is_reduced) return 0;
  const double elements = local_bytes(tensor, axes, types, mesh) * 8 /
                          static_cast<double>(types[tensor.type].element_bits);
  const double share = aligned_share(row_size(rule, tensor, axes, mesh), bits, worst);
  return elements * bits / 8 * (1 / share - 1);
}

/// Whether an op stores a result, or makes scalars of a tensor; what reads a scalar that only
/// is a view of one element computes it itself.
bool makes_result(const Rule& rule, const KernelPart& part) {
  if (std::find(part.writes.begin(), part.writes.end(), true) != part.writes.end())
    return true;
  const auto is_tensor = [](const RuleTensor& tensor) { return tensor.type != no_type; };
  return rule.work != Work::view &&
         std::any_of(rule.operands.begin(), rule.operands.end(), is_tensor) &&
         std::none_of(rule.results.begin(), rule.results.end(), is_tensor);
}

/// Whether a device reduces in two kernels: what lies together is too long for one.
///
/// Example: with rows of 16,384, 32,768 elements to one, or 16 x 128 x 1,024 to 128; with
/// columns of 4,096, 8,192 x 1,024 to 1,024.
bool is_in_parts(const Rule& rule, const FactorAxes& axes, const Mesh& mesh,
                 const Fusion& rules) {
  if (rule.work != Work::reduce || rule.is_cheap || rule.operands[0].type == no_type) {
    return false;
  }
  constexpr double most_rows_apart = 8;
  // Dims that are reduced and stand side by side are one; so are those that stay.
  std::vector<std::pair<bool, double>> runs;
  for (const auto& dim : rule.operands[0].dims) {
    for (std::int32_t factor : dim) {
      const bool is_reduced = rule.factors[factor].kind == FactorKind::reduction;
      const double size = static_cast<double>(rule.factors[factor].size) /
                          static_cast<double>(num_shards(axes[factor], mesh));
      if (size <= 1) continue;
      if (runs.empty() || runs.back().first != is_reduced) runs.emplace_back(is_reduced, 1);
      runs.back().second *= size;
    }
  }
  const bool are_rows = !runs.empty() && runs.back().first;
  double apart = 1;
  std::size_t num_apart = 0;
  for (std::size_t r = 0; r + (are_rows ? 1 : 0) < runs.size(); ++r) {
    if (!runs[r].first) continue;
    apart *= runs[r].second;
    ++num_apart;
  }
  if (are_rows) {
    return rules.whole_rows > 0 &&
           (runs.back().second > static_cast<double>(rules.whole_rows) ||
            apart > most_rows_apart);
  }
  return rules.whole_columns > 0 &&
         (apart > static_cast<double>(rules.whole_columns) || num_apart > 1);
}

/// Bytes of memory that take as long as Fourier transforms of what a device has, dim by dim.
/// A dim is multiplied by the matrix of its transform, in three products of real matrices that
/// keep all of a float32; a longer one that 64 divides by two smaller ones, one after the
/// other, with transposes of both parts of each number and sums of these between.
double transform_bytes(const Rule& rule, double points, const Cluster& cluster) {
  constexpr double longest = 128, twice = 256, divisor = 64;
  constexpr double products = 3, passes = 6, bytes_of_sums = 32;
  const Chip& chip = cluster.chip;
  const Fusion& fusion = cluster.compiler.fusion;
  const double multiplied_per_second =
      chip.matmul_flops[static_cast<std::size_t>(Arithmetic::f16)] * chip.matmul_efficiency;
  const double bytes_per_second = chip.memory_bandwidth * chip.memory_efficiency;
  double bytes = 0;
  for (const double length : rule.transforms) {
    if (length > longest && length != twice && std::fmod(length, divisor) == 0) {
      bytes += 2 * (fusion.transform_bytes + fusion.transposed_bytes) + bytes_of_sums;
      continue;
    }
    const double multiplied =
        products * passes * 2 * length * padding(length, chip.tile_columns);
    bytes += std::max(fusion.transform_bytes,
                      multiplied / multiplied_per_second * bytes_per_second);
  }
  return bytes * points;
}

/// What work on the matrix units reaches of their peak.
double matmul_share(Work work, const Chip& chip) {
  const bool is_gradient = work == Work::attention_gradient;
  return chip.matmul_efficiency * (is_gradient ? chip.attention_gradient_efficiency : 1);
}

/// Seconds that what is fused into a matmul takes by itself.
double fused_seconds(const Rule& rule, const FactorAxes& axes, const KernelPart& part,
                     const std::vector<TensorType>& types, const Mesh& mesh,
                     const Cluster& cluster) {
  const Chip& chip = cluster.chip;
  const bool is_partial = partial_axes(rule, axes) != 0;
  double seconds = 0;
  for (const FusedWork& work : part.fused) {
    const auto k = static_cast<std::size_t>(work.tensor);
    const bool is_result = k == rule.operands.size();
    if (is_result && is_partial) continue;
    const RuleTensor& tensor = is_result ? rule.results[0] : rule.operands[k];
    if (tensor.type == no_type) continue;
    const double elements = local_bytes(tensor, axes, types, mesh) * part.padding_of(k) * 8 /
                            static_cast<double>(types[tensor.type].element_bits);
    const double moved = work.bytes + cluster.compiler.fusion.packed_bytes * work.packed;
    seconds += elements * std::max(moved / (chip.memory_bandwidth * chip.memory_efficiency),
                                   work.flops / chip.vector_flops);
  }
  return seconds;
}

/// Bytes of each element of a result that the kernel of its product writes, and reads to
/// compute it. A partial sum is written before anything is done with it.
double result_streams(const Rule& rule, const FactorAxes& axes, const KernelPart& part,
                      const std::vector<TensorType>& types) {
  const RuleTensor& result = rule.results[0];
  const bool is_partial = partial_axes(rule, axes) != 0;
  double bytes = 0;
  if ((part.writes[0] || is_partial) && result.type != no_type) {
    bytes += static_cast<double>(types[result.type].element_bits) / 8;
  }
  if (is_partial) return bytes;
  for (const FusedWork& work : part.fused) {
    if (static_cast<std::size_t>(work.tensor) == rule.operands.size()) bytes += work.bytes;
  }
  return bytes;
}

/// Bytes of operands that a product reads, as neither all rows nor all columns of the result
/// fit beside the matrix units: again for each square tile of it. A tile is added up in 32
/// bits, beside two of each tensor of its size that is read or written.
double tiled_bytes(const Rule& rule, const FactorAxes& axes, const ProductSizes& sizes,
                   const KernelPart& part, const std::vector<TensorType>& types,
                   double tile_bytes) {
  if (tile_bytes == 0) return 0;
  const double streams = result_streams(rule, axes, part, types);
  const double side = std::sqrt(tile_bytes / (4 + 2 * streams));
  const auto read = [&](std::size_t operand, double lines, double across) {
    const std::int32_t type = rule.operands[operand].type;
    if (type == no_type) return 0.0;
    // What is multiplied in 16 bits is stored so.
    const std::int64_t bits = rule.arithmetic == Arithmetic::f16
                                  ? std::min<std::int64_t>(16, types[type].element_bits)
                                  : types[type].element_bits;
    return lines * sizes.contracted * sizes.groups * static_cast<double>(bits) / 8 *
           std::max(1.0, across / side);
  };
  return read(0, sizes.rows, sizes.columns) + read(1, sizes.columns, sizes.rows);
}

double touched(const std::vector<double>& bytes, std::size_t k) {
  return k < bytes.size() ? bytes[k] : -1;
}

}  // namespace

double aligned_share(double count, double bits, double worst) {
  const double bytes = count * bits / 8;
  if (bytes < 1 || bytes != std::floor(bytes)) return 1;
  double steps = 0;
  for (double aligned = 16; std::fmod(bytes, aligned) != 0; aligned /= 2) ++steps;
  return std::pow(worst, steps / 3);
}

AxisMask partial_axes(const Rule& rule, const FactorAxes& axes) {
  AxisMask set = 0;
  for (std::size_t f = 0; f < axes.size(); ++f) {
    if (rule.factors[f].kind == FactorKind::reduction) set |= mask(axes[f]);
  }
  return set;
}

bool adds_one_of_each_device(const Rule& rule, const FactorAxes& axes, const Mesh& mesh) {
  if (rule.work != Work::reduce) return false;
  bool adds = false;
  for (std::size_t f = 0; f < axes.size(); ++f) {
    if (rule.factors[f].kind != FactorKind::reduction || rule.factors[f].size == 1) continue;
    if (num_shards(axes[f], mesh) != rule.factors[f].size) return false;
    adds = true;
  }
  return adds;
}

Compute compute(const Rule& rule, const FactorAxes& axes, const KernelPart& part,
                const std::vector<TensorType>& types, const Mesh& mesh,
                const Cluster& cluster) {
  if (adds_one_of_each_device(rule, axes, mesh)) return {};
  const bool is_repeat = part.repeat.is_there() && part.writes[0];
  // Where a device has one, it is a part of those that read it.
  if (is_repeat && !joins_some(rule, part.repeat, axes, mesh)) return {};
  const Chip& chip = cluster.chip;
  Compute result;
  const double operations = rule.flops * cluster.compiler.functions.operations(rule.function);
  result.flops = operations;
  for (std::size_t f = 0; f < axes.size(); ++f) {
    result.flops *= largest_share(rule.factors[f], blocks(axes[f], mesh));
  }
  if (cluster.compiler.fusion.multiplied_zeros) result.flops *= rule.dilation;
  const double unpadded = result.flops;
  if (operations > 0) result.bytes = rule.moved_again * unpadded / operations;
  const Fusion& fusion = cluster.compiler.fusion;
  const bool has_tiles =
      rule.work == Work::matmul && rule.operands.size() == 2 && rule.results.size() == 1;
  const ProductSizes sizes = has_tiles ? product_sizes(rule, axes, mesh) : ProductSizes{};
  // A convolution pads what it reads.
  const bool may_be_unaligned = has_tiles && sizes.window == 1;
  const auto share_of = [&](const RuleTensor& tensor) {
    return may_be_unaligned
               ? share_of_rows(rule, tensor, axes, types, mesh, fusion.unaligned_rows)
               : 1.0;
  };
  double busy = unpadded / chip.vector_flops;
  if (rule.work == Work::elementwise) busy *= part.times;
  if (rule.work == Work::matmul || is_kernel(rule.work)) {
    double rate = chip.matmul_flops[static_cast<std::size_t>(rule.arithmetic)] *
                  matmul_share(rule.work, chip);
    double padded = result.flops;
    if (has_tiles) {
      padded *= matmul_padding(sizes, cluster);
      rate *= std::min(
          {share_of(rule.operands[0]), share_of(rule.operands[1]), share_of(rule.results[0])});
      busy /= vectors_share(sizes, cluster.compiler);
    }
    result.multiplying_seconds = padded / rate;
    // Products that hardly fill a tile, as of a depthwise convolution, run as multiply and
    // add.
    if (padded / rate < busy) {
      result.flops = padded;
      busy = padded / rate;
    }
    if (operations > 0) {
      const double share = unpadded / operations;
      busy += share *
              (rule.exponentials / chip.exponentials + rule.vector_flops / chip.vector_flops);
    }
  }
  double waited = unaligned_bytes(rule, axes, types, mesh, fusion.unaligned_rows);
  const auto add = [&](const RuleTensor& tensor, std::size_t number, double touched,
                       std::int32_t times) {
    if (times <= 0 || tensor.type == no_type) return;
    const double once =
        part.padding_of(number) *
        (touched >= 0 ? local_part(touched, touched_as(rule, tensor), axes, mesh)
                      : local_bytes(tensor, axes, types, mesh));
    const double bytes = once * (once <= fusion.kept_bytes ? 1 : times);
    result.bytes += bytes;
    waited += bytes * (1 / share_of(tensor) - 1);
  };
  for (std::size_t k = 0; k < rule.operands.size(); ++k) {
    add(rule.operands[k], k, touched(rule.operand_bytes, k), part.reads[k]);
  }
  for (std::size_t k = 0; k < rule.results.size(); ++k) {
    add(rule.results[k], rule.operands.size() + k, touched(rule.result_bytes, k),
        part.writes[k]);
  }
  // What it changes in place begins as a constant, and is written before.
  if (rule.work == Work::indexed && rule.in_place_operand >= 0 &&
      part.reads[rule.in_place_operand] == 0) {
    result.bytes += local_bytes(rule.results[0], axes, types, mesh);
  }
  const bool is_product_of_matrices =
      has_tiles && sizes.window == 1 && !is_vector_product(rule);
  const double rate_of_memory = chip.memory_bandwidth * chip.memory_efficiency;
  if (is_product_of_matrices) {
    // Matrix units wait for it.
    const double read = tiled_bytes(rule, axes, sizes, part, types, fusion.matmul_tile_bytes);
    busy = std::max(busy, read / rate_of_memory);
  }
  result.packed_bytes = waited;
  if (fusion.transposed_bytes > 0 && transposes_tiles(rule, part)) {
    const double taken =
        fusion.transposed_bytes * transposed_elements(rule, axes, part, types, mesh);
    result.packed_bytes = std::max(0.0, taken - result.bytes);
  } else if (fusion.packed_bytes > 0 && part.packs) {
    result.packed_bytes +=
        fusion.packed_bytes * packed_elements(rule, unpadded, axes, part, types, mesh);
  }
  if (is_product_of_matrices && fusion.batch_operand_bytes > 0 && has_batch(rule)) {
    result.packed_bytes +=
        fusion.batch_operand_bytes * operand_elements(rule, axes, part, types, mesh);
  }
  if (has_indices(rule) && fusion.index_bytes > 0) {
    result.packed_bytes +=
        fusion.index_bytes * local_elements(rule.operands[indices_operand], indices_operand,
                                            axes, part, types, mesh);
  }
  if (fusion.transform_bytes > 0 && !rule.transforms.empty()) {
    const double points =
        std::max(local_elements(rule.operands[0], 0, axes, part, types, mesh),
                 local_elements(rule.results[0], 1, axes, part, types, mesh));
    const double taken = transform_bytes(rule, points, cluster);
    result.packed_bytes = std::max(0.0, taken - result.bytes);
  }
  if (is_repeat) {
    const double elements =
        local_elements(rule.results[0], rule.operands.size(), axes, part, types, mesh);
    const double taken = fusion.repeated_bytes * part.repeat.tiles * elements;
    result.packed_bytes = std::max(0.0, taken - result.bytes);
  }
  const double memory = (result.bytes + result.packed_bytes) / rate_of_memory;
  result.seconds = std::max(busy, memory);
  if (part.intensity > 0) {
    const bool computes = part.intensity * rate_of_memory > chip.vector_flops;
    result.seconds = computes ? busy : memory;
  }
  if (!part.fused.empty() && busy > memory) {
    result.seconds -=
        std::min(busy - memory, fused_seconds(rule, axes, part, types, mesh, cluster));
  }
  if (makes_result(rule, part)) {
    const double parts = is_in_parts(rule, axes, mesh, fusion) ? 1 : 0;
    const double launches = (part.is_launched ? rule.kernels : 0) + parts;
    result.seconds += launches * chip.launch_seconds;
  }
  const bool is_product = rule.work == Work::matmul || is_kernel(rule.work);
  result.seconds *= is_product ? cluster.corrections.products : cluster.corrections.others;
  return result;
}

}  // namespace autoshard
