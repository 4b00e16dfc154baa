#include "solver/kernels.h"

#include <algorithm>
#include <limits>
#include <utility>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define AUTOSHARD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AUTOSHARD_CLONES
#endif

namespace autoshard::solver {

namespace {

/// `min_plus_vector` of so few columns that the sums stay in registers.
template <int cols>
[[gnu::always_inline]] inline void min_plus_few(const double* __restrict in,
                                                const double* __restrict table, int rows,
                                                double* __restrict out) {
  double least[cols];
  for (int c = 0; c < cols; ++c) least[c] = in[0] + table[c];
  for (int r = 1; r < rows; ++r) {
    table += cols;
    for (int c = 0; c < cols; ++c) {
      const double sum = in[r] + table[c];
      least[c] = sum < least[c] ? sum : least[c];
    }
  }
  for (int c = 0; c < cols; ++c) out[c] = least[c];
}

}  // namespace

AUTOSHARD_CLONES
void increase(double* __restrict sum, const double* __restrict more, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) sum[i] += more[i];
}

AUTOSHARD_CLONES
void min_plus_vector(const double* __restrict in, const double* __restrict table, int rows,
                     int cols, double* __restrict out) {
  switch (cols) {
    case 1:
      return min_plus_few<1>(in, table, rows, out);
    case 2:
      return min_plus_few<2>(in, table, rows, out);
    case 3:
      return min_plus_few<3>(in, table, rows, out);
    case 4:
      return min_plus_few<4>(in, table, rows, out);
    case 5:
      return min_plus_few<5>(in, table, rows, out);
    case 6:
      return min_plus_few<6>(in, table, rows, out);
    case 7:
      return min_plus_few<7>(in, table, rows, out);
    case 8:
      return min_plus_few<8>(in, table, rows, out);
    default:
      break;
  }
  const double first = in[0];
  for (int c = 0; c < cols; ++c) out[c] = first + table[c];
  for (int r = 1; r < rows; ++r) {
    const double value = in[r];
    const double* __restrict row = table + static_cast<std::size_t>(r) * cols;
    for (int c = 0; c < cols; ++c) {
      const double sum = value + row[c];
      out[c] = sum < out[c] ? sum : out[c];
    }
  }
}

AUTOSHARD_CLONES
void min_plus_vector_argmin(const double* __restrict in, const double* __restrict table,
                            int rows, int cols, double* __restrict out, int* __restrict from) {
  const double first = in[0];
  for (int c = 0; c < cols; ++c) {
    out[c] = first + table[c];
    from[c] = 0;
  }
  for (int r = 1; r < rows; ++r) {
    const double value = in[r];
    const double* __restrict row = table + static_cast<std::size_t>(r) * cols;
    for (int c = 0; c < cols; ++c) {
      const double sum = value + row[c];
      from[c] = sum < out[c] ? r : from[c];
      out[c] = sum < out[c] ? sum : out[c];
    }
  }
}

AUTOSHARD_CLONES
void min_plus_matrix(const double* __restrict left, const double* __restrict right, int rows,
                     int inner, int cols, double* __restrict out) {
  for (int a = 0; a < rows; ++a) {
    const double* __restrict in = left + static_cast<std::size_t>(a) * inner;
    double* __restrict row_out = out + static_cast<std::size_t>(a) * cols;
    for (int c = 0; c < cols; ++c) row_out[c] = in[0] + right[c];
    for (int b = 1; b < inner; ++b) {
      const double value = in[b];
      if (value == std::numeric_limits<double>::infinity()) continue;
      const double* __restrict row = right + static_cast<std::size_t>(b) * cols;
      for (int c = 0; c < cols; ++c) {
        const double sum = value + row[c];
        row_out[c] = sum < row_out[c] ? sum : row_out[c];
      }
    }
  }
}

AUTOSHARD_CLONES
void largest_differences(const double* __restrict transposed, int rows, int cols,
                         double* __restrict out) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::size_t size = static_cast<std::size_t>(rows) * rows;
  for (std::size_t i = 0; i < size; ++i) out[i] = -infinity;
  for (int c = 0; c < cols; ++c) {
    const double* __restrict column = transposed + static_cast<std::size_t>(c) * rows;
    for (int s = 0; s < rows; ++s) {
      const double of_s = column[s];
      double* __restrict row = out + static_cast<std::size_t>(s) * rows;
      for (int t = 0; t < rows; ++t) {
        // +inf less +inf is no number and never larger.
        const double difference = column[t] == infinity ? -infinity : of_s - column[t];
        row[t] = difference > row[t] ? difference : row[t];
      }
    }
  }
  for (std::size_t i = 0; i < size; ++i) out[i] = out[i] == -infinity ? 0 : out[i];
}

