#include "model/program.h"

#include <algorithm>

namespace autoshard {
namespace {

[[noreturn]] void fail(const std::string& what, std::size_t index) {
  throw InvalidProgram(what + " " + std::to_string(index));
}

void check_tensors(const std::vector<std::int32_t>& values,
                   const std::vector<RuleTensor>& tensors, const Program& program,
                   std::size_t op) {
  if (values.size() != tensors.size()) fail("rule and values differ in number at op", op);
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (values[k] == no_value) continue;
    if (values[k] < 0 || static_cast<std::size_t>(values[k]) >= program.values.size()) {
      fail("value out of range at op", op);
    }
    if (program.values[values[k]].type != tensors[k].type) fail("type differs at op", op);
  }
}

void check_rule(const Rule& rule, const Program& program, std::size_t index) {
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const RuleTensor& tensor : *tensors) {
      if (tensor.type == no_type) {
        if (!tensor.dims.empty()) fail("rank 0 with dims in rule", index);
        continue;
      }
      if (static_cast<std::size_t>(tensor.type) >= program.types.size() ||
          program.types[tensor.type].dims.size() != tensor.dims.size()) {
        fail("type or rank wrong in rule", index);
      }
      for (const auto& factors : tensor.dims) {
        for (std::int32_t factor : factors) {
          if (factor < 0 || static_cast<std::size_t>(factor) >= rule.factors.size()) {
            fail("factor out of range in rule", index);
          }
        }
      }
    }
  }
  for (const Factor& factor : rule.factors) {
    if (!factor.shares.empty() &&
        static_cast<std::int64_t>(factor.shares.size()) != factor.size) {
      fail("shares of work do not fit their factor in rule", index);
    }
  }
  const auto check_bytes = [&](const std::vector<double>& bytes, std::size_t tensors) {
    if (!bytes.empty() && bytes.size() != tensors) fail("touched bytes wrong in rule", index);
  };
  check_bytes(rule.operand_bytes, rule.operands.size());
  check_bytes(rule.result_bytes, rule.results.size());
  if (!(rule.flops >= 0)) fail("negative flops in rule", index);
  if (rule.expense == Expense::never) fail("unknown expense in rule", index);
  const std::size_t tensors = rule.operands.size() + rule.results.size();
  if (rule.touched_as < -1 || rule.touched_as >= static_cast<std::int32_t>(tensors)) {
    fail("tensor as which others are touched out of range in rule", index);
  }
  const std::int32_t in_place = rule.in_place_operand;
  if (in_place < -1 || in_place >= static_cast<std::int32_t>(rule.operands.size())) {
    fail("operand in place out of range in rule", index);
  }
}

/// `no_value` is in range: a tensor of rank 0.
bool in_range(std::int32_t value, const Program& program) {
  return value >= no_value && value < static_cast<std::int32_t>(program.values.size());
}

void check_loop(const Loop& loop, const Program& program, std::size_t index) {
  if (loop.first_op < 0 || loop.last_op < loop.first_op ||
      static_cast<std::size_t>(loop.last_op) > program.ops.size()) {
    fail("ops out of range at loop", index);
  }
  if (!(loop.trips >= 0)) fail("negative trips at loop", index);
  if (loop.carried.size() != loop.yielded.size()) {
    fail("carried and yielded values differ in number at loop", index);
  }
  for (std::size_t k = 0; k < loop.carried.size(); ++k) {
    if (loop.carried[k] == no_value || !in_range(loop.carried[k], program) ||
        !in_range(loop.yielded[k], program)) {
      fail("value out of range at loop", index);
    }
  }
  for (std::size_t earlier = 0; earlier < index; ++earlier) {
    const Loop& other = program.loops[earlier];
    const bool is_before = other.last_op <= loop.first_op;
    const bool is_inside = loop.first_op <= other.first_op && other.last_op <= loop.last_op;
    if (!is_before && !is_inside) fail("loops overlap or are out of order at loop", index);
  }
}

}  // namespace

double TensorType::bytes() const {
  double elements = 1;
  for (std::int64_t dim : dims) elements *= static_cast<double>(dim);
  return elements * static_cast<double>(element_bits) / 8.0;
}

std::int32_t only_factor(const Rule& rule, const RuleTensor& tensor, std::size_t dim) {
  std::int32_t found = -1;
  for (std::int32_t factor : tensor.dims[dim]) {
    if (rule.factors[factor].size == 1) continue;
    if (found >= 0) return -1;
    found = factor;
  }
  return found;
}

