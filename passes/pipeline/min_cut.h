/// The side of a cut on which each node of a line is, so that the fewest bytes cross it.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/line.h"

namespace autoshard::pipeline {

enum class Side : std::int8_t { open = -1, before = 0, behind = 1 };

/// Decides `side` of the nodes for which it is open.
///
/// A value crosses if it is made or read on both sides; on its way forward a micro-batch may
/// cross from `before` to `behind` only, on its way back only the other way round. A minimum
/// cut, so exact; of several the one with the most nodes behind.
///
/// Expects that the given sides keep to the directions.
void decide_sides(const Line& line, std::vector<Side>& side);

}  // namespace autoshard::pipeline
