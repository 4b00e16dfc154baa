/// Which ops are computed in one kernel, and what each kernel reads from memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "memory/fusion_rules.h"
#include "memory/lists.h"

namespace autoshard {

struct Fusions {
  /// By op, in order: the ops that end the fusions which compute it; itself if its results are
  /// stored, none if nobody reads them, and for bitcasts.
  std::vector<std::vector<std::int32_t>> roots;
  /// By root: the last one of the kernel that writes both, or `no_op`.
  std::vector<std::int32_t> sibling;
  /// By root: its kernel holds whole rows of what it writes, to reduce them on the way.
  std::vector<bool> holds_rows;
  /// By op: a matmul that only gradients wait for.
  std::vector<bool> waits;
  /// By op that is stored for some who read it, and computed in the kernels of the others:
  /// those that read it from memory, in order.
  std::map<std::int32_t, std::vector<std::int32_t>> read_by;

  bool is_root(std::int32_t op) const { return !roots[op].empty() && roots[op][0] == op; }
  /// Whether a value is in memory: it is not free, and no fusion computes it on the way.
  bool is_stored(const ProgramIndex& index, std::int32_t value) const {
    return !index.is_free(value) &&
           (index.producer[value] == no_op || is_root(index.producer[value]));
  }
  /// Whether `op`, which has a value as operand, computes it though it is stored for others.
  bool is_recomputed(const ProgramIndex& index, std::int32_t value, std::int32_t op) const {
    const auto known = read_by.find(index.producer[value]);
    return known != read_by.end() &&
           !std::binary_search(known->second.begin(), known->second.end(), op);
  }
  /// Whether `op`, which has a value as operand, finds it in memory.
  bool is_read(const ProgramIndex& index, std::int32_t value, std::int32_t op) const {
    return is_stored(index, value) && !is_recomputed(index, value, op);
  }
};

/// Fuses every op into those that read it where the rules of the compiler allow it, from the
/// last op to the first.
///
/// Example: of y = exp(x), z = y + 1, s = sort(z) the roots are {z}, {z}, {s}: the sort reads
/// z from memory, y is never there.
Fusions fuse(const FusionInput& input);

/// Op `op` reads a value from memory, for itself or for the fusion that it is part of.
struct Read {
  std::int32_t value;
  std::int32_t op;
};

/// As a root: the value leaves the program or its loop.
inline constexpr std::int32_t behind_all = INT32_MAX;

struct FusionReads {
  /// By root: what its fusion reads, in the order of the ops that read it.
  Lists<Read> by_root;
  /// By value: the last root, in program order, of a fusion that reads it; `behind_all`, or
  /// `no_op`.
  std::vector<std::int32_t> last_root;
};

FusionReads reads_of(const ProgramIndex& index, const Aliases& aliases,
                     const LiveOuts& live_outs, const Uses& uses, const Fusions& fusions);

}  // namespace autoshard
