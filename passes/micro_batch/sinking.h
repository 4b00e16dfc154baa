/// Moves ops into the loop over micro-batches of which only slices are read.
#pragma once

#include <cstdint>
#include <vector>

#include "micro_batch/classifier.h"

namespace autoshard::micro_batch {

/// A value known before the loop, of which every reader takes the same part, becomes a slice
/// itself, and so on with what it is made of. The bits of a dropout mask are then made for one
/// micro-batch at a time, from a slice of the iota that they start from.
///
/// Example: iota (8x4) -> compare -> select with a slice of 8x4: the compare becomes a slice,
/// and of the iota, which is free, the select's micro-batch reads its part.
///
/// Expects that every op of `block` has been read. `block`: of `main`, or inside of the loop.
void sink(Classifier& classifier, const importer::Block& block);

}  // namespace autoshard::micro_batch
