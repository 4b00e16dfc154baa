/// Values that are repeated: broadcast, and joined into another dim by a view.
#pragma once

#include <vector>

#include "memory/program_index.h"
#include "memory/tile_padding.h"
#include "model/kernel_part.h"

namespace autoshard {

/// By op: of a broadcast, what a view of its result joins; nothing of other ops.
///
/// Example: 16 x 512 x 8 x 128 for 4 queries to each key, as 16 x 512 x 32 x 128: 2 in tiles
/// of 8 x 128, as those of 4 x 128 hold half as much; 1 where a batch of products reads 512 x
/// 128 of them.
std::vector<Repeat> repeats_of(const ProgramIndex& index, const TilePadding& tiles,
                               const Layout& layout);

}  // namespace autoshard
