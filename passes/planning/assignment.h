/// A plan as the search has it: one sharding for every class of values and of copies, one cut
/// for every class of ops.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/program_memory.h"
#include "model/cluster.h"
#include "model/program.h"
#include "planning/classes.h"

namespace autoshard::planning {

/// What memory and time of a plan are computed from, whoever made the plan.
struct Assignment {
  /// By sharding class of `Classes`: how a class of values, or of copies of values, is cut.
  std::vector<Sharding> shardings;
  /// By op class: the axes that cut each factor.
  std::vector<FactorAxes> ops;

  const Sharding& sharding(std::int32_t sharding_class) const {
    return shardings[sharding_class];
  }
  const FactorAxes& axes(std::int32_t op_class) const { return ops[op_class]; }
};

/// A program on the mesh of a cluster, with all that is known of it before it has a plan.
/// Whoever makes one keeps what it refers to alive.
struct ProgramOnMesh {
  const Program& program;
  /// It counts, whatever the mesh of `program` is.
  const Mesh& mesh;
  const Classes& classes;
  const ProgramMemory& memory;
  const Cluster& cluster;

  /// Bytes of one value of the type on a device.
  double local_bytes(std::int32_t type, const Sharding& sharding) const {
    return program.types[type].bytes() / static_cast<double>(num_shards(sharding, mesh));
  }
  const OpSignature& signature_of_class(std::int32_t op_class) const {
    return classes.signatures[classes.ops[op_class].signature];
  }
  const OpSignature& signature_of_op(std::size_t op) const {
    return signature_of_class(classes.class_of_op[op]);
  }
};

}  // namespace autoshard::planning
