#include "memory/stack_copies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace autoshard {
namespace {

/// The bytes of the widest of the types that all readers of a slice convert it to, per byte of
/// the slice; at least 1 if one does not convert it.
double converted_share(const FusedProgram& fused, std::int32_t slice) {
  const ProgramIndex& index = fused.index;
  double narrowest = 1;
  for (const Reader& r : in(fused.uses.readers, slice)) {
    const Op& reader = index.op(r.op);
    const std::int32_t result = reader.results[0];
    const bool converts = index.rule(r.op).work == Work::elementwise &&
                          reader.operands.size() == 1 && result != no_value &&
                          index.elements(result) == index.elements(slice) &&
                          index.bytes[result] < index.bytes[slice];
    if (!converts) return 2;
    narrowest = std::min(narrowest, index.bytes[result] / index.bytes[slice]);
  }
  return narrowest;
}

void add_converted(const FusedProgram& fused, const OpOrder& order,
                   std::vector<Buffer>& copies) {
  const ProgramIndex& index = fused.index;
  std::map<std::pair<std::int32_t, double>, LiveRange> stacks;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const Op& op = index.op(i);
    const bool is_slice = !fused.uses.is_dead[i] && !fused.aliases.is_bitcast[i] &&
                          index.rule(i).work == Work::indexed && index.rule(i).is_cheap &&
                          op.operands[0] != no_value && op.results[0] != no_value;
    if (!is_slice) continue;
    const std::int32_t stack = fused.aliases.of(op.operands[0]);
    const std::int32_t home = index.home(stack);
    std::int32_t outermost = index.loops.of_op(i);
    if (index.is_free(stack) || index.loops.contains(outermost, home)) continue;
    const double share = converted_share(fused, op.results[0]);
    if (share >= 1) continue;
    while (!index.loops.contains(index.loops.parent(outermost), home)) {
      outermost = index.loops.parent(outermost);
    }
    const LiveRange loop = order.loops[outermost];
    const auto [entry, is_new] = stacks.try_emplace({stack, share * index.bytes[stack]}, loop);
    if (is_new) continue;
    entry->second.first = std::min(entry->second.first, loop.first);
    entry->second.last = std::max(entry->second.last, loop.last);
  }
  for (const auto& [key, live] : stacks) copies.push_back({key.first, live, key.second});
}

void add_transposed(const FusedProgram& fused, const OpOrder& order,
                    std::vector<Buffer>& copies) {
  const ProgramIndex& index = fused.index;
  // By loop that leaves stacks in another order.
  std::map<std::int32_t, std::int32_t> largest;
  for (std::size_t s = 0; s < index.slots.size(); ++s) {
    const CarriedSlot& slot = index.slots[s];
    if (!fused.layouts.is_transposed[fused.aliases.yielded[s]]) continue;
    const auto is_in_another_loop = [&](const Reader& reader) {
      const std::int32_t loop = index.loops.of_op(reader.op);
      return !index.loops.contains(slot.loop, loop) && loop != index.loops.parent(slot.loop);
    };
    const auto readers = in(fused.uses.readers, slot.carried);
    if (std::none_of(readers.begin(), readers.end(), is_in_another_loop)) continue;
    const auto [entry, is_new] = largest.try_emplace(slot.loop, slot.carried);
    const bool is_larger = index.bytes[slot.carried] > index.bytes[entry->second];
    if (!is_new && is_larger) entry->second = slot.carried;
  }
  for (const auto& [loop, stack] : largest) {
    const std::int32_t behind = order.loops[loop].last;
    if (behind >= index.num_points) continue;
    copies.push_back({stack, {behind, behind + 1}, index.bytes[stack]});
  }
}

double padded_bytes(const FusedProgram& fused, std::int32_t value) {
  return fused.index.bytes[value] * fused.tiles.of_stored[value];
}

}  // namespace

std::vector<Buffer> end_copies(const FusedProgram& fused, const OpOrder& order) {
  std::vector<Buffer> copies;
  std::set<std::int32_t> updated;
  for (const auto& [value, argument] : fused.live_outs.argument) updated.insert(argument);
  for (const auto& [argument, readers] : fused.layouts.copied_arguments) {
    // A sum over micro-batches: its batch is devices, of which each has one product.
    if (updated.contains(argument)) continue;
    LiveRange live{fused.index.num_points, 0};
    for (const std::int32_t op : readers) {
      for (const std::int32_t root : fused.fusions.roots[op]) {
        live = {std::min(live.first, order.point[root]),
                std::max(live.last, order.point[root] + 1)};
      }
    }
    if (!live.is_empty()) copies.push_back({argument, live, padded_bytes(fused, argument)});
  }
  std::map<std::int32_t, LiveRange> results;
  for (const std::int32_t value : fused.layouts.copied_results) {
    const std::int32_t producer = fused.index.producer[value];
    const auto leaves = fused.live_outs.argument.find(value);
    const bool is_new = leaves != fused.live_outs.argument.end() && leaves->second == no_value;
    if (producer == no_op || !is_new) continue;
    const std::int32_t point = order.point[producer];
    results[value] = {point, point + 1};
  }
  if (results.empty()) return copies;
  for (std::int32_t root = 0; root < fused.index.num_ops; ++root) {
    for (const Read& read : in(fused.reads.by_root, root)) {
      const auto found = results.find(read.value);
      if (found == results.end()) continue;
      found->second.last = std::max(found->second.last, order.point[root] + 1);
    }
  }
  for (const auto& [value, live] : results) {
    copies.push_back({value, live, padded_bytes(fused, value)});
  }
  return copies;
}

std::vector<Buffer> stack_copies(const FusedProgram& fused, const OpOrder& order,
                                 const Layout& rules) {
  std::vector<Buffer> copies;
  if (rules.converted_stacks) add_converted(fused, order, copies);
  if (rules.row_major_stacks) add_transposed(fused, order, copies);
  return copies;
}

}  // namespace autoshard
