/// The inner loops of the solver: min-plus products of small dense tables.
///
/// Each is compiled for several instruction sets where the compiler can choose one at load
/// time. All expect finite or +inf inputs, never NaN, and buffers that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace autoshard::solver {

/// sum[i] += more[i].
void increase(double* sum, const double* more, std::size_t size);

/// out[c] = min_r in[r] + table[r * cols + c].
void min_plus_vector(const double* in, const double* table, int rows, int cols, double* out);

/// As above, and from[c] = the smallest r that attains it.
void min_plus_vector_argmin(const double* in, const double* table, int rows, int cols,
                            double* out, int* from);

/// out[a * cols + c] = min_b left[a * inner + b] + right[b * cols + c].
void min_plus_matrix(const double* left, const double* right, int rows, int inner, int cols,
                     double* out);

/// out[s * rows + t] = max_c table(s, c) - table(t, c), over the columns where table(t, c) is
/// finite; 0 if there are none. `transposed`: the table by columns.
void largest_differences(const double* transposed, int rows, int cols, double* out);

/// The sum of dense tables over the same digits, minimised over the last digit, which has
/// `cols` values that follow each other in all of them.
///
///   least[row] = min_c sum_t first[t][sum_k digit_k * stride[k * tables + t] + c]
///
/// Rows count the digits before the last, of which there are `sizes[k]`, the later ones
/// faster. A table that does not depend on a digit has the stride 0 there; every digit has a
/// table that depends on it.
struct SummedTables {
  std::vector<const double*> first;
  std::vector<int> sizes;
  std::vector<std::int64_t> stride;
};
void min_of_sums(const SummedTables& tables, int cols, double* least);

/// Index of the smallest entry, the first one if several are equal. Expects size >= 1.
int argmin(const double* values, int size);

double minimum(const double* values, int size);

}  // namespace autoshard::solver
