/// What the kernels of matmuls compute besides products.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/fused_program.h"
#include "memory/op_order.h"
#include "model/kernel_part.h"

namespace autoshard {

/// Notes in the parts of matmuls what the others in their kernels do (`KernelPart::fused`),
/// those that end in other roots (`OpOrder::matmul`) as well.
void add_work_in_matmuls(const FusedProgram& fused, const OpOrder& order,
                         const Compiler& compiler, std::vector<KernelPart>& parts);

}  // namespace autoshard
