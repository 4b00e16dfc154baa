/// A program as a compiler sees it: what is one array, what is one kernel.
#pragma once

#include <vector>

#include "compilers/compiler.h"
#include "memory/aliases.h"
#include "memory/fusions.h"
#include "memory/layouts.h"
#include "memory/live_outs.h"
#include "memory/program_index.h"
#include "memory/tile_padding.h"
#include "memory/uses.h"
#include "model/kernel_part.h"

namespace autoshard {

/// What is found before the order of ops is known. Each field is a function of those above it.
struct FusedProgram {
  ProgramIndex index;
  Aliases aliases;
  LiveOuts live_outs;
  Layouts layouts;
  /// What layouts copy must be stored too.
  Uses uses;
  Fusions fusions;
  FusionReads reads;
  TilePadding tiles;
  /// By op, of broadcasts that are kernels of their own; see `repeats_of`.
  std::vector<Repeat> repeats;
};

/// The result refers to `program`.
FusedProgram fused_program(const Program& program, const Compiler& compiler);

}  // namespace autoshard
