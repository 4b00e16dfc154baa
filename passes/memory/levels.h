/// How many ops of some kind are on the longest way to each op.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/program_index.h"

namespace autoshard {

/// By op: how many ops that count are on the longest way to it. What leaves a loop is behind
/// all that stands before it.
std::vector<std::int32_t> levels_of(const ProgramIndex& index,
                                    const std::vector<bool>& counts);

}  // namespace autoshard
