#include "memory/several_results.h"

#include <algorithm>
#include <set>
#include <utility>

#include "memory/levels.h"
#include "memory/orders.h"

namespace autoshard {

SeveralResults::SeveralResults(const FusionInput& input, Fusions& fusions)
    : input_(input), fusions_(fusions), is_one_by_one_(input.index.num_ops, false) {
  const ProgramIndex& index = input.index;
  if (!input.rules.several_results) return;
  std::vector<bool> ends(index.num_ops);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Work work = index.rule(i).work;
    ends[i] = work != Work::elementwise && work != Work::view;
  }
  level_ = levels_of(index, ends);
}

void SeveralResults::note(std::int32_t i) {
  if (!input_.rules.several_results || !computes_each(i)) return;
  is_one_by_one_[i] = fusions_.is_root(i) || is_read_one_by_one(i);
}

bool SeveralResults::join(std::int32_t i, const std::vector<std::int32_t>& roots) {
  if (!input_.rules.several_results || !computes_each(i) || !is_read_one_by_one(i)) {
    return false;
  }
  const bool may_be = std::all_of(roots.begin(), roots.end(), [&](std::int32_t root) {
    return is_one_by_one_[root] && level_[root] == level_[roots[0]] &&
           !fusions_.holds_rows[root];
  });
  if (!may_be) return false;
  if (are_one(roots)) return true;
  std::vector<std::int32_t> members = members_of(roots);
  if (waits_for_another(members)) return false;
  for (std::int32_t root : members) members_.erase(root);
  const std::int32_t last = members.back();
  for (std::int32_t root : members) fusions_.sibling[root] = root == last ? no_op : last;
  members_[last] = std::move(members);
  return true;
}

bool SeveralResults::are_one(const std::vector<std::int32_t>& roots) const {
  return std::all_of(roots.begin(), roots.end(),
                     [&](std::int32_t root) { return last_of(root) == last_of(roots[0]); });
}

std::int32_t SeveralResults::last_of(std::int32_t root) const {
  const std::int32_t sibling = fusions_.sibling[root];
  return sibling == no_op || !members_.contains(sibling) ? root : sibling;
}

std::vector<std::int32_t> SeveralResults::members_of(
    const std::vector<std::int32_t>& roots) const {
  std::vector<std::int32_t> members;
  for (std::int32_t root : roots) {
    const auto known = members_.find(last_of(root));
    if (known == members_.end()) {
      members.push_back(root);
    } else {
      members.insert(members.end(), known->second.begin(), known->second.end());
    }
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

/// Whether an op computes each element of its result by itself.
bool SeveralResults::computes_each(std::int32_t i) const {
  const Rule& rule = input_.index.rule(i);
  return rule.work == Work::elementwise && rule.in_place_operand < 0 &&
         rule.results.size() == 1;
}

/// Whether a value that an op reads is the array that it is an alias of, element by element:
/// no transpose is between them.
bool SeveralResults::is_in_order(std::int32_t value) const {
  const ProgramIndex& index = input_.index;
  for (;;) {
    const std::int32_t op = index.producer[value];
    if (op == no_op || !input_.aliases.is_bitcast[op]) return true;
    const Rule& rule = index.rule(op);
    const auto factors = [&](const RuleTensor& tensor) {
      std::vector<std::int32_t> all = factors_in(tensor, {});
      all.erase(std::remove_if(all.begin(), all.end(),
                               [&](std::int32_t f) { return rule.factors[f].size == 1; }),
                all.end());
      return all;
    };
    if (factors(rule.operands[0]) != factors(rule.results[0])) return false;
    value = index.op(op).operands[0];
  }
}

/// Whether all that reads op `i` does so one by one, up to the roots.
bool SeveralResults::is_read_one_by_one(std::int32_t i) const {
  const ProgramIndex& index = input_.index;
  const auto readers = in(input_.uses.readers, index.op(i).results[0]);
  return std::all_of(readers.begin(), readers.end(), [&](const Reader& reader) {
    return is_one_by_one_[reader.op] &&
           is_in_order(index.op(reader.op).operands[reader.operand]);
  });
}

/// Whether an op is computed in kernels that are one, from what they write among others.
bool SeveralResults::is_within(std::int32_t op,
                               const std::vector<std::int32_t>& members) const {
  const auto& roots = fusions_.roots[op];
  return is_one_by_one_[op] && std::all_of(roots.begin(), roots.end(), [&](std::int32_t root) {
           return std::binary_search(members.begin(), members.end(), root);
         });
}

/// Whether a way leads from one of the kernels out of them and back into one. All of them have
/// one level, and so has every op on such a way.
bool SeveralResults::waits_for_another(const std::vector<std::int32_t>& members) const {
  const ProgramIndex& index = input_.index;
  // Ops that kernels are computed from; whether one that is not of them is on the way.
  std::vector<std::pair<std::int32_t, bool>> next;
  std::set<std::pair<std::int32_t, bool>> seen;
  for (std::int32_t member : members) next.emplace_back(member, false);
  while (!next.empty()) {
    const auto [op, was_outside] = next.back();
    next.pop_back();
    const bool is_outside = was_outside || !is_within(op, members);
    for (std::int32_t v : index.op(op).operands) {
      if (v == no_value) continue;
      const std::int32_t producer = index.producer[input_.aliases.of(v)];
      const bool may_wait = producer != no_op && producer >= members.front() &&
                            level_[producer] == level_[members.front()];
      if (!may_wait) continue;
      const bool waits = is_outside || !is_in_order(v);
      if (!seen.emplace(producer, waits).second) continue;
      if (waits && std::binary_search(members.begin(), members.end(), producer)) return true;
      next.emplace_back(producer, waits);
    }
  }
  return false;
}

}  // namespace autoshard
