#include "memory/stored_slices.h"

#include <algorithm>

#include "model/products.h"

namespace autoshard {
namespace {

/// Whether what an op reads by a counter is read by an op of more elements that is no product
/// of matrices, maybe as a view of it.
bool is_read_by_larger(const ProgramIndex& index, std::int32_t value) {
  const double elements = index.elements(value);
  const Range<std::int32_t> readers = index.readers_of(value);
  return std::any_of(readers.begin(), readers.end(), [&](std::int32_t op) {
    const Rule& rule = index.rule(op);
    if (rule.work == Work::matmul) return is_vector_product(rule);
    if (rule.work != Work::view && rule.work != Work::elementwise) return false;
    const std::int32_t made = index.op(op).results[0];
    if (made == no_value) return false;
    if (rule.work == Work::view && index.elements(made) == elements) {
      return is_read_by_larger(index, made);
    }
    return index.elements(made) > elements;
  });
}

}  // namespace

std::vector<std::int32_t> stored_slices_of(const ProgramIndex& index) {
  std::vector<std::int32_t> found;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Rule& rule = index.rule(i);
    const bool is_slice = rule.work == Work::indexed && rule.in_place_operand < 0 &&
                          !has_indices(rule) && !rule.operand_bytes.empty() &&
                          rule.operand_bytes[0] >= 0;
    if (!is_slice) continue;
    const std::int32_t value = index.op(i).results[0];
    if (value == no_value || index.home(value) == no_loop) continue;
    if (is_read_by_larger(index, value)) found.push_back(value);
  }
  return found;
}

}  // namespace autoshard
