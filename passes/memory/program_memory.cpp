#include "memory/program_memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>

#include "memory/buffer_reuse.h"
#include "memory/fused_program.h"
#include "memory/joint_kernels.h"
#include "memory/live_ranges.h"
#include "memory/matmul_kernels.h"
#include "memory/op_order.h"
#include "memory/stack_copies.h"
#include "memory/window_maxima.h"

namespace autoshard {
namespace {

std::vector<double> passes_of(const ProgramIndex& index, const LiveRanges& ranges,
                              bool are_filled) {
  std::vector<double> passes(index.num_values);
  for (const Join& join : index.program.joins) {
    const bool is_fill = index.is_free(join.source) && index.is_carried(join.target);
    if (are_filled && is_fill) passes[join.target] = 1;
  }
  for (std::int32_t v : ranges.copied_results) passes[v] += 2;
  return passes;
}

std::vector<Buffer> buffers_of(const FusedProgram& fused, const OpOrder& order,
                               const LiveRanges& ranges, const Compiler& compiler) {
  const ProgramIndex& index = fused.index;
  std::vector<Buffer> buffers;
  std::vector<ResultBuffer> results;
  for (std::size_t v = 0; v < index.num_values; ++v) {
    if (ranges.of_value[v].is_empty()) continue;
    const auto made = ranges.made.find(static_cast<std::int32_t>(v));
    if (made != ranges.made.end()) {
      results.push_back({static_cast<std::int32_t>(buffers.size()), made->second});
    }
    buffers.push_back({fused.aliases.listed_as[v], ranges.of_value[v],
                       index.bytes[v] * fused.tiles.of_stored[v]});
  }
  for (std::int32_t v : fused.live_outs.copies) {
    buffers.push_back({v, {0, index.num_points}, index.bytes[v] * fused.tiles.of_stored[v]});
  }
  const std::vector<Buffer> copies = stack_copies(fused, order, compiler.layout);
  buffers.insert(buffers.end(), copies.begin(), copies.end());
  const std::vector<Buffer> at_ends = end_copies(fused, order);
  buffers.insert(buffers.end(), at_ends.begin(), at_ends.end());
  if (compiler.buffers.lending_results) reuse_results(results, index.num_points, buffers);
  return buffers;
}

std::vector<LiveRange> first_ranges(const std::vector<Buffer>& buffers,
                                    std::size_t num_values) {
  std::vector<LiveRange> live(num_values);
  for (const Buffer& buffer : buffers) {
    if (live[buffer.value].last == 0) live[buffer.value] = buffer.live;
  }
  return live;
}

std::vector<std::int32_t> points_of(const FusedProgram& fused, const OpOrder& order) {
  std::vector<std::int32_t> points(fused.index.num_ops);
  for (std::int32_t i = 0; i < fused.index.num_ops; ++i) {
    const auto& roots = fused.fusions.roots[i];
    points[i] = roots.empty() ? i : order.point[roots[0]];
  }
  return points;
}

std::vector<LiveRange> ranges_if_stored(const FusedProgram& fused, const OpOrder& order) {
  const ProgramIndex& index = fused.index;
  std::vector<LiveRange> result(index.num_values);
  for (std::size_t v = 0; v < index.num_values; ++v) {
    const std::int32_t value = fused.aliases.alias[v];
    const std::int32_t producer = index.producer[value];
    if (index.is_free(value) || producer == no_op || fused.fusions.is_root(producer) ||
        fused.fusions.roots[producer].empty()) {
      continue;
    }
    LiveRange& live = result[v];
    live.first = index.num_points;
    for (std::int32_t root : fused.fusions.roots[producer]) {
      live.first = std::min(live.first, order.point[root]);
      live.last = std::max(live.last, order.point[root] + 1);
    }
  }
  return result;
}

std::vector<PassedOn> passed_on(const Program& program, const OpOrder& order) {
  std::map<std::int32_t, std::size_t> loop_of;
  for (std::size_t l = 0; l < program.loops.size(); ++l) {
    const Loop& loop = program.loops[l];
    for (std::size_t k = 0; k < loop.carried.size(); ++k) {
      const std::int32_t v = loop.carried[k];
      if (loop.yielded[k] == no_value || loop.yielded[k] == v) loop_of[v] = l;
    }
  }
  std::vector<PassedOn> found;
  for (const Join& join : program.joins) {
    const auto loop = loop_of.find(join.target);
    if (loop == loop_of.end() || program.values[join.target].is_free) continue;
    if (join.source == join.target) continue;
    found.push_back({join.source, join.target, order.loops[loop->second]});
  }
  return found;
}

/// By root: whether its kernel holds rows and reduces what it computes from another reduction
/// of them.
///
/// Example: the gradient of a softmax, of which the maximum is computed again.
std::vector<bool> nested_reductions(const FusedProgram& fused) {
  const ProgramIndex& index = fused.index;
  const Fusions& fusions = fused.fusions;
  std::vector<bool> result(index.num_ops, false);
  // By value: computed in a kernel from a reduction in it.
  std::vector<bool> is_reduced(index.num_values, false);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Op& op = index.op(i);
    if (fused.aliases.is_bitcast[i] || fusions.is_root(i) || op.results.size() != 1 ||
        op.results[0] == no_value) {
      continue;
    }
    const bool is_row_reduction =
        index.rule(i).work == Work::reduce && !index.rule(i).is_cheap;
    const bool depends = std::any_of(
        op.operands.begin(), op.operands.end(),
        [&](std::int32_t v) { return v != no_value && is_reduced[fused.aliases.of(v)]; });
    is_reduced[op.results[0]] = is_row_reduction || depends;
    if (!is_row_reduction || !depends) continue;
    for (std::int32_t root : fusions.roots[i]) {
      if (fusions.holds_rows[root]) result[root] = true;
    }
  }
  return result;
}

/// Reads of whole rows in kernels where reductions are nested, as often as the compiler reads
/// them; `read` is by kernel, then value.
void repeat_nested_reads(
    const FusedProgram& fused,
    const std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>>&
        read,
    std::int64_t times, std::vector<KernelPart>& parts) {
  const ProgramIndex& index = fused.index;
  const std::vector<bool> is_nested = nested_reductions(fused);
  for (std::size_t first = 0, next = 0; first < read.size(); first = next) {
    const std::int32_t root = std::get<0>(read[first]);
    const double whole = index.elements(index.op(root).results[0]);
    std::vector<std::pair<std::int32_t, std::int32_t>> rows;
    for (next = first; next < read.size() && std::get<0>(read[next]) == root; ++next) {
      const auto& [_, value, op, operand] = read[next];
      const bool is_known = next > first && std::get<1>(read[next - 1]) == value;
      if (!is_known && index.elements(value) >= whole) rows.emplace_back(op, operand);
    }
    if (!is_nested[root] || rows.size() < 2) continue;
    for (const auto& [op, operand] : rows) {
      parts[op].reads[operand] += static_cast<std::int32_t>(times - 1);
    }
  }
}

/// Whether a kernel that ends in the op reduces elements, or writes narrow ones.
bool packs(const ProgramIndex& index, std::int32_t op, const KernelPart& part) {
  const Rule& rule = index.rule(op);
  if (rule.work == Work::reduce) return !rule.is_cheap;
  for (std::size_t k = 0; k < rule.results.size(); ++k) {
    const std::int32_t type = rule.results[k].type;
    const bool is_narrow = type != no_type && index.program.types[type].element_bits < 32;
    if (is_narrow && part.writes[k]) return true;
  }
  return false;
}

/// The first op of each kernel counts what it packs. In the kernel of a matmul, reductions
/// take what is in registers already.
void note_packing(const FusedProgram& fused, const std::vector<std::int32_t>& kernel,
                  std::vector<KernelPart>& parts) {
  const ProgramIndex& index = fused.index;
  std::vector<bool> has_matmul(index.num_ops, false), has_packed(index.num_ops, false);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (index.rule(i).work != Work::matmul) continue;
    for (std::int32_t root : fused.fusions.roots[i]) has_matmul[kernel[root]] = true;
  }
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (!fused.fusions.is_root(i)) {
      // Its kernel counts what it writes.
      if (index.rule(i).work == Work::reduce) parts[i].packs = false;
      continue;
    }
    if (!packs(index, i, parts[i])) continue;
    const std::int32_t first = kernel[i];
    const bool is_on_the_way =
        first != i && has_matmul[first] && index.rule(i).work == Work::reduce;
    parts[i].packs = !is_on_the_way && !has_packed[first];
    if (!is_on_the_way) has_packed[first] = true;
  }
}

