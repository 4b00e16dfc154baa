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
  void factor(Factor& factor, const Factor& other);
  void rule(Rule& rule, const Rule& other);
  void op(Op& op, const Op& other);
  void join(Join& join, const Join& other);
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

// Every field of what is compared is named, so that a new one cannot be forgotten: the number
// of names has to be that of the fields.

void Resizer::type(TensorType& type, const TensorType& other) {
  auto& [dims, bits, is_on_host] = type;
  const auto& [its_dims, its_bits, its_is_on_host] = other;
  need(bits == its_bits && is_on_host == its_is_on_host);
  grow_all(dims, its_dims);
}

bool are_alike(const std::vector<RuleTensor>& some, const std::vector<RuleTensor>& others) {
  if (some.size() != others.size()) return false;
  for (std::size_t k = 0; k < some.size(); ++k) {
    const auto& [type, dims] = some[k];
    const auto& [its_type, its_dims] = others[k];
    if (type != its_type || dims != its_dims) return false;
  }
  return true;
}

void Resizer::factor(Factor& factor, const Factor& other) {
  auto& [size, kind, halo, shares] = factor;
  const auto& [its_size, its_kind, its_halo, its_shares] = other;
  need(kind == its_kind && halo == its_halo && shares == its_shares);
  grow(size, its_size);
}

void Resizer::rule(Rule& rule, const Rule& other) {
  auto& [factors, operands, results, work, arithmetic, flops, is_cheap, has_workspace,
         operand_bytes, result_bytes, touched_as, in_place_operand, padded_bytes, dilation,
         scratch_bytes, moved_again, exponentials, vector_flops, transforms, expense, function,
         kernels, adds_up, part_operands, has_one_part] = rule;
  const auto& [its_factors, its_operands, its_results, its_work, its_arithmetic, its_flops,
               its_is_cheap, its_has_workspace, its_operand_bytes, its_result_bytes,
               its_touched_as, its_in_place_operand, its_padded_bytes, its_dilation,
               its_scratch_bytes, its_moved_again, its_exponentials, its_vector_flops,
               its_transforms, its_expense, its_function, its_kernels, its_adds_up,
               its_part_operands, its_has_one_part] = other;
  need(are_alike(operands, its_operands) && are_alike(results, its_results));
  need(work == its_work && arithmetic == its_arithmetic && is_cheap == its_is_cheap);
  need(has_workspace == its_has_workspace && touched_as == its_touched_as);
  need(in_place_operand == its_in_place_operand && expense == its_expense);
  need(function == its_function && transforms == its_transforms);
  need(adds_up == its_adds_up && part_operands == its_part_operands);
  need(has_one_part == its_has_one_part);
  if (!need(factors.size() == its_factors.size())) return;
  for (std::size_t k = 0; k < factors.size(); ++k) factor(factors[k], its_factors[k]);
  grow(flops, its_flops);
  grow_all(operand_bytes, its_operand_bytes);
  grow_all(result_bytes, its_result_bytes);
  grow(padded_bytes, its_padded_bytes);
  grow(dilation, its_dilation);
  grow(scratch_bytes, its_scratch_bytes);
  grow(moved_again, its_moved_again);
  grow(exponentials, its_exponentials);
  grow(vector_flops, its_vector_flops);
  grow(kernels, its_kernels);
}

void Resizer::op(Op& op, const Op& other) {
  auto& [rule, operands, results, trips, kept_operands, after, until, is_unread] = op;
  const auto& [its_rule, its_operands, its_results, its_trips, its_kept_operands, its_after,
               its_until, its_is_unread] = other;
  need(rule == its_rule && operands == its_operands && results == its_results);
  need(kept_operands == its_kept_operands && after == its_after && until == its_until);
  need(is_unread == its_is_unread);
  run(trips, its_trips);
}

void Resizer::join(Join& join, const Join& other) {
  auto& [source, target, trips] = join;
  const auto& [its_source, its_target, its_trips] = other;
  need(source == its_source && target == its_target);
  run(trips, its_trips);
}

void Resizer::loop(Loop& loop, const Loop& other) {
  auto& [first_op, last_op, trips, carried, yielded] = loop;
  const auto& [its_first_op, its_last_op, its_trips, its_carried, its_yielded] = other;
  need(first_op == its_first_op && last_op == its_last_op);
  need(carried == its_carried && yielded == its_yielded);
  run(trips, its_trips);
}

bool are_alike(const Value& one, const Value& other) {
  const auto& [type, is_free, is_zero] = one;
  const auto& [its_type, its_is_free, its_is_zero] = other;
  return type == its_type && is_free == its_is_free && is_zero == its_is_zero;
}

bool are_alike(const Argument& one, const Argument& other) {
  const auto& [value, is_donated] = one;
  const auto& [its_value, its_is_donated] = other;
  return value == its_value && is_donated == its_is_donated;
}

}  // namespace

std::optional<Program> resized(const SizedProgram& one, const SizedProgram& other,
                               double examples) {
  Program found = one.program;
  Resizer to(one.examples, other.examples, examples);
  // The mesh stays that of `one`.
  auto& [mesh, types, rules, values, ops, joins, pins, loops, arguments, results, early,
         any_order, bodies] = found;
  const auto& [its_mesh, its_types, its_rules, its_values, its_ops, its_joins, its_pins,
               its_loops, its_arguments, its_results, its_early, its_any_order, its_bodies] =
      other.program;
  if (one.examples == other.examples || types.size() != its_types.size() ||
      rules.size() != its_rules.size() || values.size() != its_values.size() ||
      ops.size() != its_ops.size() || joins.size() != its_joins.size() ||
      loops.size() != its_loops.size() || arguments.size() != its_arguments.size() ||
      results != its_results || early != its_early || any_order != its_any_order ||
      !pins.empty() || !its_pins.empty() || !bodies.empty() || !its_bodies.empty()) {
    return std::nullopt;
  }
  for (std::size_t k = 0; k < types.size(); ++k) to.type(types[k], its_types[k]);
  for (std::size_t k = 0; k < rules.size(); ++k) to.rule(rules[k], its_rules[k]);
  for (std::size_t k = 0; k < values.size(); ++k) to.need(are_alike(values[k], its_values[k]));
  for (std::size_t k = 0; k < ops.size() && to.is_possible; ++k) to.op(ops[k], its_ops[k]);
  for (std::size_t k = 0; k < joins.size(); ++k) to.join(joins[k], its_joins[k]);
  for (std::size_t k = 0; k < loops.size(); ++k) to.loop(loops[k], its_loops[k]);
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    to.need(are_alike(arguments[k], its_arguments[k]));
  }
  if (!to.is_possible) return std::nullopt;
  return found;
}

}  // namespace autoshard
