/// What the tiles of memory add to stacks that loops take slices of, and to gathered rows.
#pragma once

#include <vector>

#include "compilers/compiler.h"
#include "memory/aliases.h"
#include "memory/program_index.h"

namespace autoshard {

/// By value: its bytes in memory over those of its elements, before any cut, for stacks of
/// which a loop reads or writes one element of a dim in each trip; 1 of all others, and of all
/// without tiles. Such a dim fills no tiles, for else each slice would touch all of them. Of
/// the others two do, in the order that pads least, the first one as if it were cut over all
/// devices. Arguments lie as they are given.
///
/// So do arrays of rows that are gathered or scattered, if a row is one dim: it fills columns.
///
/// Example: 12 scores of each of 291,560 edges of a graph take 128, 10.7 times as much.
///
/// Example: a loop of 1,024 trips that stacks states of 32 heads of 64 x 64 elements: 64 fill
/// half of 128 columns, 2. Outside of loops the trips would fill columns, 1.
std::vector<double> stack_padding_of(const ProgramIndex& index, const Aliases& aliases,
                                     const Layout& layout);

}  // namespace autoshard
