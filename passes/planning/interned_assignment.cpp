#include "planning/interned_assignment.h"

namespace autoshard::planning {

InternedAssignment unsplit(const Program& program, const Classes& classes,
                           OptionStore& store) {
  InternedAssignment result;
  for (const ShardingClass& values : classes.values) {
    const std::size_t rank = program.types[values.type].dims.size();
    result.values.push_back(store.intern(values.type, {std::vector<AxisList>(rank)}));
  }
  for (const OpClass& op : classes.ops) {
    const Rule& rule = program.rules[classes.signatures[op.signature].rule];
    result.ops.push_back(store.intern_strategy(op.signature, FactorAxes(rule.factors.size())));
  }
  return result;
}

InternedAssignment interned(const Assignment& assignment, const Classes& classes,
                            OptionStore& store) {
  InternedAssignment result;
  for (std::size_t c = 0; c < assignment.shardings.size(); ++c) {
    result.values.push_back(store.intern(classes.values[c].type, assignment.shardings[c]));
  }
  for (std::size_t o = 0; o < assignment.ops.size(); ++o) {
    result.ops.push_back(store.intern_strategy(classes.ops[o].signature, assignment.ops[o]));
  }
  return result;
}

Assignment resolved(const InternedAssignment& assignment, const Classes& classes,
                    const OptionStore& store) {
  Assignment result;
  result.shardings.reserve(assignment.values.size());
  result.ops.reserve(assignment.ops.size());
  for (std::size_t c = 0; c < assignment.values.size(); ++c) {
    result.shardings.push_back(store.sharding(classes.values[c].type, assignment.values[c]));
  }
  for (std::size_t o = 0; o < assignment.ops.size(); ++o) {
    result.ops.push_back(store.strategy(classes.ops[o].signature, assignment.ops[o]));
  }
  return result;
}

}  // namespace autoshard::planning
