/// Ops whose results nobody reads: compilers leave them out, and so do estimates and searches.
#pragma once

#include <cstdint>
#include <vector>

#include "model/program.h"

namespace autoshard::importer {

/// Sets `Op::is_unread` of all ops that make nothing which leaves the program, decides about a
/// loop or is waited for by a barrier, and of all that only they read. They run 0 times; what
/// flows into an unread value is no join any more.
///
/// Ops of which only libraries know what they do (`Work::other`, kernels) count as read, and
/// so does what loops carry: not all compilers leave that out.
///
/// Example: `y = exp(x); z = y + y; return x` has two unread ops.
///
/// Args:
///   program: all of it, and valid.
///   makes_scalars: by op, whether a result of rank 0 is read by an op of the module.
///   read_elsewhere: values that ops read which are none of the program.
void leave_out_unread(Program& program, const std::vector<bool>& makes_scalars,
                      const std::vector<std::int32_t>& read_elsewhere);

}  // namespace autoshard::importer
