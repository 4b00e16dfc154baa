#include "memory/matmul_kernels.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "memory/lists.h"

namespace autoshard {
namespace {

/// By root: the ops of its kernel.
Lists<std::int32_t> ops_of_kernels(const FusedProgram& fused, const OpOrder& order) {
  std::vector<std::pair<std::int32_t, std::int32_t>> items;
  for (std::int32_t i = 0; i < fused.index.num_ops; ++i) {
    for (std::int32_t root : fused.fusions.roots[i]) {
      items.push_back({order.matmul[root] == no_op ? root : order.matmul[root], i});
    }
  }
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return {static_cast<std::size_t>(fused.index.num_ops), std::move(items)};
}

/// For each op of the matmul's kernel, first op first: the operand that it helps to compute,
/// or how many there are.
std::vector<std::size_t> tensors_of(const FusedProgram& fused, const Range<std::int32_t>& ops,
                                    std::int32_t matmul) {
  const ProgramIndex& index = fused.index;
  const std::size_t num_operands = index.op(matmul).operands.size();
  std::vector<std::size_t> tensors(ops.size(), num_operands);
  const auto mark = [&](std::int32_t value, std::size_t tensor) {
    if (value == no_value) return;
    const std::int32_t producer = index.producer[fused.aliases.of(value)];
    const auto* found = std::lower_bound(ops.begin(), ops.end(), producer);
    if (found == ops.end() || *found != producer) return;
    std::size_t& known = tensors[static_cast<std::size_t>(found - ops.begin())];
    if (known == num_operands) known = tensor;
  };
  for (std::size_t n = ops.size(); n-- > 0;) {
    const auto& operands = index.op(ops.first[n]).operands;
    for (std::size_t k = 0; k < operands.size(); ++k) {
      if (ops.first[n] == matmul) {
        mark(operands[k], k);
      } else if (tensors[n] < num_operands) {
        mark(operands[k], tensors[n]);
      }
    }
  }
  return tensors;
}

/// What a kernel does for an op. What several kernels compute is computed in the first one, as
/// costs have it, and read in each of them that is counted; `share`: of the reads, in this
/// one, or 0 if they count once, in the first one.
FusedWork work_of(const ProgramIndex& index, std::int32_t op, const Functions& functions,
                  const KernelPart& part, double share, bool is_first) {
  const Op& o = index.op(op);
  const Rule& rule = index.rule(op);
  const auto bytes_of = [&](std::int32_t value, const std::vector<double>& touched,
                            std::size_t k) {
    if (value == no_value) return 0.0;
    return k < touched.size() && touched[k] >= 0 ? touched[k] : index.bytes[value];
  };
  FusedWork work;
  if (is_first) work.flops = rule.flops * functions.operations(rule.function);
  for (std::size_t k = 0; k < o.operands.size(); ++k) {
    if (part.reads[k] == 0) continue;
    const double times = share > 0 ? share * part.reads[k] : 1;
    work.bytes += times * bytes_of(o.operands[k], rule.operand_bytes, k);
  }
  for (std::size_t k = 0; is_first && k < o.results.size(); ++k) {
    if (!part.writes[k] || o.results[k] == no_value) continue;
    work.bytes += bytes_of(o.results[k], rule.result_bytes, k);
    const std::int32_t type = rule.results[k].type;
    const bool is_narrow = type != no_type && index.program.types[type].element_bits < 32;
    if (is_narrow) work.packed += index.elements(o.results[k]);
  }
  return work;
}

}  // namespace

void add_work_in_matmuls(const FusedProgram& fused, const OpOrder& order,
                         const Compiler& compiler, std::vector<KernelPart>& parts) {
  const ProgramIndex& index = fused.index;
  const Fusion& rules = compiler.fusion;
  const Functions& functions = compiler.functions;
  const Lists<std::int32_t> ops = ops_of_kernels(fused, order);
  for (std::int32_t m = 0; m < index.num_ops; ++m) {
    const auto& roots = fused.fusions.roots[m];
    if (index.rule(m).work != Work::matmul || roots.empty()) continue;
    const Op& op = index.op(m);
    const Range<std::int32_t> others = in(ops, roots[0]);
    if (others.size() < 2 || op.results[0] == no_value) continue;
    const std::vector<std::size_t> tensors = tensors_of(fused, others, m);
    for (std::size_t n = 0; n < others.size(); ++n) {
      const std::int32_t other = others.first[n];
      if (other == m) continue;
      const std::size_t k = tensors[n];
      const std::int32_t value = k < op.operands.size() ? op.operands[k] : op.results[0];
      const double elements = index.elements(value);
      const auto& its_roots = fused.fusions.roots[other];
      const auto root_of = [&](std::int32_t root) {
        return order.matmul[root] == no_op ? root : order.matmul[root];
      };
      const bool is_first = root_of(its_roots[0]) == root_of(roots[0]);
      const bool is_in_each = rules.reads_in_each && rules.overlaps_memory;
      if (!is_first && !is_in_each) continue;
      const double share = is_in_each ? 1 / static_cast<double>(its_roots.size()) : 0;
      FusedWork found = work_of(index, other, functions, parts[other], share, is_first);
      if (found == FusedWork{}) continue;
      found.tensor = static_cast<std::int32_t>(k);
      found.bytes /= elements;
      found.packed /= elements;
      found.flops /= elements;
      parts[m].fused.push_back(found);
    }
  }
}

}  // namespace autoshard
