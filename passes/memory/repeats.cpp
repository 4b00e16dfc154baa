#include "memory/repeats.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace autoshard {
namespace {

bool has(const std::vector<std::int32_t>& dim, std::int32_t factor) {
  return std::find(dim.begin(), dim.end(), factor) != dim.end();
}

/// By dim of a tensor its only factor; -1: there are several or none.
std::vector<std::int32_t> factors_of(const Rule& rule, const RuleTensor& tensor) {
  std::vector<std::int32_t> found;
  for (std::size_t d = 0; d < tensor.dims.size(); ++d)
    found.push_back(only_factor(rule, tensor, d));
  return found;
}

/// What a view of the result of a broadcast joins, and the dim of what it made; nothing: it
/// joins no dim that the broadcast made with one that it read.
std::pair<Repeat, std::size_t> joined(const Rule& broadcast, const Rule& view) {
  const std::vector<std::int32_t> made = factors_of(broadcast, broadcast.results[0]);
  const std::vector<std::int32_t> read = factors_of(view, view.operands[0]);
  const auto is_made = [&](std::int32_t factor) {
    const auto& dims = broadcast.operands[0].dims;
    return std::none_of(dims.begin(), dims.end(),
                        [&](const auto& dim) { return has(dim, factor); });
  };
  for (const auto& dim : view.results[0].dims) {
    Repeat found;
    std::size_t at = 0;
    for (std::size_t d = 0; d < read.size(); ++d) {
      if (read[d] < 0 || made[d] < 0 || !has(dim, read[d])) continue;
      (is_made(made[d]) ? found.made : found.beside) = made[d];
      if (is_made(made[d])) at = d;
    }
    if (found.made >= 0 && found.beside >= 0) return {found, at};
  }
  return {};
}

bool is_view_of_one(const ProgramIndex& index, std::int32_t op) {
  const auto &operands = index.op(op).operands, &results = index.op(op).results;
  return index.rule(op).work == Work::view && operands.size() == 1 && results.size() == 1 &&
         operands[0] != no_value && results[0] != no_value && !index.is_free(operands[0]) &&
         !index.is_free(results[0]);
}

}  // namespace

std::vector<Repeat> repeats_of(const ProgramIndex& index, const TilePadding& tiles,
                               const Layout& layout) {
  std::vector<Repeat> found(index.num_ops);
  if (layout.tile_columns == 0) return found;
  for (std::int32_t view = 0; view < index.num_ops; ++view) {
    if (!is_view_of_one(index, view)) continue;
    const std::int32_t value = index.op(view).operands[0];
    const std::int32_t op = index.producer[value];
    const bool is_broadcast = op != no_op && is_view_of_one(index, op) &&
                              index.bytes[index.op(op).operands[0]] < index.bytes[value] &&
                              index.bytes[value] == index.bytes[index.op(view).results[0]];
    if (!is_broadcast) continue;
    auto [repeat, made] = joined(index.rule(op), index.rule(view));
    if (!repeat.is_there()) continue;
    const auto& sizes = index.program.types[index.program.values[value].type].dims;
    double tile = static_cast<double>(layout.tile_rows);
    if (!tiles.is_matrix[value]) {
      const std::size_t rows = made + 1 == sizes.size() ? made : sizes.size() - 2;
      while (tile / 2 >= static_cast<double>(sizes[rows]) && tile >= 2) tile /= 2;
    }
    repeat.tiles = static_cast<double>(layout.tile_rows) / tile;
    found[op] = repeat;
  }
  return found;
}

}  // namespace autoshard
