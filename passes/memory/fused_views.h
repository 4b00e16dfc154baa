/// Which views are part of the kernels that read them, and of what.
#pragma once

#include <cstdint>

#include "memory/fusion_rules.h"

namespace autoshard {

/// Whether an op puts zeros between elements, in a kernel of its own.
bool is_stored_pad(const FusionInput& input, std::int32_t op);

/// Whether the kernel that has a view has what its operand is computed of as well. A
/// concatenation finds what it joins in memory, but slices that tiles begin and end with; a
/// stored pad finds what it pads there.
bool takes_viewed(const FusionInput& input, std::int32_t op, std::int32_t operand);

}  // namespace autoshard
