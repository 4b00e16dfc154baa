#include "memory/fusions.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "memory/several_results.h"
#include "memory/waiting_matmuls.h"
#include "model/products.h"

namespace autoshard {
namespace {

/// Whether `op` is a part of each kernel that `reader` is a part of. A matmul that computes
/// cheap work on its operand reads one value for it and nothing else.
///
/// Example: of dot(x * y * 2, w) it computes the doubling; the product of x and y is stored.
bool joins(const FusionInput& input, const Fusions& fusions, std::int32_t reader,
           std::int32_t op) {
  const ProgramIndex& index = input.index;
  if (input.rules.matmul_operands || index.rule(op).work != Work::elementwise) return true;
  const auto& roots = fusions.roots[reader];
  const bool is_of_operand = std::any_of(roots.begin(), roots.end(), [&](std::int32_t root) {
    return index.rule(root).work == Work::matmul &&
           !is_summed(index.rule(root), input.rules.summed_products);
  });
  return !is_of_operand || is_of_one(index, op);
}

/// Who reads the result of an op.
struct ReadingRoots {
  /// Those of all fusions that can compute it, in order.
  std::vector<std::int32_t> roots;
  /// Ops that cannot, in order.
  std::vector<std::int32_t> others;
  /// How often the fusions read all of it.
  double times = 0;
};

/// The sum over roots of the shares that they read, each at most the whole.
double sum_of_shares(std::vector<std::pair<std::int32_t, double>> shares) {
  std::sort(shares.begin(), shares.end());
  double times = 0, share = 0;
  for (std::size_t k = 0; k < shares.size(); ++k) {
    share += shares[k].second;
    if (k + 1 < shares.size() && shares[k + 1].first == shares[k].first) continue;
    times += std::min(1.0, share);
    share = 0;
  }
  return times;
}

ReadingRoots reading_roots(const FusionInput& input, const Fusions& fusions, std::int32_t op) {
  const ProgramIndex& index = input.index;
  const bool is_matmul = index.rule(op).work == Work::matmul;
  ReadingRoots found;
  std::vector<std::int32_t>& roots = found.roots;
  std::vector<std::pair<std::int32_t, double>> shares;
  for (const Reader& r : in(input.uses.readers, index.op(op).results[0])) {
    const bool fuses = index.loops.of_op(r.op) == index.loops.of_op(op) &&
                       takes_fused(input, r.op, r.operand) &&
                       joins(input, fusions, r.op, op) &&
                       (!is_matmul || index.rule(r.op).work == Work::elementwise ||
                        (input.rules.short_products > 0 && input.is_row_reduction[r.op]));
    if (!fuses) {
      found.others.push_back(r.op);
      continue;
    }
    const double share = share_read(index, r.op, r.operand);
    for (std::int32_t root : fusions.roots[r.op]) shares.emplace_back(root, share);
    roots.insert(roots.end(), fusions.roots[r.op].begin(), fusions.roots[r.op].end());
  }
  found.times = sum_of_shares(std::move(shares));
  for (auto* ops : {&roots, &found.others}) {
    std::sort(ops->begin(), ops->end());
    ops->erase(std::unique(ops->begin(), ops->end()), ops->end());
  }
  return found;
}

/// Whether an op is computed in each kernel that can, though others need its result in memory:
/// elementwise work on one value.
///
/// Example: of logits in bfloat16, cast to float32, a gather reads the cast; the maximum, the
/// sum and the gradient beside it read the bfloat16 and cast for themselves.
bool is_also_stored(const FusionInput& input, const std::vector<Sources>& sources,
                    std::int32_t op, const ReadingRoots& readers) {
  const ProgramIndex& index = input.index;
  return !input.rules.reads_what_is_stored && !readers.roots.empty() && is_of_one(index, op) &&
         is_duplicated(input, sources, op, readers.times + 1);
}

/// Whether ops that read nothing but what is there before lead from a matmul to the root, each
/// of which is the only one to read the last one's result. A wider type is where that ends,
/// and nothing reads it: it leaves the program.
///
/// Example: relu(dot(x, y) + b) for an argument b, not so silu(dot(x, y)), which reads the
/// product twice, nor twice the product of a narrower type in 32 bits; who reads that product
/// in 32 bits casts it.
bool is_epilogue(const FusionInput& input, std::int32_t matmul, std::int32_t root) {
  const ProgramIndex& index = input.index;
  const auto bits = [&](std::int32_t op) {
    return index.program.types[index.rule(op).results[0].type].element_bits;
  };
  for (std::int32_t op = matmul; op != root;) {
    if (bits(op) > bits(matmul)) return false;
    const std::int32_t made = index.op(op).results[0];
    const auto readers = in(input.uses.readers, made);
    if (readers.size() != 1) return false;
    op = readers.begin()->op;
    if (index.rule(op).work != Work::elementwise) return false;
    for (std::int32_t v : index.op(op).operands) {
      if (v != no_value && input.aliases.of(v) == made) continue;
      if (!is_there_before(input, v, op)) return false;
    }
  }
  return bits(root) <= bits(matmul) ||
         in(input.uses.readers, index.op(root).results[0]).empty();
}

/// Two elementwise results of one size are written by one kernel if they share what would be
/// stored for them otherwise, and neither is computed from the other: a gradient's matmul
/// alone reads the first.
bool are_siblings(const FusionInput& input, const Fusions& fusions,
                  const std::vector<std::int32_t>& roots) {
  const ProgramIndex& index = input.index;
  if (!input.rules.two_results || roots.size() != 2) return false;
  for (std::int32_t root : roots) {
    const bool may_be = index.rule(root).work == Work::elementwise;
    if (!may_be || fusions.sibling[root] != no_op) return false;
  }
  const std::int32_t first = index.op(roots[0]).results[0];
  const auto readers = in(input.uses.readers, first);
  return index.bytes[first] == index.bytes[index.op(roots[1]).results[0]] &&
         !input.uses.must_store[first] &&
         std::all_of(readers.begin(), readers.end(),
                     [&](const Reader& reader) { return fusions.waits[reader.op]; });
}

/// The last of the kernels over as many elements as an op writes in which there is no matmul,
/// or `no_op`.
///
/// Example: logits without their last position, cast to float32. The maximum and the sum of
/// each row take as many; their gradient writes zeros for that position, too.
std::int32_t last_without_matmul(const ProgramIndex& index,
                                 const std::vector<std::int32_t>& matmul_of,
                                 const std::vector<std::int32_t>& roots, std::int32_t op) {
  const auto elements = [&](std::int32_t root) {
    const Op& o = index.op(root);
    const bool reduces = index.rule(root).work == Work::reduce;
    return index.elements(reduces ? o.operands[0] : o.results[0]);
  };
  const auto found = std::find_if(roots.rbegin(), roots.rend(), [&](std::int32_t root) {
    return matmul_of[root] == no_op && index.rule(root).work != Work::matmul &&
           elements(root) == elements(op);
  });
  return found == roots.rend() ? no_op : *found;
}

/// Whether each of the fusions writes as many elements as the reduction `op` takes: whole
/// rows.
bool all_hold_rows(const FusionInput& input, std::int32_t op,
                   const std::vector<std::int32_t>& roots) {
  const ProgramIndex& index = input.index;
  const double whole = index.elements(index.op(op).operands[0]);
  return std::all_of(roots.begin(), roots.end(), [&](std::int32_t root) {
    return index.elements(index.op(root).results[0]) == whole;
  });
}

/// Whether several reductions compute an expression each, as what moves least says: none of
/// its sources is the result of a matmul, whose kernel may write the expression in its place.
bool is_reduced_in_each(const FusionInput& input, const std::vector<Sources>& sources,
                        std::int32_t op, const ReadingRoots& readers) {
  const ProgramIndex& index = input.index;
  const auto is_matmul = [&](std::int32_t of) {
    return of != no_op && index.rule(of).work == Work::matmul;
  };
  const auto is_reduction = [&](std::int32_t root) {
    return index.rule(root).work == Work::reduce ||
           (is_matmul(root) && is_summed(index.rule(root), input.rules.summed_products));
  };
  return std::all_of(readers.roots.begin(), readers.roots.end(), is_reduction) &&
         !sources[op].any([&](std::int32_t v) { return is_matmul(index.producer[v]); }) &&
         is_duplicated(input, sources, op, readers.times, 0);
}

}  // namespace

Fusions fuse(const FusionInput& input) {
  const ProgramIndex& index = input.index;
  const std::vector<Sources> sources = sources_of(input);
  Fusions fusions;
  fusions.roots.resize(index.num_ops);
  fusions.sibling.assign(index.num_ops, no_op);
  fusions.holds_rows.assign(index.num_ops, false);
  fusions.waits = matmuls_that_wait(index.program);
  // By root: the matmul of its fusion.
  std::vector<std::int32_t> matmul_of(index.num_ops, no_op);
  SeveralResults several(input, fusions);
  const auto find_roots = [&](std::int32_t i) {
    const bool is_matmul = index.rule(i).work == Work::matmul;
    if (is_matmul) matmul_of[i] = i;
    fusions.roots[i] = {i};
    if (!may_be_fused(input, i)) return;
    ReadingRoots readers = reading_roots(input, fusions, i);
    std::vector<std::int32_t>& roots = readers.roots;
    if (!readers.others.empty()) {
      if (!is_also_stored(input, sources, i, readers)) return;
      fusions.sibling[i] = last_without_matmul(index, matmul_of, roots, i);
      fusions.read_by[i] = std::move(readers.others);
      roots.insert(roots.begin(), i);
      fusions.roots[i] = std::move(roots);
      return;
    }
    if (roots.empty() || is_too_much(input, sources[i])) return;
    const bool is_gather = index.rule(i).work == Work::indexed && has_indices(index.rule(i));
    if (is_gather && input.rules.gather_kernels &&
        (roots.size() > 1 || index.rule(roots[0]).work != Work::elementwise)) {
      return;
    }
    if (input.is_row_reduction[i]) {
      if (!all_hold_rows(input, i, roots)) return;
      if (input.rules.short_products > 0 && roots.size() > 1) return;
      for (std::int32_t root : roots) fusions.holds_rows[root] = true;
    } else if (is_matmul) {
      // Elementwise work on the result of a matmul is done before the result is stored.
      if (!several.are_one(roots) || index.rule(roots[0]).work != Work::elementwise) return;
      if (matmul_of[roots[0]] != no_op) return;
      const bool is_any = input.rules.matmul_results;
      if (!is_any && is_split(index.rule(i), input.rules.split_products)) return;
      if (!is_any && (roots.size() > 1 || !is_epilogue(input, i, roots[0]))) return;
      for (std::int32_t root : roots) matmul_of[root] = i;
    } else if (roots.size() > 1 && !is_duplicated(input, sources, i, readers.times) &&
               !is_reduced_in_each(input, sources, i, readers) && !several.join(i, roots)) {
      if (!are_siblings(input, fusions, roots)) return;
      fusions.sibling[roots[0]] = roots[1];
    }
    fusions.roots[i] = std::move(roots);
  };
  for (std::int32_t i = index.num_ops; i-- > 0;) {
    if (input.aliases.is_bitcast[i] || input.uses.is_dead[i]) continue;
    find_roots(i);
    several.note(i);
  }
  return fusions;
}

FusionReads reads_of(const ProgramIndex& index, const Aliases& aliases,
                     const LiveOuts& live_outs, const Uses& uses, const Fusions& fusions) {
  FusionReads reads;
  reads.last_root.assign(index.num_values, no_op);
  std::vector<std::pair<std::int32_t, Read>> items;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (aliases.is_bitcast[i] || uses.is_dead[i]) continue;
    for (std::int32_t operand : index.op(i).operands) {
      if (operand == no_value) continue;
      const std::int32_t v = aliases.of(operand);
      if (!fusions.is_read(index, v, i)) continue;
      const std::int32_t buffer = buffer_read(index, aliases, v, index.loops.of_op(i));
      for (std::int32_t root : fusions.roots[i]) {
        items.push_back({root, {buffer, i}});
        reads.last_root[buffer] = std::max(reads.last_root[buffer], root);
      }
    }
  }
  reads.by_root = Lists<Read>(index.num_ops, std::move(items));
  for (const Join& join : index.program.joins) {
    const std::int32_t source = aliases.of(join.source), t = join.target;
    if (source == aliases.of(t)) continue;
    std::int32_t reader = no_loop;
    if (index.is_carried(t)) {
      const bool is_yield = source == aliases.yielded[index.slot[t]];
      reader = index.slot_of(t).loop;
      if (!is_yield) reader = index.loops.parent(reader);
    }
    reads.last_root[buffer_read(index, aliases, source, reader)] = behind_all;
  }
  for (const auto& [value, argument] : live_outs.argument) {
    reads.last_root[buffer_read(index, aliases, value, no_loop)] = behind_all;
  }
  return reads;
}

}  // namespace autoshard