namespace {

/// `sum` may be `one`.
AUTOSHARD_CLONES
void add_to(double* sum, const double* one, const double* other, std::size_t size) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < size; ++i) sum[i] = one[i] + other[i];
}

/// Some of the digits, whose values together are the innermost loop.
struct Block {
  std::vector<bool> has;
  std::size_t width = 1;
};

Block block_of(const SummedTables& tables, std::vector<bool> digits) {
  Block block{std::move(digits)};
  for (std::size_t k = 0; k < tables.sizes.size(); ++k) {
    if (block.has[k]) block.width *= tables.sizes[k];
  }
  return block;
}

/// By value of a block, the sum of its digits times `stride(digit)`.
template <typename Stride>
std::vector<std::int64_t> offsets(const SummedTables& tables, const Block& block,
                                  const Stride& stride) {
  std::vector<std::int64_t> result = {0};
  for (std::size_t k = 0; k < tables.sizes.size(); ++k) {
    if (!block.has[k]) continue;
    std::vector<std::int64_t> longer;
    longer.reserve(result.size() * tables.sizes[k]);
    for (std::int64_t offset : result) {
      for (int d = 0; d < tables.sizes[k]; ++d) longer.push_back(offset + d * stride(k));
    }
    result = std::move(longer);
  }
  return result;
}

/// Roughly the instructions that `block` takes: loops that begin, and tables that are copied
/// or added up.
double work_of(const SummedTables& tables, const Block& block, int cols) {
  constexpr double of_loop = 6, lanes = 4, of_copy = 3;
  const std::size_t count = tables.first.size();
  double rows = 1, copied = 0;
  for (int size : tables.sizes) rows *= size;
  int crossed = 0;
  for (std::size_t t = 0; t < count; ++t) {
    bool is_crossed = false;
    double size = static_cast<double>(block.width) * cols;
    for (std::size_t k = 0; k < tables.sizes.size(); ++k) {
      if (tables.stride[k * count + t] == 0) continue;
      if (block.has[k]) {
        is_crossed = true;
      } else {
        size *= tables.sizes[k];
      }
    }
    if (!is_crossed) continue;
    copied += size;
    ++crossed;
  }
  return rows * cols * (of_loop / static_cast<double>(block.width) + crossed / lanes) +
         of_copy * copied;
}

/// One digit, or all that one table alone depends on.
Block best_block(const SummedTables& tables, int cols) {
  const std::size_t count = tables.first.size(), digits = tables.sizes.size();
  std::vector<std::vector<bool>> choices;
  for (std::size_t k = 0; k < digits; ++k) {
    choices.emplace_back(digits, false);
    choices.back()[k] = true;
  }
  for (std::size_t t = 0; t < count; ++t) {
    std::vector<bool>& alone = choices.emplace_back(digits, false);
    for (std::size_t k = 0; k < digits; ++k) {
      bool is_alone = tables.stride[k * count + t] != 0;
      for (std::size_t u = 0; u < count; ++u) {
        is_alone = is_alone && (u == t || tables.stride[k * count + u] == 0);
      }
      alone[k] = is_alone;
    }
  }
  Block best;
  double least = std::numeric_limits<double>::infinity();
  for (std::vector<bool>& choice : choices) {
    if (std::find(choice.begin(), choice.end(), true) == choice.end()) continue;
    Block block = block_of(tables, std::move(choice));
    const double work = work_of(tables, block, cols);
    if (work < least) {
      least = work;
      best = std::move(block);
    }
  }
  return best;
}

/// A table on its way through the outer digits, those that are not in the block.
struct Walked {
  const double* at;
  /// By outer digit.
  std::vector<std::int64_t> stride;
  /// The last outer digit that it depends on, counted from 1; 0: none.
  std::size_t level = 0;
  /// Depends on the block. Then it is `made`: values of the block follow each other.
  bool is_crossed = false;
  std::vector<double> made;
};

