/// What one stage of a pipeline takes of a program's memory, before the program is cut.
#pragma once

#include "memory/program_memory.h"
#include "model/program.h"

namespace autoshard {

/// By value: whether there is one for all trips of outer loops. They carry it, it is made
/// outside of them, or alone of what is, without anything of rank 0.
///
/// Example: weights of which each trip makes narrow copies, batches that trips have a slice of
/// each, sums of gradients: the weights, the copies, the batches, the sums.
std::vector<bool> values_of_all_trips(const Program& program);

/// Memory of which buffers have what a stage takes of them about, where trips of outer loops
/// are micro-batches: its share of what lives outside of loops or all along them, as weights
/// and sums of gradients do, and of what all trips have; all else, since a stage has its part
/// of the layers alone, but keeps what they need on the way back of as many micro-batches as
/// there are stages.
///
/// Example: 4 stages, a weight of 8 bytes that a loop reads, a value of 8 in its body: 2, 8.
ProgramMemory of_a_stage(ProgramMemory memory, const Program& program, int stages);

}  // namespace autoshard
