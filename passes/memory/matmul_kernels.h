/// What the kernels of matmuls compute besides products.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/fused_program.h"
#include "model/fused_work.h"

namespace autoshard {

/// By op that is a matmul: the others in its kernel. Empty for all other ops.
///
/// @param reads By op and operand: how many kernels read it there (`ProgramMemory::reads`).
/// @param writes By op and result: it is stored.
std::vector<std::vector<FusedWork>> work_in_matmuls(
    const FusedProgram& fused, const std::vector<std::vector<std::int32_t>>& reads,
    const std::vector<std::vector<bool>>& writes);

}  // namespace autoshard
