#include "memory/op_order.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace autoshard {
namespace {

/// Decides for every op behind which one it can run at the earliest.
class EarliestPlaces {
 public:
  EarliestPlaces(const FusedProgram& fused, const Fusion& rules)
      : fused_(fused),
        index_(fused.index),
        rules_(rules),
        after_(index_.num_ops, 0),
        scalars_(index_.num_ops, 0),
        latest_(index_.program.loops.size() + 1, 0),
        ready_(index_.num_values, 0),
        last_read_(index_.num_values, 0),
        branches_(index_.num_values),
        is_waited_for_(index_.num_values, false),
        is_of_matmul_(index_.num_ops, false),
        matmul_(index_.num_ops, no_op),
        reduced_in_(index_.num_values, no_op) {
    for (std::size_t v = 0; v < index_.num_values; ++v) {
      const auto value = static_cast<std::int32_t>(v);
      if (index_.is_carried(value)) {
        ready_[v] = index_.program.loops[index_.slot_of(value).loop].first_op;
      }
    }
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      if (index_.rule(i).work != Work::matmul) continue;
      for (std::int32_t root : fused.fusions.roots[i]) is_of_matmul_[root] = true;
    }
    for (const Join& join : index_.program.joins) {
      const std::int32_t t = join.target;
      const bool is_result = fused_.aliases.of(t) == t && !index_.is_carried(t) &&
                             !index_.is_argument(t) && index_.producer[t] == no_op;
      if (is_result) branches_[t].push_back(fused_.aliases.of(join.source));
    }
  }

  /// Finds `after` and `matmul`.
  void run() {
    for (std::int32_t i = 0; i < index_.num_ops; ++i) {
      const std::int32_t ready = operands_ready(i);
      after_[i] = fused_.fusions.is_root(i) ? place_root(i, ready) : ready;
      note_results(i);
    }
  }

  /// By op: the op that it moves up behind, at most itself.
  const std::vector<std::int32_t>& after() const { return after_; }
  /// By root: a matmul ends in it.
  const std::vector<bool>& is_of_matmul() const { return is_of_matmul_; }
  /// By root: that of the matmul in whose kernel it is computed, or `no_op`.
  std::vector<std::int32_t> matmul() { return std::move(matmul_); }

 private:
  std::int32_t visible_after(std::int32_t made, std::int32_t home, std::int32_t loop) const;
  std::int32_t operands_ready(std::int32_t i);
  double made_bytes(std::int32_t i, std::int32_t& earliest) const;
  void find_dying(std::int32_t i);
  std::int32_t matmul_of(std::int32_t i, std::int32_t earliest) const;
  bool waits_for_reduction(std::int32_t i, std::int32_t root) const;
  std::int32_t place_root(std::int32_t i, std::int32_t earliest);
  void note_reads(std::int32_t i, std::int32_t after);
  void note_results(std::int32_t i);

  const FusedProgram& fused_;
  const ProgramIndex& index_;
  const Fusion& rules_;
  std::vector<std::int32_t> after_;
  /// The program names the last op that a scalar depends on: any earlier one of the same loop
  /// that makes scalars, or a loop in it, may be another. By op: behind which one all scalars
  /// so far are there; by loop, from `no_loop` on: behind which one those of the loop are.
  std::vector<std::int32_t> scalars_, latest_;
  /// By value: the op behind which it is there, and the one behind which it is read last.
  std::vector<std::int32_t> ready_, last_read_;
  /// By result of a conditional: what the branches make.
  std::vector<std::vector<std::int32_t>> branches_;
  /// By value: a matmul reads it that only gradients wait for.
  std::vector<bool> is_waited_for_;
  std::vector<bool> is_of_matmul_;
  std::vector<std::int32_t> matmul_;
  /// By value: the last of the matmuls' roots on whose kernels' reductions it depends.
  std::vector<std::int32_t> reduced_in_;
  /// Operands that an op is the last to read: behind which op they are read before, and their
  /// bytes.
  std::vector<std::pair<std::int32_t, double>> dying_;
};

/// The op after which what is made after op `made` of loop `home` can be read in `loop`.
std::int32_t EarliestPlaces::visible_after(std::int32_t made, std::int32_t home,
                                           std::int32_t loop) const {
  for (std::int32_t l = home; !index_.loops.contains(l, loop); l = index_.loops.parent(l)) {
    made = std::max(made, index_.program.loops[l].last_op - 1);
  }
  return made;
}

std::int32_t EarliestPlaces::operands_ready(std::int32_t i) {
  const Op& op = index_.op(i);
  const std::int32_t loop = index_.loops.of_op(i);
  std::int32_t earliest = loop == no_loop ? 0 : index_.program.loops[loop].first_op;
  for (std::int32_t operand : op.operands) {
    if (operand == no_value) continue;
    const std::int32_t v = fused_.aliases.of(operand);
    for (std::int32_t source : branches_[v]) {
      ready_[v] =
          std::max(ready_[v], visible_after(ready_[source], index_.home(source), loop));
    }
    earliest = std::max(earliest, visible_after(ready_[v], index_.home(v), loop));
  }
  if (op.after >= 0) {
    earliest = std::max(earliest,
                        visible_after(scalars_[op.after], index_.loops.of_op(op.after), loop));
  }
  return std::min(earliest, i);
}