/// By root: the op that its kernel is named by.
std::vector<std::int32_t> kernels_of(const FusedProgram& fused, const OpOrder& order,
                                     const Fusion& rules) {
  const ProgramIndex& index = fused.index;
  std::vector<std::int32_t> kernel =
      joint_kernels_of(index, fused.fusions, fused.reads, rules);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (order.matmul[i] != no_op) kernel[i] = kernel[order.matmul[i]];
  }
  return kernel;
}

/// How many kernels compute what is a part of all `roots`.
std::int32_t num_kernels(const std::vector<std::int32_t>& roots,
                         const std::vector<std::int32_t>& kernel) {
  std::set<std::int32_t> found;
  for (std::int32_t root : roots) found.insert(kernel[root]);
  return std::max<std::int32_t>(1, static_cast<std::int32_t>(found.size()));
}

/// By op: how many kernels read each of its operands there first, without `reads_in_each` only
/// the first one of those that compute it; which results are written, and who is launched.
std::vector<KernelPart> parts_of(const FusedProgram& fused,
                                 const std::vector<std::int32_t>& kernel,
                                 const Fusion& rules) {
  const ProgramIndex& index = fused.index;
  std::vector<KernelPart> parts(index.num_ops);
  // By kernel and value, the operands that are read, first op first.
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> read;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const auto& operands = index.op(i).operands;
    const std::vector<std::int32_t>& roots = fused.fusions.roots[i];
    const std::size_t num_roots =
        rules.reads_in_each ? roots.size() : std::min<std::size_t>(roots.size(), 1);
    KernelPart& part = parts[i];
    part.reads.assign(operands.size(), 0);
    for (std::int32_t v : index.op(i).results) {
      // A constant that leaves the program is copied.
      const bool is_stored =
          v != no_value && (!index.is_free(v) || fused.live_outs.argument.contains(v));
      part.writes.push_back(fused.fusions.is_root(i) && is_stored);
    }
    part.is_launched = fused.fusions.is_root(i) && kernel[i] == i;
    part.times = num_kernels(roots, kernel);
    for (std::size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == no_value) continue;
      const std::int32_t value = fused.aliases.of(operands[k]);
      if (!fused.fusions.is_read(index, value, i)) continue;
      const std::int32_t producer = index.producer[value];
      const std::int32_t made = producer == no_op ? no_op : kernel[producer];
      for (std::size_t r = 0; r < num_roots; ++r) {
        if (kernel[roots[r]] == made) continue;
        read.emplace_back(kernel[roots[r]], value, i, static_cast<std::int32_t>(k));
      }
    }
  }
  std::sort(read.begin(), read.end());
  for (std::size_t n = 0; n < read.size(); ++n) {
    const auto& [root, value, op, operand] = read[n];
    const bool is_first =
        n == 0 || std::get<0>(read[n - 1]) != root || std::get<1>(read[n - 1]) != value;
    if (is_first) ++parts[op].reads[operand];
  }
  if (rules.nested_reductions > 1) {
    repeat_nested_reads(fused, read, rules.nested_reductions, parts);
  }
  note_packing(fused, kernel, parts);
  return parts;
}

