#include "memory/fused_program.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "memory/matmul_orders.h"
#include "memory/repeats.h"
#include "memory/row_reductions.h"
#include "memory/stack_padding.h"
#include "memory/stored_slices.h"

namespace autoshard {
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
