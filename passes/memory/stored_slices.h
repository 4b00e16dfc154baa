/// Which slices that loops take are kernels of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/program_index.h"

namespace autoshard {

/// Dynamic slices in loops that are stored, with `Fusion::stored_slices`: those that an op of
/// more elements reads which is no product of matrices, maybe as views of them.
std::vector<std::int32_t> stored_slices_of(const ProgramIndex& index);

}  // namespace autoshard
