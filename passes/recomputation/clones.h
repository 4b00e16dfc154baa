/// Which ops run again, and before which reader, when some values are not kept.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "recomputation/block.h"

namespace autoshard::recomputation {

struct CloneRules {
  /// Results of collectives are kept even where nobody else needs them.
  bool keep_sent = false;
  /// So is what is made of parameters alone, and what is gathered of them.
  bool keep_parameters = false;
};

/// Ops that run again before one reader.
struct Batch {
  std::int32_t position = 0;  ///< of the reader
  /// Positions of the originals, in the order in which the copies run; none if the reader
  /// finds all it needs among earlier copies.
  std::vector<std::int32_t> ops = {};
  /// Values from memory that they read.
  std::vector<std::int32_t> inputs = {};
};

/// When a value that was sent to the host is read behind its gap.
struct Use {
  std::int32_t number = 0;  ///< of the value
  /// Position of the first op that reads it, or before which copies do that read it.
  std::int32_t first = 0;
  /// Point from which nobody reads it any more.
  std::int32_t end = 0;
};

/// All batches for one set of dropped values, and what they change.
struct Clones {
  std::vector<Batch> batches = {};
  double seconds = 0;  ///< of all ops that run again, less those that nobody needs any more
  /// Bytes that live more on a device from each point on, one more for behind the last.
  std::vector<double> change = {};
  /// Values that are on the host meanwhile, and read again.
  std::vector<Use> uses = {};
  /// For each value the position of the last op that still reads it where it was made; -1:
  /// none. An op that nobody needs any more, since all that reads it reads copies or is such
  /// an op itself, does not count. Told with the batches.
  std::vector<std::int32_t> last_read = {};
};

/// Values that are in memory when the op at `reader` runs, and that it or an op behind it
/// needs where they were made: those of the last op that makes any, behind `newest` and before
/// `below`, with its position; none: `newest`.
std::pair<std::int32_t, std::vector<std::int32_t>> anchors(const Block& block,
                                                           const Clones& clones,
                                                           std::int32_t reader,
                                                           std::int32_t newest,
                                                           std::int32_t below);

/// What has to run again.
///
/// Whatever a late reader needs that is not in memory is computed before it, from what is.
/// What has been computed again once and is stored is there for all readers behind. What is
/// fused is there for those that are no farther away than the shortest gap before it: else it
/// is computed anew, behind its own barrier. Compilers would store it, or what was sent for
/// it, from one reader to the other: see docs/design/memory.md.
///
///   a = f(x)   b = g(a)   ..   y = h(b)     without a and b: f and g run again before h
///
/// Args:
///   block: The ops.
///   dropped: Values that are not kept.
///   sent: Values that are on the host instead, and back when something reads them: of them
///     copies are made, never of what they are made of. Their memory is not in `change`.
///
///   with_batches: Without, what they change is told alone, in less time.
///
/// Expects numbers and positions within the block. Takes time in proportion to the ops that
/// are looked at and to the points of the program: 2.4 ms in the mean for GPT-2 XL (53,077
/// ops, 41,167 points; Intel Xeon, 2026-11-26). A thread keeps the states of the ops and
/// values of the largest block that it was asked about.
Clones clones_for(const Block& block, std::span<const Dropped> dropped,
                  std::span<const Dropped> sent, const CloneRules& rules,
                  bool with_batches = true);

}  // namespace autoshard::recomputation
