/// Matmuls that schedulers run late.
#pragma once

#include <vector>

#include "model/program.h"

namespace autoshard {

/// Matmuls that no other matmul but one for a gradient waits for, such as what is recomputed
/// for a gradient alone: schedulers run them when everything else has run.
///
/// Returns one flag an op. Example: of x a b c, from left to right, x a does not wait, for the
/// product with b is computed from it and that with c from that; the other two wait.
std::vector<bool> matmuls_that_wait(const Program& program);

}  // namespace autoshard
