#include "model/products.h"

#include <algorithm>
#include <cstddef>

namespace autoshard {

bool has(const RuleTensor& tensor, std::int32_t factor) {
  return std::any_of(tensor.dims.begin(), tensor.dims.end(), [&](const auto& factors) {
    return std::find(factors.begin(), factors.end(), factor) != factors.end();
  });
}

Role role_of(const Rule& rule, std::int32_t factor) {
  if (!has(rule.results[0], factor)) return Role::contracted;
  const bool is_batch =
      std::all_of(rule.operands.begin(), rule.operands.end(),
                  [&](const RuleTensor& operand) { return has(operand, factor); });
  return is_batch ? Role::batch : Role::kept;
}

bool has_batch(const Rule& rule) {
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<std::int32_t>(f);
    if (rule.factors[f].size > 1 && role_of(rule, factor) == Role::batch) return true;
  }
  return false;
}

std::int64_t contracted_size(const Rule& rule) {
  std::int64_t size = 1;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    if (role_of(rule, static_cast<std::int32_t>(f)) == Role::contracted) {
      size *= rule.factors[f].size;
    }
  }
  return size;
}

bool is_vector_product(const Rule& rule) {
  if (rule.work != Work::matmul || rule.operands.size() != 2 || rule.results.size() != 1) {
    return false;
  }
  bool has_one_row = false, has_one_column = false;
  std::int64_t rows = 1, columns = 1;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<std::int32_t>(f);
    const std::int64_t size = rule.factors[f].size;
    const bool left = has(rule.operands[0], factor), right = has(rule.operands[1], factor),
               result = has(rule.results[0], factor);
    const bool is_window = right && !left && !result && size > 1;
    if (is_window) return false;
    if (left && result && !right) {
      rows *= size;
      has_one_row |= size == 1;
    }
    if (right && result && !left) {
      columns *= size;
      has_one_column |= size == 1;
    }
  }
  return (has_one_row && rows == 1) || (has_one_column && columns == 1);
}

bool is_split(const Rule& rule, std::int64_t split_products) {
  double made = 1, contracted = 1;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const bool is_made = has(rule.results[0], static_cast<std::int32_t>(f));
    (is_made ? made : contracted) *= static_cast<double>(rule.factors[f].size);
  }
  return made < static_cast<double>(split_products) && contracted * contracted > made;
}

std::int64_t parts_of_product(double made, double contracted, std::int64_t split_products) {
  constexpr double least_contracted = 128;
  constexpr std::int64_t most_parts = 128;
  const auto most = static_cast<double>(split_products);
  if (made >= most || contracted * contracted <= made) return 1;
  const auto may_be = [&](double parts) {
    const double each = contracted / parts;
    return each >= least_contracted && 16 * each * each > made &&
           (parts == 2 || parts * made <= most);
  };
  std::int64_t parts = 1;
  while (parts < most_parts && may_be(2 * static_cast<double>(parts))) parts *= 2;
  return parts;
}

bool is_summed(const Rule& rule, std::int64_t summed_products) {
  if (summed_products == 0 || !is_vector_product(rule)) return false;
  double multiplications = 1;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    if (role_of(rule, static_cast<std::int32_t>(f)) == Role::batch) continue;
    multiplications *= static_cast<double>(rule.factors[f].size);
  }
  return multiplications < static_cast<double>(summed_products);
}

}  // namespace autoshard
