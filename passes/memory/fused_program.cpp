#include "memory/fused_program.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "memory/matmul_orders.h"
#include "memory/repeats.h"
#include "memory/row_reductions.h"
#include "memory/stack_padding.h"
#include "model/products.h"

namespace autoshard {
namespace {

/// Whether what an op reads by a counter is read by an op of more elements that is no product
/// of matrices, maybe as a view of it.
bool is_read_by_larger(const ProgramIndex& index,
                       const std::vector<std::vector<std::int32_t>>& readers,
                       std::int32_t value) {
  const auto elements = index.elements(value);
  return std::any_of(readers[value].begin(), readers[value].end(), [&](std::int32_t op) {
    const Rule& rule = index.rule(op);
    if (rule.work == Work::matmul) return is_vector_product(rule);
    if (rule.work != Work::view && rule.work != Work::elementwise) return false;
    const std::int32_t made = index.op(op).results[0];
    if (made == no_value) return false;
    if (rule.work == Work::view && index.elements(made) == elements) {
      return is_read_by_larger(index, readers, made);
    }
    return index.elements(made) > elements;
  });
}

/// Dynamic slices in loops that are kernels of their own (`Fusion::stored_slices`).
std::vector<std::int32_t> stored_slices_of(const ProgramIndex& index) {
  std::vector<std::vector<std::int32_t>> readers(index.num_values);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    for (std::int32_t v : index.op(i).operands) {
      if (v != no_value) readers[v].push_back(i);
    }
  }
  std::vector<std::int32_t> found;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Rule& rule = index.rule(i);
    const bool is_slice = rule.work == Work::indexed && rule.in_place_operand < 0 &&
                          !has_indices(rule) && !rule.operand_bytes.empty() &&
                          rule.operand_bytes[0] >= 0;
    if (!is_slice) continue;
    const std::int32_t value = index.op(i).results[0];
    if (value == no_value || index.home(value) == no_loop) continue;
    if (is_read_by_larger(index, readers, value)) found.push_back(value);
  }
  return found;
}

}  // namespace

FusedProgram fused_program(const Program& program, const Compiler& compiler) {
  ProgramIndex index(program);
  TilePadding tiles = tile_padding_of(index, compiler.layout);
  Aliases aliases = aliases_of(index, compiler.layout, tiles.is_copy);
  if (compiler.layout.matmul_operands_in_order) {
    aliases =
        aliases_of(index, compiler.layout, written_views(index, aliases, compiler.fusion));
  }
  tiles.of_stored = stack_padding_of(index, aliases, compiler.layout);
  for (std::size_t v = 0; v < index.num_values; ++v) {
    tiles.of_stored[v] = std::max(tiles.of_stored[v], tiles.of_value[v]);
  }
  LiveOuts live_outs = live_outs_of(index, aliases);
  std::vector<Repeat> repeats(index.num_ops);
  if (compiler.fusion.repeated_bytes > 0) repeats = repeats_of(index, tiles, compiler.layout);
  Layouts layouts = layouts_of(index, aliases, compiler.layout);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (tiles.is_copy[i] || repeats[i].is_there()) {
      layouts.copies.push_back(index.op(i).results[0]);
    }
    // What swaps rows and columns computes nothing besides.
    if (tiles.is_copy[i] && compiler.fusion.transposed_bytes > 0) {
      layouts.copies.push_back(aliases.alias[index.op(i).operands[0]]);
    }
  }
  if (compiler.fusion.stored_slices) {
    for (std::int32_t value : stored_slices_of(index)) layouts.copies.push_back(value);
  }
  Uses uses = uses_of(index, aliases, live_outs, layouts.copies);
  FusionInput input{index, aliases, uses, compiler.fusion};
  input.is_row_reduction = row_reductions_of(input);
  for (const std::int32_t maximum : maxima_in_products(input)) {
    input.is_row_reduction[maximum] = true;
  }
  Fusions fusions = fuse(input);
  FusionReads reads = reads_of(index, aliases, live_outs, uses, fusions);
  return {std::move(index),   std::move(aliases), std::move(live_outs),
          std::move(layouts), std::move(uses),    std::move(fusions),
          std::move(reads),   std::move(tiles),   std::move(repeats)};
}

}  // namespace autoshard
