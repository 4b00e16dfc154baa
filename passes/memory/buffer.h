/// What takes memory, and when: the records that analyses of memory hand on.
#pragma once

#include <compare>
#include <cstdint>

namespace autoshard {

/// The program points at which something lives: [first, last). Point i is while the i-th op
/// runs.
struct LiveRange {
  std::int32_t first = 0, last = 0;

  auto operator<=>(const LiveRange&) const = default;

  /// Nothing lives at no point.
  bool is_empty() const { return first >= last; }
};

/// One stretch of program points in which a value takes memory, with its bytes before any cut.
struct Buffer {
  std::int32_t value;
  LiveRange live;
  double bytes;
  /// Index of the buffer whose memory this one uses: that of a result which is not made yet;
  /// -1: it has its own. Of those that use one result's memory no two live at once.
  std::int32_t reused = -1;
};

/// Copies that are made where a collective gathers a result that takes a donated argument's
/// buffer, each as large as that.
struct GatheredResult {
  /// The argument is read from a copy.
  LiveRange argument;
  /// The result is copied into the argument's buffer in the end.
  LiveRange result;
};

/// What a loop reads in every trip as it was before: where the plan cuts it less inside, it is
/// gathered once, into a copy that is there as long as the loop.
struct PassedOn {
  /// Before the loop, and in it.
  std::int32_t source, target;
  LiveRange loop;
};

/// Bytes that live for a while besides the buffers: a gathered copy of a value.
struct Transient {
  LiveRange live;
  double bytes;
};

}  // namespace autoshard
