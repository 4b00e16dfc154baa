/// Values that leave the program, and whose memory they take.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "memory/aliases.h"
#include "memory/program_index.h"

namespace autoshard {

struct LiveOuts {
  /// By value that is a result: the value of the argument whose buffer it takes, or
  /// `no_value`.
  std::map<std::int32_t, std::int32_t> argument;
  /// Further copies of values that are returned twice, or returned as they came.
  std::vector<std::int32_t> copies;
};

/// Finds them. A result that becomes an argument of the next call takes its buffer if the
/// argument is donated; arguments that are donated for no result in particular are taken by
/// the first results of equal type.
LiveOuts live_outs_of(const ProgramIndex& index, const Aliases& aliases);

}  // namespace autoshard