/// Notes how much larger than their elements the tensors of ops are in memory. Views take
/// values as they lie; what a loop reads or writes of a stack lies as the part alone.
void add_padding(const FusedProgram& fused, const Layout& layout,
                 std::vector<KernelPart>& parts) {
  const ProgramIndex& index = fused.index;
  std::vector<double> least(index.num_values, 1);
  for (std::size_t v = 0; v < index.num_values; ++v) {
    const auto value = static_cast<std::int32_t>(v);
    least[v] = fused.tiles.of_value[v];
    if (least[v] == 1 && !index.is_free(value) && !index.is_argument(value)) {
      const auto& dims = index.dims(static_cast<std::int32_t>(v));
      least[v] = least_padding(std::vector<double>(dims.begin(), dims.end()), layout);
    }
  }
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Rule& rule = index.rule(i);
    const bool is_kept = rule.work == Work::view || rule.work == Work::other;
    const std::vector<double>& of = is_kept ? fused.tiles.of_value : least;
    const auto padding_of = [&](std::int32_t value) {
      return value == no_value ? 1.0 : of[value];
    };
    std::vector<double> padding;
    for (std::int32_t v : index.op(i).operands) padding.push_back(padding_of(v));
    for (std::int32_t v : index.op(i).results) padding.push_back(padding_of(v));
    if (rule.work == Work::indexed && rule.touched_as >= 0) {
      const double part = padding[static_cast<std::size_t>(rule.touched_as)];
      if (!rule.operand_bytes.empty() && rule.operand_bytes[0] >= 0) padding[0] = part;
      if (!rule.result_bytes.empty() && rule.result_bytes[0] >= 0) {
        padding[index.op(i).operands.size()] = part;
      }
    }
    const bool is_padded =
        std::any_of(padding.begin(), padding.end(), [](double more) { return more != 1; });
    if (is_padded) parts[i].padding = std::move(padding);
  }
}

