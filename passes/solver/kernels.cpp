#include "solver/kernels.h"

#include <algorithm>
#include <limits>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define AUTOSHARD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AUTOSHARD_CLONES
#endif

namespace autoshard::solver {

AUTOSHARD_CLONES
void min_plus_vector(const double* __restrict in, const double* __restrict table, int rows,
                     int cols, double* __restrict out) {
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

AUTOSHARD_CLONES
void min_of_sums(const SummedTables& tables, int cols, double* least, std::uint16_t* best) {
  const std::size_t count = tables.first.size(), digits = tables.sizes.size();
  std::vector<const double*> at = tables.first;
  std::vector<int> digit(digits, 0);
  std::vector<double> sums(cols);
  double* __restrict sum = sums.data();
  for (std::size_t row = 0;; ++row) {
    const double* __restrict start = at[0];
    for (int c = 0; c < cols; ++c) sum[c] = start[c];
    for (std::size_t t = 1; t < count; ++t) {
      const double* __restrict added = at[t];
      for (int c = 0; c < cols; ++c) sum[c] += added[c];
    }
    // Four at a time: each comparison waits for the one before.
    double four[4] = {sum[0], sum[0], sum[0], sum[0]};
    int c = 0;
    for (; c + 4 <= cols; c += 4) {
      for (int i = 0; i < 4; ++i) four[i] = sum[c + i] < four[i] ? sum[c + i] : four[i];
    }
    for (; c < cols; ++c) four[0] = sum[c] < four[0] ? sum[c] : four[0];
    const double smallest = std::min(std::min(four[0], four[1]), std::min(four[2], four[3]));
    int found = 0;
    while (sum[found] != smallest) ++found;
    least[row] = smallest;
    best[row] = static_cast<std::uint16_t>(found);

    std::size_t k = digits;
    for (; k-- > 0;) {
      const std::int64_t* stride = tables.stride.data() + k * count;
      if (++digit[k] < tables.sizes[k]) {
        for (std::size_t t = 0; t < count; ++t) at[t] += stride[t];
        break;
      }
      digit[k] = 0;
      const int back = tables.sizes[k] - 1;
      for (std::size_t t = 0; t < count; ++t) at[t] -= back * stride[t];
    }
    if (k == static_cast<std::size_t>(-1)) return;
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