/// The bytes that root `i` makes besides those of arguments that its results take over; behind
/// the last reader of these, which moves `earliest`.
double EarliestPlaces::made_bytes(std::int32_t i, std::int32_t& earliest) const {
  double made = 0;
  for (std::int32_t v : index_.op(i).results) {
    if (v == no_value) continue;
    const auto leaving = fused_.live_outs.argument.find(v);
    if (leaving == fused_.live_outs.argument.end()) {
      made += index_.bytes[v];
    } else if (leaving->second != no_value) {
      const std::int32_t a = leaving->second;
      if (fused_.reads.last_root[a] > i) made += index_.bytes[v];
      earliest = std::max(earliest, std::min(i, last_read_[a]));
    }
  }
  return made;
}

void EarliestPlaces::find_dying(std::int32_t i) {
  dying_.clear();
  std::int32_t previous = no_value;
  for (const Read& read : in(fused_.reads.by_root, i)) {
    const std::int32_t v = read.value;
    const bool dies = fused_.reads.last_root[v] == i && !index_.is_argument(v) &&
                      index_.home(v) == index_.loops.of_op(i) && v != previous &&
                      !is_waited_for_[v];
    if (dies) dying_.emplace_back(std::min(i, last_read_[v]), index_.bytes[v]);
    previous = v;
  }
  std::sort(dying_.begin(), dying_.end());
}

/// The root of the matmul that computes root `i` on the way: elementwise work on all of what
/// it writes, or a reduction of that, which is there no earlier than all else that `i` reads.
std::int32_t EarliestPlaces::matmul_of(std::int32_t i, std::int32_t earliest) const {
  const Rule& rule = index_.rule(i);
  const bool is_reduction = rule.work == Work::reduce && !rule.is_cheap;
  const bool may_be = rules_.matmul_side_results &&
                      (rule.work == Work::elementwise || is_reduction) &&
                      rule.in_place_operand < 0 && rule.results.size() == 1 &&
                      !is_of_matmul_[i] && !fused_.fusions.holds_rows[i];
  if (!may_be) return no_op;
  const Op& op = index_.op(i);
  const double size = index_.elements(is_reduction ? op.operands[0] : op.results[0]);
  for (const Read& read : in(fused_.reads.by_root, i)) {
    const std::int32_t root = index_.producer[read.value];
    const bool is_it = root != no_op && is_of_matmul_[root] && after_[root] == earliest &&
                       index_.loops.of_op(root) == index_.loops.of_op(i) &&
                       index_.elements(read.value) == size;
    if (is_it && !waits_for_reduction(i, root)) return root;
  }
  return no_op;
}

/// Whether root `i` reads what depends on a reduction in the kernel of a matmul's root.
bool EarliestPlaces::waits_for_reduction(std::int32_t i, std::int32_t root) const {
  const auto reads = in(fused_.reads.by_root, i);
  return std::any_of(reads.begin(), reads.end(),
                     [&](const Read& read) { return reduced_in_[read.value] == root; });
}

/// A root moves up into the kernel of a matmul, to `earliest` or to where enough of its
/// operands are read for the last time; it stays if they are too small. What a reduction makes
/// is so small that others wait for it where it stands.
std::int32_t EarliestPlaces::place_root(std::int32_t i, std::int32_t earliest) {
  matmul_[i] = matmul_of(i, earliest);
  if (matmul_[i] != no_op && index_.rule(i).work != Work::reduce) {
    note_reads(i, earliest);
    return earliest;
  }
  const double made = made_bytes(i, earliest);
  find_dying(i);
  double freed = 0;
  for (const auto& [read_before, bytes] : dying_) {
    if (freed >= made && made > 0) break;
    freed += bytes;
    earliest = std::max(earliest, read_before);
  }
  const std::int32_t after = freed >= made ? earliest : i;
  note_reads(i, after);
  return after;
}

void EarliestPlaces::note_reads(std::int32_t i, std::int32_t after) {
  for (const Read& read : in(fused_.reads.by_root, i)) {
    std::int32_t& last = last_read_[read.value];
    last =
        std::max(last, visible_after(after, index_.loops.of_op(i), index_.home(read.value)));
    if (fused_.fusions.waits[read.op]) is_waited_for_[read.value] = true;
  }
}

void EarliestPlaces::note_results(std::int32_t i) {
  const std::int32_t loop = index_.loops.of_op(i);
  std::int32_t reduced_in = index_.rule(i).work == Work::reduce ? matmul_[i] : no_op;
  for (std::int32_t v : index_.op(i).operands) {
    if (v != no_value) reduced_in = std::max(reduced_in, reduced_in_[fused_.aliases.of(v)]);
  }
  for (std::int32_t v : index_.op(i).results) {
    if (v == no_value) continue;
    ready_[v] = after_[i];
    reduced_in_[v] = std::max(reduced_in_[v], reduced_in);
  }
  for (std::int32_t v : index_.op(i).results) {
    if (v == no_value) latest_[loop + 1] = std::max(latest_[loop + 1], after_[i]);
  }
  scalars_[i] = std::max(after_[i], latest_[loop + 1]);
  for (std::int32_t l = loop; l != no_loop && index_.program.loops[l].last_op == i + 1;) {
    l = index_.loops.parent(l);
    latest_[l + 1] = std::max(latest_[l + 1], i);
  }
}

