/// The most memory that a plan takes of a device, and when.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/buffer.h"
#include "model/mesh.h"
#include "model/sharding.h"

namespace autoshard {

/// The worst program point of a plan.
struct Peak {
  double bytes = 0;
  std::int32_t point = 0;
  /// Buffers that live then, by value, largest first, with their bytes on one device.
  std::vector<std::pair<std::int32_t, double>> live;
};

/// Bytes of a device that each buffer takes when value v is cut into `num_shards[v]` blocks;
/// of what reuses another buffer, those that do not fit in it.
///
/// Example: a buffer of 8 bytes cut into 2, and one of 8 that reuses it and is not cut: 4, 4.
std::vector<double> taken_bytes(const std::vector<Buffer>& buffers,
                                const std::vector<double>& num_shards);

/// Peak memory of a device when value v is cut into `num_shards[v]` blocks:
///
///   max over program points p of
///     sum of taken_bytes of the buffers that live at p + sum of the transients that do
///
/// `num_points` is the length of the program.
Peak peak(const std::vector<Buffer>& buffers, std::int32_t num_points,
          const std::vector<double>& num_shards, const std::vector<Transient>& transients);

/// Into how many blocks every value is cut.
std::vector<double> shards_of(const std::vector<Sharding>& shardings, const Mesh& mesh);

}  // namespace autoshard
