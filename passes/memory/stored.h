/// What takes memory, and when: the records that analyses of memory hand on.
#pragma once

#include <cstdint>

namespace autoshard {

/// Live moments of a stored value: [first, last).
struct Lifetime {
  std::int32_t first = 0, last = 0;
};

/// One stretch of moments in which a value takes memory, with its bytes before any cut.
struct Stored {
  std::int32_t value;
  Lifetime lifetime;
  double bytes;
  /// Which of all that is stored lends it its storage: a result that is not made yet; -1: it
  /// has its own. Of what one result lends its storage to, no two live at once.
  std::int32_t lender = -1;
};

/// Bytes that live for a while beside the values: a gathered copy of one. In moments, not ops.
struct Transient {
  Lifetime live;
  double bytes;
};

}  // namespace autoshard
