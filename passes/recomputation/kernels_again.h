/// What values add to a step that are computed again, by the kernels of copies and originals.
///
/// `Clones::seconds` takes a copy for as expensive as what it is a copy of. But a value that
/// is stored for two readers may be stored for neither once each of them computes it: a
/// compiler makes it a part of both kernels. Here copies are added to the program, and its
/// kernels are found again.
#pragma once

#include <span>
#include <vector>

#include "model/cluster.h"
#include "model/kernel_part.h"
#include "model/program.h"
#include "planning/plan.h"
#include "recomputation/block.h"
#include "recomputation/clones.h"
#include "recomputation/plan_numbers.h"

namespace autoshard::recomputation {

/// A program with its plan and its kernels.
struct PlannedKernels {
  const Program& program;
  const planning::Plan& plan;
  const Cluster& cluster;
  /// By op, as of `memory_of(program, cluster.compiler)`.
  const std::vector<KernelPart>& parts;
  std::span<const Rounded> rounded = {};
};

/// What each group of equal values adds to a step for each of its values, besides
/// `Clones::seconds`; negative where copies are cheaper than originals.
///
/// In each of so many rounds one value of each group is looked at, as if it alone went, as far
/// as they have nothing to do with each other. Told is their mean, or less where values that
/// go together share copies: as much less as their clones take. 0 where nothing is found out:
/// copies are read by a barrier or a loop, or there are copies of other values that are
/// stored.
///
/// Example: p = cast(exp(x) / s) in 16 bits, stored for y = dot(p, v) and its gradient behind.
/// Computed again from exp(x), which is stored, it is a part of both matmuls' kernels: what p
/// takes to be written once, and read twice, is saved, and exp(x) is read twice. Compilers
/// were seen to write such copies all the same, so that decisions count what is positive alone
/// (rewrites/recomputation/block.py).
///
/// Args:
///   block: `main` of the planned program.
///   plan: Its plan and its kernels.
///   groups: Values of each, with the gap in which they are gone.
///   rules: What is kept where nothing is decided about it.
std::vector<double> seconds_besides(const Block& block, const PlannedKernels& plan,
                                    const std::vector<std::vector<Dropped>>& groups,
                                    const CloneRules& rules, int num_rounds);

}  // namespace autoshard::recomputation
