#include "memory/fused_program.h"

#include <utility>

namespace autoshard {

FusedProgram fused_program(const Program& program, const Compiler& compiler) {
  ProgramIndex index(program);
  Aliases aliases = aliases_of(index, compiler.layout);
  LiveOuts live_outs = live_outs_of(index, aliases);
  Layouts layouts = layouts_of(index, aliases, compiler.layout);
  Uses uses = uses_of(index, aliases, live_outs);
  for (std::int32_t copy : layouts.copies) uses.must_store[copy] = true;
  Fusions fusions = fuse({index, aliases, uses, compiler.fusion});
  FusionReads reads = reads_of(index, aliases, live_outs, fusions);
  return {std::move(index), std::move(aliases), std::move(live_outs), std::move(layouts),
          std::move(uses),  std::move(fusions), std::move(reads)};
}

}  // namespace autoshard
