/// Memory of a frozen network over compressed points, and prices on it.
#pragma once

#include <cstdint>
#include <vector>

#include "solver/network.h"

namespace autoshard::solver {

/// Bytes are doubles: `check` refuses limits and sizes above 2^53, so that all are exact.
///
/// A node has pieces: spans of points [first, last) over which its options take `bytes` above
/// what its smallest option takes. `room[t]` is what all pieces together may take at point t.
struct MemoryModel {
  struct Piece {
    std::int32_t first, last;
    std::int64_t bytes;  ///< where the bytes of its options begin
  };
  std::vector<std::int32_t> piece_offset;  ///< per node, size nodes + 1
  std::vector<Piece> pieces;
  std::vector<double> bytes;
  std::vector<double> room;
  /// Per point: the nodes with a piece there (CSR), to find what competes for it.
  std::vector<std::int32_t> live_offset;
  std::vector<std::int32_t> live;

  int points() const { return static_cast<int>(room.size()); }

  /// Bytes taken at every point.
  std::vector<double> profile(const std::vector<int>& choice) const;

  /// prices summed up: result[t] = sum of prices before t; size points + 1.
  static void accumulate(const std::vector<double>& price, std::vector<double>& sums);

  /// out[s] += cost of the memory of option s of `node` at prices with these sums.
  void add_priced(int node, int options, const std::vector<double>& sums, double* out) const;
};

MemoryModel memory_of(const Network& network, const Reduction& reduction);

}  // namespace autoshard::solver
