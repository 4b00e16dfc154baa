/// The side of a cut on which each node of a line is, so that the fewest bytes cross it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pipeline/line.h"

namespace autoshard::pipeline {

enum class Side : std::int8_t { open = -1, before = 0, behind = 1 };

/// Whether each of some nodes is behind the cut; `open` is ascending, and `side` tells that of
/// any other node.
///
/// A value crosses if it is made or read on both sides; on its way forward a micro-batch may
/// cross from `before` to `behind` only, on its way back only the other way round. A minimum
/// cut, so exact; of several the one with the most nodes behind.
///
/// Expects that the given sides keep to the directions. Takes time for the open nodes and what
/// they make and read.
std::vector<char> open_sides(const Line& line, const std::vector<std::int32_t>& open,
                             const std::function<Side(std::int32_t)>& side);

}  // namespace autoshard::pipeline