/// What a whole op moves, with what packing takes like bytes.
double bytes_moved(const ProgramIndex& index, std::int32_t op, const KernelPart& part,
                   double packed_bytes) {
  const Op& o = index.op(op);
  const Rule& rule = index.rule(op);
  double bytes = 0;
  const auto add = [&](std::int32_t value, const std::vector<double>& touched, std::size_t k,
                       std::size_t tensor, double times) {
    if (value == no_value || times == 0) return;
    const bool is_part = k < touched.size() && touched[k] >= 0;
    bytes += times * part.padding_of(tensor) * (is_part ? touched[k] : index.bytes[value]);
  };
  for (std::size_t k = 0; k < o.operands.size(); ++k) {
    add(o.operands[k], rule.operand_bytes, k, k, part.reads[k]);
  }
  for (std::size_t k = 0; k < o.results.size(); ++k) {
    add(o.results[k], rule.result_bytes, k, o.operands.size() + k, part.writes[k] ? 1 : 0);
  }
  if (packed_bytes == 0 || !part.packs) return bytes;
  if (rule.work == Work::reduce && o.operands[0] != no_value) {
    bytes += packed_bytes * part.padding_of(0) * index.elements(o.operands[0]);
  }
  for (std::size_t k = 0; k < o.results.size(); ++k) {
    const std::int32_t type = rule.results[k].type;
    const bool is_narrow = type != no_type && index.program.types[type].element_bits < 32;
    if (!part.writes[k] || !is_narrow || o.results[k] == no_value) continue;
    bytes +=
        packed_bytes * part.padding_of(o.operands.size() + k) * index.elements(o.results[k]);
  }
  return bytes;
}

