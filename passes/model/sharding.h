/// How one tensor is split: for each dim the mesh axes that cut it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/mesh.h"

namespace autoshard {

/// Ordered mesh axes, major first. Two axes of sizes 2 and 4 cut a dim into 8 blocks; the
/// first one says which half, the second which quarter of that half.
using AxisList = std::vector<AxisIndex>;

/// One axis list per tensor dim; axes in no list replicate. No axis appears twice.
struct Sharding {
  std::vector<AxisList> dims;

  bool operator==(const Sharding&) const = default;
};

/// The axes that cut each factor of an op's rule.
using FactorAxes = std::vector<AxisList>;

/// A set of mesh axes, one bit an axis.
using AxisMask = std::uint32_t;

/// Product of the axis sizes: into how many blocks `axes` cuts.
std::int64_t num_shards(const AxisList& axes, const Mesh& mesh);

/// Product over all dims: the tensor's bytes per device are its bytes divided by this.
std::int64_t num_shards(const Sharding& sharding, const Mesh& mesh);

/// Whether every dim of `to` begins with the axes that cut it in `from`: going there moves
/// nothing.
bool only_cuts(const Sharding& from, const Sharding& to);

/// Whether partial sums over `partial`, cut as `from`, are scattered while they are reduced to
/// `to`: `to` only cuts further, and the axes of the sum cut one dim of it at most. XLA
/// reduces in place what would be scattered over two dims.
bool is_scattered(const Sharding& from, const Sharding& to, AxisMask partial);

/// A short string that is equal exactly for equal shardings of one rank.
std::string key(const Sharding& sharding);

}  // namespace autoshard
