/// Which operands of matmuls are transposed by kernels of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "compilers/compiler.h"
#include "memory/aliases.h"
#include "memory/program_index.h"

namespace autoshard {

/// By op: views that kernels write, because a matmul reads what lies in their order
/// (`Layout::matmul_operands_in_order`).
///
/// Example: queries [b, s, h * d] are viewed as [b, s, h, d] and multiplied with keys for each
/// b and h: s lies between the two, so that the view is written with h in front of s.
///
/// @param aliases All views are free.
std::vector<bool> written_views(const ProgramIndex& index, const Aliases& aliases,
                                const Fusion& rules);

}  // namespace autoshard
