/// From when to when every value takes memory.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "compilers/compiler.h"
#include "memory/buffer.h"
#include "memory/fused_program.h"
#include "memory/op_order.h"

namespace autoshard {

struct LiveRanges {
  /// By value: empty if it takes no memory of its own.
  std::vector<LiveRange> of_value;
  /// By result that has a buffer of its own from end to end: the point at which it is made.
  std::map<std::int32_t, std::int32_t> made;
};

/// Finds them. A value lives from its root to the last root that reads it, arguments and
/// results from end to end, what loops carry from trip to trip; what is written over in place
/// ends when the result begins (memory/in_place.h). docs/design/memory.md has the table.
LiveRanges live_ranges_of(const FusedProgram& fused, const OpOrder& order,
                          const Buffers& rules);

}  // namespace autoshard
