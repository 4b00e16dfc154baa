/// The logical device mesh: named axes over devices 0..N-1, first axis outermost.
#pragma once

#include <cstdint>
#include <vector>

namespace autoshard {

/// Index of a mesh axis. A mesh has at most 16 axes.
using AxisIndex = std::uint8_t;
inline constexpr int max_mesh_axes = 16;

/// Sizes of the mesh axes, major to minor. Axes are known by their index; names stay in
/// Python. Every size is >= 2: an axis of size 1 says nothing and is dropped on import.
struct Mesh {
  std::vector<std::int64_t> axis_sizes;
  /// False: no reshard on it may use an all-to-all.
  bool has_all_to_all = true;

  int rank() const { return static_cast<int>(axis_sizes.size()); }
};

}  // namespace autoshard
