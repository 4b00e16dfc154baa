/// Who reads a value, and which values must be in memory whoever reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/aliases.h"
#include "memory/lists.h"
#include "memory/live_outs.h"
#include "memory/program_index.h"

namespace autoshard {

/// Op `op` reads a value as operand number `operand`.
struct Reader {
  std::int32_t op;
  std::int32_t operand;
};

struct Uses {
  /// By op: nobody reads what it makes, so that compilers drop it.
  std::vector<bool> is_dead;
  /// By value that is its own alias: its readers in program order, bitcasts and dead ops
  /// aside. Free values have none.
  Lists<Reader> readers;
  /// By value: it leaves the program, or it enters or leaves a loop or a branch.
  std::vector<bool> must_store;
};

/// `copies`: results that are stored whoever reads them.
Uses uses_of(const ProgramIndex& index, const Aliases& aliases, const LiveOuts& live_outs,
             const std::vector<std::int32_t>& copies);

}  // namespace autoshard
