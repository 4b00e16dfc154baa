/// An assignment by the indices under which an `OptionStore` knows its parts.
#pragma once

#include <cstdint>
#include <vector>

#include "model/program.h"
#include "planning/assignment.h"
#include "planning/classes.h"
#include "planning/option_store.h"

namespace autoshard::planning {

/// What a level compares and copies in place of an `Assignment`.
struct InternedAssignment {
  /// By sharding class: the index of its sharding among those of its type.
  std::vector<std::int32_t> values;
  /// By op class: the index of its axes among the strategies of its signature.
  std::vector<std::int32_t> ops;
  bool operator==(const InternedAssignment&) const = default;
};

/// The assignment in which nothing is cut.
InternedAssignment unsplit(const Program& program, const Classes& classes, OptionStore& store);

/// Indices of an assignment; the store keeps what it does not have yet.
InternedAssignment interned(const Assignment& assignment, const Classes& classes,
                            OptionStore& store);

/// The assignment that indices stand for.
Assignment resolved(const InternedAssignment& assignment, const Classes& classes,
                    const OptionStore& store);

}  // namespace autoshard::planning
