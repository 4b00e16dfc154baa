/// The stages of what surrounds the loop over micro-batches.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "pipeline/body.h"

namespace autoshard::pipeline {

/// By op: the pairs of a stage and a level at which it is made.
using PlacesOfOps = std::vector<std::set<std::pair<std::int32_t, std::int32_t>>>;

/// Ops that sum up what several stages add, and the first of these stages: there what they
/// have is added behind the loop.
using SplitSums = std::map<std::int32_t, std::int32_t>;

/// Fills `places` of the ops of `main`, of which those of the loop's body are known. A mark of
/// part n of the model is one of stage n % `stages`.
void place_surroundings(Ops& ops, const Loop& loop, std::int32_t stages,
                        const SplitSums& split, PlacesOfOps& places);

/// Adds the places of an op that each reader makes for itself, at a reader's place.
void add_copy(std::set<std::pair<std::int32_t, std::int32_t>>& places, std::int32_t stage,
              std::int32_t level, bool is_free);

}  // namespace autoshard::pipeline
