/// A reshard as a search sees it: parts of mesh axes that move between a few dims.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "model/mesh.h"
#include "model/sharding.h"

namespace autoshard {

/// A mesh of so many axes is searched as a whole, if it has no more primes than this by
/// primes.
inline constexpr int max_parts = 3;
/// So many moving axes are searched on any mesh.
inline constexpr std::size_t max_moving = 4;

/// A sharding of at most `max_moving` parts and as many dims before as after.
struct ReshardState {
  static constexpr std::size_t max_dims = 2 * max_moving;

  std::array<std::array<AxisIndex, max_moving>, max_dims> parts;
  std::array<std::uint8_t, max_dims> length = {};
  std::uint8_t rank = 0;

  void add_dim() {
    if (rank == max_dims) throw std::logic_error("reshard: too many dims");
    ++rank;
  }
  void push(std::size_t d, AxisIndex part) { parts[d][length[d]++] = part; }

  /// Four bits a part and one separator a dim.
  std::uint64_t key() const {
    std::uint64_t code = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      for (std::size_t k = 0; k < length[d]; ++k) code = code << 4 | (parts[d][k] + 1u);
      code = code << 4 | 15u;
    }
    return code;
  }

  bool has_same_dim(const ReshardState& other, std::size_t d) const {
    return length[d] == other.length[d] &&
           std::equal(parts[d].begin(), parts[d].begin() + length[d], other.parts[d].begin());
  }
};

/// A list of fixed capacity: there are many queries.
template <typename T, std::size_t most>
struct ShortList {
  std::array<T, most> items = {};
  std::size_t count = 0;

  void push_back(T item) { items.at(count++) = item; }
  std::size_t size() const { return count; }
  const T* begin() const { return items.data(); }
  const T* end() const { return items.data() + count; }
  bool operator==(const ShortList&) const = default;
};

/// A reshard over parts of mesh axes.
struct ReshardQuery {
  ReshardState start, goal;
  /// How many blocks each dim can have.
  ShortList<std::int64_t, ReshardState::max_dims> capacity;
  /// Size of each part, and the mesh axes it belongs to.
  ShortList<std::int64_t, max_moving> sizes;
  ShortList<AxisMask, max_moving> axes;
  /// What a device holds before the parts cut anything, of the whole tensor.
  double whole = 1;
  bool has_all_to_all = true;

  /// The next dim, of the parts that `start` and `goal` now get.
  void add_dim(std::int64_t most_blocks) {
    start.add_dim();
    goal.add_dim();
    capacity.push_back(most_blocks);
  }
};

/// The query of a reshard, its dims in an order that does not depend on theirs: steps do not
/// say which dim they change, so that one search answers for all orders. None if more than
/// `max_moving` axes of a large mesh move.
///
/// On meshes of at most three axes the parts are all axes, split into their primes if there
/// are no more than three of those; on others the axes that move.
std::optional<ReshardQuery> reshard_query(const std::vector<std::int64_t>& dims,
                                          const Sharding& from, const Sharding& to,
                                          const Mesh& mesh);

}  // namespace autoshard