/// Notes which of computing and moving kernels of several ops do longer; their ops are cut
/// alike, so that a device's part of one has the same share of both.
void note_intensities(const FusedProgram& fused, const std::vector<std::int32_t>& kernel,
                      const Compiler& compiler, std::vector<KernelPart>& parts) {
  struct Totals {
    std::int32_t ops = 0;
    bool has_product = false;
    double operations = 0, bytes = 0;
  };
  const ProgramIndex& index = fused.index;
  std::vector<Totals> totals(index.num_ops);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const auto& roots = fused.fusions.roots[i];
    const Rule& rule = index.rule(i);
    const auto share = 1 / static_cast<double>(std::max<std::size_t>(1, roots.size()));
    const double bytes = bytes_moved(index, i, parts[i], compiler.fusion.packed_bytes) * share;
    for (std::int32_t root : roots) {
      Totals& all = totals[kernel[root]];
      ++all.ops;
      all.has_product |= rule.work == Work::matmul || is_kernel(rule.work);
      all.operations += rule.flops * compiler.functions.operations(rule.function);
      all.bytes += bytes;
    }
  }
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const auto& roots = fused.fusions.roots[i];
    if (roots.empty()) continue;
    const Totals& all = totals[kernel[roots[0]]];
    if (all.ops < 2 || all.has_product || all.bytes == 0) continue;
    const double intensity = std::max(1.0, all.operations / all.bytes);
    parts[i].intensity = std::exp2(std::round(4 * std::log2(intensity)) / 4);
  }
}

}  // namespace

ProgramMemory memory_of(const Program& program, const Compiler& compiler) {
  FusedProgram fused = fused_program(program, compiler);
  const OpOrder order = order_of(fused, compiler.fusion);
  ProgramMemory memory;
  const LiveRanges ranges = live_ranges_of(fused, order, compiler.buffers);
  memory.buffers = buffers_of(fused, order, ranges, compiler);
  memory.passes = passes_of(fused.index, ranges, compiler.buffers.filled_stacks);
  memory.num_points = fused.index.num_points;
  memory.live = first_ranges(memory.buffers, fused.index.num_values);
  memory.live_if_stored = ranges_if_stored(fused, order);
  memory.point = points_of(fused, order);
  const std::vector<std::int32_t> kernel = kernels_of(fused, order, compiler.fusion);
  memory.parts = parts_of(fused, kernel, compiler.fusion);
  add_work_in_matmuls(fused, order, compiler, memory.parts);
  add_padding(fused, compiler.layout, memory.parts);
  if (compiler.fusion.overlaps_memory) {
    note_intensities(fused, kernel, compiler, memory.parts);
  }
  for (std::int32_t i = 0; i < fused.index.num_ops; ++i) {
    memory.parts[i].repeat = fused.repeats[i];
  }
  if (compiler.buffers.copies_gathered_arguments) {
    memory.copied_if_gathered = gathered_results(fused, order);
  }
  if (compiler.buffers.window_indices) memory.window_maxima = window_maxima(fused, order);
  memory.passed_on = passed_on(program, order);
  memory.loops = order.loops;
  memory.alias = std::move(fused.aliases.alias);
  memory.padding = std::move(fused.tiles.of_stored);
  return memory;
}

std::int32_t ProgramMemory::end_of_op(const Op& op, std::int32_t point) const {
  std::int32_t end = point + 1;
  for (std::int32_t v : op.results) {
    if (v != no_value) end = std::max(end, live_if_stored[v].last);
  }
  return end;
}

double ProgramMemory::share(const LiveRange& live, std::int32_t value) const {
  return stages > 1 && is_of_all_trips[value] ? 1.0 / stages : share(live);
}

double ProgramMemory::share(const LiveRange& live) const {
  if (stages == 1) return 1;
  if (std::binary_search(of_all_trips.begin(), of_all_trips.end(), live)) return 1.0 / stages;
  const bool is_in_trip = std::any_of(loops.begin(), loops.end(), [&](const LiveRange& loop) {
    return loop.first <= live.first && live.last <= loop.last;
  });
  return is_in_trip ? 1 : 1.0 / stages;
}

}  // namespace autoshard
