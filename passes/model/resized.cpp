#include "model/resized.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace autoshard {
namespace {

constexpr double rounding = 1e-9;  ///< relative: what rounding makes of a product

bool are_near(double one, double other) {
  return std::abs(one - other) <= rounding * std::max(std::abs(one), std::abs(other));
}

/// Changes each number of a program; `is_possible` says whether all could be.
class Resizer {
 public:
  Resizer(double one, double other, double wanted)
      : one_(one), other_(other), wanted_(wanted), share_((wanted - one) / (other - one)) {}

  bool is_possible = true;

  void grow(double& size, double other) {
    if (size != other) size = grown(size, other);
  }
  void grow(std::int64_t& size, std::int64_t other) {
    if (size == other) return;
    const double found = grown(static_cast<double>(size), static_cast<double>(other));
    size = std::llround(found);
    need(size > 0 && are_near(found, static_cast<double>(size)));
  }
  template <class List>
  void grow_all(List& sizes, const List& others) {
    if (!need(sizes.size() == others.size())) return;
    for (std::size_t k = 0; k < sizes.size(); ++k) grow(sizes[k], others[k]);
  }
  void run(double& trips, double other) {
    if (trips != other) trips = counted(trips, other);
  }
  bool need(bool holds) {
    is_possible = is_possible && holds;
    return holds;
  }

  void type(TensorType& type, const TensorType& other);
  void rule(Rule& rule, const Rule& other);
  void op(Op& op, const Op& other);
  void loop(Loop& loop, const Loop& other);

 private:
  double grown(double size, double other) {
    const bool is_more = (other - size) * (other_ - one_) > 0;
    return is_more ? size + share_ * (other - size) : counted(size, other);
  }
  /// What there are as many of as there are micro-batches.
  double counted(double count, double other) {
    need(are_near(count * one_, other * other_));
    return count * one_ / wanted_;
  }

  const double one_, other_, wanted_, share_;
};

void Resizer::type(TensorType& type, const TensorType& other) {
  need(type.element_bits == other.element_bits && type.is_on_host == other.is_on_host);
  grow_all(type.dims, other.dims);
}

bool are_alike(const std::vector<RuleTensor>& some, const std::vector<RuleTensor>& others) {
  if (some.size() != others.size()) return false;
  for (std::size_t k = 0; k < some.size(); ++k) {
    if (some[k].type != others[k].type || some[k].dims != others[k].dims) return false;
  }
  return true;
}

void Resizer::rule(Rule& rule, const Rule& other) {
  need(rule.work == other.work && rule.arithmetic == other.arithmetic &&
       rule.is_cheap == other.is_cheap && rule.has_workspace == other.has_workspace &&
       rule.touched_as == other.touched_as &&
       rule.in_place_operand == other.in_place_operand && rule.expense == other.expense &&
       rule.adds_up == other.adds_up && rule.part_operands == other.part_operands &&
       rule.has_one_part == other.has_one_part && are_alike(rule.operands, other.operands) &&
       are_alike(rule.results, other.results));
  if (!need(rule.factors.size() == other.factors.size())) return;
  for (std::size_t k = 0; k < rule.factors.size(); ++k) {
    Factor& factor = rule.factors[k];
    const Factor& its = other.factors[k];
    need(factor.kind == its.kind && factor.halo == its.halo && factor.shares == its.shares);
    grow(factor.size, its.size);
  }
  grow(rule.flops, other.flops);
  grow_all(rule.operand_bytes, other.operand_bytes);
  grow_all(rule.result_bytes, other.result_bytes);
  grow(rule.padded_bytes, other.padded_bytes);
  grow(rule.scratch_bytes, other.scratch_bytes);
  grow(rule.moved_again, other.moved_again);
  grow(rule.exponentials, other.exponentials);
  grow(rule.vector_flops, other.vector_flops);
  grow(rule.kernels, other.kernels);
}

void Resizer::op(Op& op, const Op& other) {
  need(op.rule == other.rule && op.operands == other.operands && op.results == other.results &&
       op.kept_operands == other.kept_operands && op.after == other.after &&
       op.until == other.until && op.is_unread == other.is_unread);
  run(op.trips, other.trips);
}

void Resizer::loop(Loop& loop, const Loop& other) {
  need(loop.first_op == other.first_op && loop.last_op == other.last_op &&
       loop.carried == other.carried && loop.yielded == other.yielded);
  run(loop.trips, other.trips);
}

}  // namespace

std::optional<Program> resized(const SizedProgram& one, const SizedProgram& other,
                               double examples) {
  Program found = one.program;
  const Program& its = other.program;
  Resizer to(one.examples, other.examples, examples);
  if (one.examples == other.examples || found.types.size() != its.types.size() ||
      found.rules.size() != its.rules.size() || found.values.size() != its.values.size() ||
      found.ops.size() != its.ops.size() || found.joins.size() != its.joins.size() ||
      found.loops.size() != its.loops.size() ||
      found.arguments.size() != its.arguments.size() || found.results != its.results ||
      found.early != its.early || !found.pins.empty() || !its.pins.empty() ||
      !found.bodies.empty() || !its.bodies.empty()) {
    return std::nullopt;
  }
  for (std::size_t k = 0; k < found.types.size(); ++k) to.type(found.types[k], its.types[k]);
  for (std::size_t k = 0; k < found.rules.size(); ++k) to.rule(found.rules[k], its.rules[k]);
  for (std::size_t k = 0; k < found.values.size(); ++k) {
    to.need(found.values[k].type == its.values[k].type &&
            found.values[k].is_free == its.values[k].is_free);
  }
  for (std::size_t k = 0; k < found.ops.size() && to.is_possible; ++k) {
    to.op(found.ops[k], its.ops[k]);
  }
  for (std::size_t k = 0; k < found.joins.size(); ++k) {
    to.need(found.joins[k].source == its.joins[k].source &&
            found.joins[k].target == its.joins[k].target);
    to.run(found.joins[k].trips, its.joins[k].trips);
  }
  for (std::size_t k = 0; k < found.loops.size(); ++k) to.loop(found.loops[k], its.loops[k]);
  for (std::size_t k = 0; k < found.arguments.size(); ++k) {
    to.need(found.arguments[k].value == its.arguments[k].value &&
            found.arguments[k].is_donated == its.arguments[k].is_donated);
  }
  if (!to.is_possible) return std::nullopt;
  return found;
}

}  // namespace autoshard
