/// The most memory that a plan takes of a device, and when.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/stored.h"
#include "model/mesh.h"
#include "model/sharding.h"

namespace autoshard {

/// The worst moment of a plan.
struct Peak {
  double bytes = 0;
  std::int32_t moment = 0;
  /// Stored values that live then, largest first, with their bytes on one device.
  std::vector<std::pair<std::int32_t, double>> live;
};

/// Bytes of a device that each of `stored` takes when value v is cut into `num_shards[v]`
/// blocks; of what is lent its storage, those that do not fit in it.
std::vector<double> taken_bytes(const std::vector<Stored>& stored,
                                const std::vector<double>& num_shards);

/// Peak memory of a device when value v is cut into `num_shards[v]` blocks.
/// `num_moments`: of the program; transients live beside what is stored.
Peak peak(const std::vector<Stored>& stored, std::int32_t num_moments,
          const std::vector<double>& num_shards, const std::vector<Transient>& transients);

/// Into how many blocks every value is cut.
std::vector<double> shards_of(const std::vector<Sharding>& shardings, const Mesh& mesh);

}  // namespace autoshard