void check(const Program& program) {
  if (program.mesh.rank() > max_mesh_axes) fail("too many mesh axes:", program.mesh.rank());
  for (std::size_t i = 0; i < program.mesh.axis_sizes.size(); ++i) {
    if (program.mesh.axis_sizes[i] < 2) fail("axis smaller than 2:", i);
  }
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    const auto type = static_cast<std::size_t>(program.values[i].type);
    if (type >= program.types.size()) fail("type out of range at value", i);
    if (program.types[type].dims.empty()) fail("rank 0 at value", i);
  }
  for (std::size_t i = 0; i < program.rules.size(); ++i) {
    check_rule(program.rules[i], program, i);
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (static_cast<std::size_t>(op.rule) >= program.rules.size())
      fail("rule out of range at op", i);
    const Rule& rule = program.rules[op.rule];
    if (op.kept_operands.size() != op.operands.size()) fail("kept operands wrong at op", i);
    check_tensors(op.operands, rule.operands, program, i);
    check_tensors(op.results, rule.results, program, i);
    if (op.after < -1 || op.after >= static_cast<std::int32_t>(i)) {
      fail("depends on a later op: op", i);
    }
    if (op.until != -1 && (op.until <= static_cast<std::int32_t>(i) ||
                           op.until > static_cast<std::int32_t>(program.ops.size()))) {
      fail("is waited for by an earlier op: op", i);
    }
  }
  const auto num_values = static_cast<std::int32_t>(program.values.size());
  for (std::size_t i = 0; i < program.joins.size(); ++i) {
    const Join& join = program.joins[i];
    if (join.source < 0 || join.source >= num_values || join.target < 0 ||
        join.target >= num_values) {
      fail("value out of range at join", i);
    }
    if (program.types[program.values[join.source].type].dims !=
        program.types[program.values[join.target].type].dims) {
      fail("shapes differ at join", i);
    }
  }
  for (std::size_t i = 0; i < program.pins.size(); ++i) {
    const Pin& pin = program.pins[i];
    if (pin.value < 0 || pin.value >= num_values ||
        pin.dims.size() != program.types[program.values[pin.value].type].dims.size()) {
      fail("value or rank wrong at pin", i);
    }
  }
  for (std::size_t i = 0; i < program.loops.size(); ++i) {
    check_loop(program.loops[i], program, i);
  }
  for (std::size_t i = 0; i < program.arguments.size(); ++i) {
    if (!in_range(program.arguments[i].value, program))
      fail("value out of range: argument", i);
  }
  for (std::size_t i = 0; i < program.results.size(); ++i) {
    if (!in_range(program.results[i], program)) fail("value out of range: result", i);
  }
  for (std::size_t i = 0; i < program.bodies.size(); ++i) {
    const Body& body = program.bodies[i];
    const auto points =
        static_cast<std::int32_t>(std::max<std::size_t>(1, program.ops.size()));
    if (body.after < 0 || body.after >= points || !(body.bytes >= 0)) {
      fail("op or bytes out of range: body", i);
    }
  }
  for (std::size_t i = 0; i < program.early.size(); ++i) {
    if (!in_range(program.early[i], program)) fail("value out of range: early", i);
  }
  for (std::size_t i = 0; i < program.any_order.size(); ++i) {
    if (!in_range(program.any_order[i], program)) fail("value out of range: any order", i);
  }
}

std::vector<Moved> moved_by(const Program& program, std::span<const std::int32_t> ops) {
  std::vector<std::int32_t> maker(program.values.size(), -1),
      reader(program.values.size(), -1);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto number = static_cast<std::int32_t>(i);
    for (const std::int32_t value : program.ops[i].operands) {
      if (value != no_value && reader[value] < 0) reader[value] = number;
    }
    for (const std::int32_t value : program.ops[i].results) {
      if (value != no_value) maker[value] = number;
    }
  }
  std::vector<Moved> found;
  for (const std::int32_t op : ops) {
    const std::int32_t read = program.ops[op].operands.front();
    const std::int32_t made = program.ops[op].results.front();
    found.push_back(
        {made, read == no_value ? -1 : maker[read], made == no_value ? -1 : reader[made]});
  }
  return found;
}

bool allows(const Pin& pin, const Sharding& sharding, const Mesh& mesh) {
  for (std::size_t d = 0; d < pin.dims.size(); ++d) {
    for (AxisIndex axis : pin.replicated) {
      const AxisList& cut = sharding.dims[d];
      if (std::find(cut.begin(), cut.end(), axis) != cut.end()) return false;
    }
    const DimPin& dim = pin.dims[d];
    const AxisList& axes = sharding.dims[d];
    if (dim.num_shards) {
      if (num_shards(axes, mesh) != *dim.num_shards) return false;
      continue;
    }
    if (axes.size() < dim.axes.size()) return false;
    if (!dim.is_open && axes.size() != dim.axes.size()) return false;
    if (!std::equal(dim.axes.begin(), dim.axes.end(), axes.begin())) return false;
  }
  return true;
}

}  // namespace autoshard
