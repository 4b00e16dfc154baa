/// How one tensor is split: for each dim the mesh axes that cut it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/mesh.h"

namespace autoshard {

/// Ordered mesh axes, major first. Two axes of sizes 2 and 4 cut a dim into 8 blocks; the
/// first one says which half, the second which quarter of that half. Held in place, without
/// memory of its own: a search makes millions of them.
class AxisList {
 public:
  using value_type = AxisIndex;
  using iterator = AxisIndex*;
  using const_iterator = const AxisIndex*;

  AxisList() = default;
  AxisList(std::initializer_list<AxisIndex> axes) { append(axes.begin(), axes.end()); }
  template <typename Iterator>
  AxisList(Iterator first, Iterator last) {
    append(first, last);
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  iterator begin() { return axes_.data(); }
  iterator end() { return axes_.data() + size_; }
  const_iterator begin() const { return axes_.data(); }
  const_iterator end() const { return axes_.data() + size_; }
  AxisIndex& operator[](std::size_t i) { return axes_[i]; }
  AxisIndex operator[](std::size_t i) const { return axes_[i]; }
  AxisIndex front() const { return axes_[0]; }
  AxisIndex back() const { return axes_[size_ - 1]; }

  void clear() { size_ = 0; }
  void pop_back() { --size_; }
  /// Keeps the first `size` axes.
  void shorten(std::size_t size) { size_ = static_cast<std::uint8_t>(size); }
  void push_back(AxisIndex axis) {
    if (size_ == max_mesh_axes) throw std::length_error("a dim cut by more than 16 axes");
    axes_[size_++] = axis;
  }
  template <typename Iterator>
  void append(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(static_cast<AxisIndex>(*first));
  }

  bool operator==(const AxisList& other) const {
    return size_ == other.size_ && std::equal(begin(), end(), other.begin());
  }

 private:
  std::array<AxisIndex, max_mesh_axes> axes_;
  std::uint8_t size_ = 0;
};

/// One axis list per tensor dim; axes in no list replicate. No axis appears twice.
struct Sharding {
  std::vector<AxisList> dims;

  bool operator==(const Sharding&) const = default;
};

/// The axes that cut each factor of an op's rule.
using FactorAxes = std::vector<AxisList>;

/// A set of mesh axes, one bit an axis.
using AxisMask = std::uint32_t;

/// Bits of the axes in `axes`.
AxisMask mask(const AxisList& axes);
AxisMask mask(const Sharding& sharding);

/// All axes of a mesh.
inline AxisMask all_axes(const Mesh& mesh) {
  return static_cast<AxisMask>((1ull << mesh.rank()) - 1);
}

/// Product of the axis sizes: into how many blocks `axes` cuts.
std::int64_t num_shards(const AxisList& axes, const Mesh& mesh);

/// Product over all dims: the tensor's bytes per device are its bytes divided by this.
std::int64_t num_shards(const Sharding& sharding, const Mesh& mesh);

/// Product of the sizes of these axes.
std::int64_t devices_along(AxisMask axes, const Mesh& mesh);

/// Whether every dim of `to` begins with the axes that cut it in `from`: going there moves
/// nothing.
bool only_cuts(const Sharding& from, const Sharding& to);

/// Whether partial sums over `partial`, cut as `from`, are scattered while they are reduced to
/// `to`: `to` only cuts further, and the axes of the sum cut one dim of it at most. XLA
/// reduces in place what would be scattered over two dims.
bool is_scattered(const Sharding& from, const Sharding& to, AxisMask partial);

/// For hash tables of shardings, and of factors' axes.
struct AxisListsHash {
  std::size_t operator()(const std::vector<AxisList>& lists) const;
};

/// A short string that is equal exactly for equal shardings of one rank.
std::string key(const Sharding& sharding);

}  // namespace autoshard
