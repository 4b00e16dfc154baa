/// How often the way to an op changes stages.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/body.h"

namespace autoshard::pipeline {

/// By node of the line: the level of each, in tasks as few as there can be.
///
///   level = max over what it reads of  level + (stages differ)
///
/// and more for what can wait until it is read: an op that goes forward waits for those that
/// do, so that a stage begins once; what is computed again waits for the gradients that need
/// it.
std::vector<std::int32_t> levels_of(const Line& line, const std::vector<std::int32_t>& stage);

}  // namespace autoshard::pipeline
