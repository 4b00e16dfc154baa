#include "model/sharding.h"

#include <algorithm>

namespace autoshard {

std::int64_t num_shards(const AxisList& axes, const Mesh& mesh) {
  std::int64_t product = 1;
  for (AxisIndex axis : axes) product *= mesh.axis_sizes[axis];
  return product;
}

std::int64_t num_shards(const Sharding& sharding, const Mesh& mesh) {
  std::int64_t product = 1;
  for (const AxisList& axes : sharding.dims) product *= num_shards(axes, mesh);
  return product;
}

std::int64_t devices_along(AxisMask axes, const Mesh& mesh) {
  std::int64_t devices = 1;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (axes >> axis & 1u) devices *= mesh.axis_sizes[axis];
  }
  return devices;
}

bool only_cuts(const Sharding& from, const Sharding& to) {
  for (std::size_t d = 0; d < from.dims.size(); ++d) {
    const AxisList& before = from.dims[d];
    const AxisList& after = to.dims[d];
    if (after.size() < before.size() ||
        !std::equal(before.begin(), before.end(), after.begin())) {
      return false;
    }
  }
  return true;
}

bool is_scattered(const Sharding& from, const Sharding& to, AxisMask partial) {
  if (!only_cuts(from, to)) return false;
  int dims = 0;
  for (std::size_t d = 0; d < to.dims.size(); ++d) {
    for (std::size_t k = from.dims[d].size(); k < to.dims[d].size(); ++k) {
      if (!((partial >> to.dims[d][k]) & 1u)) continue;
      ++dims;
      break;
    }
  }
  return dims <= 1;
}

std::size_t AxisListsHash::operator()(const std::vector<AxisList>& lists) const {
  std::uint64_t hash = 0;
  for (const AxisList& axes : lists) {
    for (AxisIndex axis : axes) hash = (hash ^ (axis + 1u)) * 0x9e3779b97f4a7c15ull;
    hash = (hash ^ 0xffu) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

std::string key(const Sharding& sharding) {
  std::string text;
  for (const AxisList& axes : sharding.dims) {
    for (AxisIndex axis : axes) text.push_back(static_cast<char>(axis + 1));
    text.push_back('\0');
  }
  return text;
}

AxisMask mask(const AxisList& axes) {
  AxisMask set = 0;
  for (AxisIndex axis : axes) set |= 1u << axis;
  return set;
}

AxisMask mask(const Sharding& sharding) {
  AxisMask set = 0;
  for (const AxisList& axes : sharding.dims) set |= mask(axes);
  return set;
}

}  // namespace autoshard