/// The place of an op: the one that it moves up behind, and of those that do the one behind
/// which it runs. Ops run in the order of their places.
using Place = std::pair<std::int32_t, std::int32_t>;

/// Whether no matmul of its loop waits for root `i`: the gradient of a bias, or a loss.
bool is_leaf(const FusedProgram& fused, const std::vector<bool>& is_of_matmul,
             std::int32_t i) {
  const ProgramIndex& index = fused.index;
  const auto waits = [&](const Reader& reader) {
    const std::vector<std::int32_t>& roots = fused.fusions.roots[reader.op];
    return index.loops.of_op(reader.op) == index.loops.of_op(i) &&
           std::any_of(roots.begin(), roots.end(),
                       [&](std::int32_t root) { return is_of_matmul[root]; });
  };
  const auto& results = index.op(i).results;
  return std::none_of(results.begin(), results.end(), [&](std::int32_t v) {
    if (v == no_value) return false;
    const auto readers = in(fused.uses.readers, fused.aliases.of(v));
    return std::any_of(readers.begin(), readers.end(), waits);
  });
}

/// By op. A kernel of several results runs where the last of them does, and what reads another
/// one after that. One that writes what others compute for themselves, matmuls among them,
/// makes more than it frees: if nothing else waits for it, it runs last.
std::vector<Place> places_of(const FusedProgram& fused, const std::vector<std::int32_t>& after,
                             const std::vector<bool>& is_of_matmul) {
  const ProgramIndex& index = fused.index;
  std::vector<Place> place(index.num_ops);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    place[i] = {fused.fusions.is_root(i) ? after[i] : i, i};
  }
  for (const auto& [stored, readers] : fused.fusions.read_by) {
    const std::int32_t root = fused.fusions.sibling[stored];
    const std::vector<std::int32_t>& roots = fused.fusions.roots[stored];
    const bool is_late = root != no_op && is_leaf(fused, is_of_matmul, root) &&
                         std::any_of(roots.begin(), roots.end(),
                                     [&](std::int32_t other) { return is_of_matmul[other]; });
    if (!is_late) continue;
    const std::int32_t loop = index.loops.of_op(root);
    const std::int32_t end =
        loop == no_loop ? index.num_ops : index.program.loops[loop].last_op;
    place[root] = {end - 1, root};
  }
  // By value: the op that makes it, if that runs in the place of a later one.
  std::vector<std::int32_t> late(index.num_values, no_op);
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (fused.fusions.sibling[i] != no_op) place[i] = place[fused.fusions.sibling[i]];
    for (std::int32_t v : index.op(i).operands) {
      if (v == no_value || fused.fusions.is_recomputed(index, fused.aliases.of(v), i))
        continue;
      const std::int32_t maker = late[fused.aliases.of(v)];
      if (maker != no_op) place[i] = std::max(place[i], place[maker]);
    }
    if (place[i].second == i && place[i].first <= i) continue;
    for (std::int32_t v : index.op(i).results) {
      if (v != no_value) late[v] = i;
    }
  }
  return place;
}

}  // namespace

std::int32_t OpOrder::end_of_read(const LoopNest& nest, std::int32_t point,
                                  std::int32_t reader, std::int32_t home) const {
  std::int32_t end = point + 1;
  for (std::int32_t l = reader; l != no_loop && !nest.contains(l, home); l = nest.parent(l)) {
    end = std::max(end, loops[l].last);
  }
  return end;
}

OpOrder order_of(const FusedProgram& fused, const Fusion& rules) {
  EarliestPlaces earliest(fused, rules);
  earliest.run();
  const std::vector<Place> place = places_of(fused, earliest.after(), earliest.is_of_matmul());
  std::vector<std::int32_t> order(place.size());
  std::iota(order.begin(), order.end(), 0);
  // Where a kernel has several results, those that are first in the program take what is left.
  const auto is_younger = [&](std::int32_t i) { return place[i].second != i; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(place[a], is_younger(a)) < std::pair(place[b], is_younger(b));
  });
  OpOrder result;
  result.matmul = earliest.matmul();
  result.point.resize(order.size());
  for (std::size_t p = 0; p < order.size(); ++p) {
    result.point[order[p]] = static_cast<std::int32_t>(p);
  }
  for (const Loop& loop : fused.index.program.loops) {
    LiveRange points{loop.first_op, loop.last_op};
    if (loop.first_op < loop.last_op) points = {result.point[loop.first_op], 0};
    for (std::int32_t i = loop.first_op; i < loop.last_op; ++i) {
      points.first = std::min(points.first, result.point[i]);
      points.last = std::max(points.last, result.point[i] + 1);
    }
    result.loops.push_back(points);
  }
  return result;
}

}  // namespace autoshard