Walked walked(const SummedTables& tables, std::size_t t, const Block& block, int cols) {
  const std::size_t count = tables.first.size();
  Walked table{tables.first[t], {}, 0, false, {}};
  std::vector<int> sizes;
  for (std::size_t k = 0; k < tables.sizes.size(); ++k) {
    const std::int64_t stride = tables.stride[k * count + t];
    if (block.has[k]) {
      table.is_crossed = table.is_crossed || stride != 0;
      continue;
    }
    table.stride.push_back(stride);
    sizes.push_back(tables.sizes[k]);
    if (stride != 0) table.level = sizes.size();
  }
  if (!table.is_crossed) return table;
  const std::vector<std::int64_t> given = table.stride;
  std::int64_t copies = 1;
  for (std::size_t k = sizes.size(); k-- > 0;) {
    if (given[k] == 0) continue;
    table.stride[k] = copies * static_cast<std::int64_t>(block.width) * cols;
    copies *= sizes[k];
  }
  const std::vector<std::int64_t> inside =
      offsets(tables, block, [&](std::size_t k) { return tables.stride[k * count + t]; });
  table.made.resize(static_cast<std::size_t>(copies) * block.width * cols);
  double* to = table.made.data();
  for (std::int64_t copy = 0; copy < copies; ++copy) {
    const double* from = tables.first[t];
    std::int64_t rest = copy;
    for (std::size_t k = sizes.size(); k-- > 0;) {
      if (given[k] == 0) continue;
      from += rest % sizes[k] * given[k];
      rest /= sizes[k];
    }
    for (int c = 0; c < cols; ++c) {
      for (std::int64_t offset : inside) *to++ = from[offset + c];
    }
  }
  table.at = table.made.data();
  return table;
}

}  // namespace

// What depends on outer digits only is added up once for all values of the block.
void min_of_sums(const SummedTables& tables, int cols, double* least) {
  const std::size_t digits = tables.sizes.size();
  if (digits == 0) {
    std::vector<double> sum(cols, 0.0);
    for (const double* table : tables.first) add_to(sum.data(), sum.data(), table, cols);
    *least = minimum(sum.data(), cols);
    return;
  }
  const Block block = best_block(tables, cols);
  std::vector<std::int64_t> row_stride(digits, 1);
  for (std::size_t k = digits - 1; k-- > 0;) {
    row_stride[k] = row_stride[k + 1] * tables.sizes[k + 1];
  }
  const std::vector<std::int64_t> rows =
      offsets(tables, block, [&](std::size_t k) { return row_stride[k]; });
  std::vector<int> sizes;
  std::vector<std::int64_t> outer_stride;
  for (std::size_t k = 0; k < digits; ++k) {
    if (block.has[k]) continue;
    sizes.push_back(tables.sizes[k]);
    outer_stride.push_back(row_stride[k]);
  }
  const std::size_t levels = sizes.size() + 1, size = block.width * cols;
  std::vector<std::vector<Walked>> by_level(levels);
  for (std::size_t t = 0; t < tables.first.size(); ++t) {
    Walked table = walked(tables, t, block, cols);
    by_level[table.level].push_back(std::move(table));
  }
  // Sums of the tables up to each level, without and with the block.
  std::vector<double> plain(levels * cols, 0.0);
  std::vector<std::vector<double>> sums(levels);
  std::vector<const double*> crossed(levels, nullptr);
  const auto sum_from = [&](std::size_t first) {
    for (std::size_t level = first; level < levels; ++level) {
      double* sum = plain.data() + level * cols;
      if (level > 0) {
        std::copy_n(sum - cols, cols, sum);
        crossed[level] = crossed[level - 1];
      }
      for (const Walked& table : by_level[level]) {
        if (!table.is_crossed) {
          add_to(sum, sum, table.at, cols);
        } else if (crossed[level] == nullptr) {
          crossed[level] = table.at;
        } else {
          sums[level].resize(size);
          add_to(sums[level].data(), crossed[level], table.at, size);
          crossed[level] = sums[level].data();
        }
      }
    }
  };
  sum_from(0);
  const bool is_in_place = rows.back() + 1 == static_cast<std::int64_t>(block.width);
  std::vector<int> digit(sizes.size(), 0);
  std::vector<double> found(block.width);
  while (true) {
    min_plus_vector(plain.data() + (levels - 1) * cols, crossed[levels - 1], cols,
                    static_cast<int>(block.width), is_in_place ? least : found.data());
    for (std::size_t r = 0; !is_in_place && r < block.width; ++r) least[rows[r]] = found[r];
    std::size_t k = sizes.size();
    for (; k > 0; --k) {
      const bool wraps = ++digit[k - 1] == sizes[k - 1];
      const std::int64_t steps = wraps ? 1 - sizes[k - 1] : 1;
      for (std::size_t level = k; level < levels; ++level) {
        for (Walked& table : by_level[level]) table.at += steps * table.stride[k - 1];
      }
      least += steps * outer_stride[k - 1];
      if (!wraps) break;
      digit[k - 1] = 0;
    }
    if (k == 0) return;
    sum_from(k);
  }
}

int argmin(const double* values, int size) {
  int best = 0;
  for (int i = 1; i < size; ++i) {
    if (values[i] < values[best]) best = i;
  }
  return best;
}

double minimum(const double* values, int size) {
  double best = values[0];
  for (int i = 1; i < size; ++i) best = values[i] < best ? values[i] : best;
  return best;
}

}  // namespace autoshard::solver
