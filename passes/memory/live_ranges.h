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
  /// Results that loops stack while they read the donated arguments that these replace: they
  /// are copied over the arguments when the program ends.
  std::vector<std::int32_t> copied_results = {};
};

/// Finds them. A value lives from its root to the last root that reads it, arguments and
/// results from end to end, what loops carry from trip to trip; what is written over in place
/// ends when the result begins (memory/in_place.h). docs/design/memory.md has the table.
LiveRanges live_ranges_of(const FusedProgram& fused, const OpOrder& order,
                          const Buffers& rules);

/// By alias of a result that takes the buffer of a donated argument: what of it lies beside
/// that buffer if a collective gathers the result. Results whose arguments nobody reads are
/// not there.
///
/// Example: w is read at points 2 and 5, v = w - g runs at 5 and takes the buffer of w, the
/// program has 9 points: {v, {[2, 6), [6, 9)}}.
std::map<std::int32_t, GatheredResult> gathered_results(const FusedProgram& fused,
                                                        const OpOrder& order);

}  // namespace autoshard
