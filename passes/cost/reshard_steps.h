/// What every search for a reshard path needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cost/collectives.h"
#include "model/mesh.h"
#include "model/sharding.h"

namespace autoshard {

/// How many axes two lists have in common at their beginning.
std::size_t common_prefix(const AxisList& a, const AxisList& b);

/// The product of the sizes of some axes.
std::int64_t devices_along(AxisMask axes, const Mesh& mesh);

/// Put gathers in a row in order: the smallest group first, of equal ones that of the most
/// major axis, whose links are the slow ones. Each is of another dim, so that their order is
/// free.
void sort_gathers(std::vector<Step>& steps);

}  // namespace autoshard
