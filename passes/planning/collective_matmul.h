/// Matmuls that scatter their partial sums while they run, in a loop over the devices of a
/// ring (collective matmul, windowed einsum).
#pragma once

#include <utility>

#include "cost/collectives.h"
#include "model/cluster.h"
#include "model/program.h"
#include "planning/classes.h"

namespace autoshard::planning {

/// A step of what is done to a result as the compiler makes it, and whether in a loop of the
/// matmul; null: it is no matmul's.
std::pair<Step, bool> as_made(const Step& step, const Compute* matmul, const Cluster& cluster,
                              const Mesh& mesh);

/// What a matmul takes more if a loop of it scatters its sums from `made` to `held`:
///
///   turns * seconds of a turn - seconds of the matmul + bytes moved besides / memory
///   bandwidth
///
/// Each turn multiplies a block of its own, with the padding of that, and adds it to what came
/// from the neighbour. A loop cannot compute its operands: what was read from a fusion is
/// stored, and one operand, here the smaller, is transposed.
double ring_seconds(const Program& program, const OpSignature& signature,
                    const FactorAxes& axes, const Sharding& made, const Sharding& held,
                    const Step& scatter, const Cluster& cluster, const Mesh& mesh);

}  // namespace autoshard::planning
