#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "bindings/bindings.h"
#include "recomputation/block.h"
#include "recomputation/clones.h"
#include "recomputation/effects.h"
#include "recomputation/fetches.h"
#include "recomputation/host_link.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace autoshard {

using recomputation::Answer;
using recomputation::Batch;
using recomputation::Block;
using recomputation::CloneRules;
using recomputation::Clones;
using recomputation::Dropped;
using recomputation::Effect;
using recomputation::Effects;
using recomputation::Fate;
using recomputation::Fetch;
using recomputation::Gap;
using recomputation::HostLink;
using recomputation::LinkedBlock;
using recomputation::LoopOps;
using recomputation::LoopSeconds;
using recomputation::LoopTransfer;
using recomputation::Member;
using recomputation::Op;
using recomputation::StackChanges;
using recomputation::Storage;
using recomputation::Timetable;
using recomputation::Transfer;
using recomputation::Use;
using recomputation::Value;

namespace {

using Ints = std::vector<std::int32_t>;
using Doubles = std::vector<double>;
using Pairs = std::vector<std::pair<std::int32_t, double>>;
/// A loop by its first op and the one behind its last, and seconds.
using OfLoops = std::vector<std::pair<std::pair<std::int32_t, std::int32_t>, double>>;
using InLoops = std::vector<std::pair<std::pair<std::int32_t, std::int32_t>, Transfer>>;

constexpr std::size_t max_ops = std::numeric_limits<std::int32_t>::max();

void check_between(std::int64_t number, std::int64_t least, std::size_t end) {
  if (number < least || number >= static_cast<std::int64_t>(end)) {
    throw nb::value_error("a number is out of range");
  }
}

void check_in(std::span<const std::int32_t> numbers, std::size_t size) {
  for (const std::int32_t number : numbers) check_between(number, 0, size);
}

/// A point of the program, or the one behind the last.
void check_point(const Block& block, std::int32_t point) {
  check_between(point, 0, static_cast<std::size_t>(block.num_points) + 1);
}

void add_op(Block& block, Op op, const Ints& operands, const Ints& results) {
  check_point(block, op.point);
  check_point(block, op.ready);
  const auto position = static_cast<std::int32_t>(block.ops.size());
  check_in(operands, block.values.size());
  check_in(results, block.values.size());
  for (const std::int32_t number : results) {
    if (block.values[number].maker != position) throw nb::value_error("not made by this op");
  }
  for (const std::int32_t number : operands) {
    if (block.values[number].maker >= position)
      throw nb::value_error("read before it is made");
    Ints& readers = block.readers[number];
    if (readers.empty() || readers.back() != position) readers.push_back(position);
  }
  block.ops.push_back(op);
  block.operands.set(position, operands);
  block.results.set(position, results);
  recomputation::set_sources(block, position);
}

template <recomputation::Rows Block::* rows>
Ints numbers_at(const Block& block, std::int32_t position) {
  check_between(position, 0, block.ops.size());
  const auto numbers = (block.*rows)[position];
  return {numbers.begin(), numbers.end()};
}

void check_dropped(const Block& block, const Dropped& one) {
  check_between(one.number, 0, block.values.size());
  check_in(block.demanders[one.number], block.ops.size());
  check_between(block.values[one.number].maker, 0, block.ops.size());
  check_between(one.late, 0, block.ops.size());
  check_between(one.early, -1, block.ops.size());
  check_point(block, one.middle);
}

Clones clones_for(const Block& block, const std::vector<Dropped>& dropped,
                  const std::vector<Dropped>& sent, bool keep_sent, bool keep_parameters) {
  for (const Dropped& one : dropped) check_dropped(block, one);
  for (const Dropped& one : sent) check_dropped(block, one);
  return recomputation::clones_for(block, dropped, sent,
                                   CloneRules{keep_sent, keep_parameters});
}

void check_start(const Doubles& start) {
  if (start.empty() || !std::is_sorted(start.begin(), start.end())) {
    throw nb::value_error("start is empty, or falls");
  }
}

void check_transfer(const Transfer& one, std::size_t num_ops) {
  check_between(one.begins, 0, num_ops + 1);
  check_between(one.needed, one.begins, num_ops + 1);
}

Timetable timetable(const Doubles& start, const std::vector<Transfer>& transfers) {
  check_start(start);
  for (const Transfer& one : transfers) check_transfer(one, start.size() - 1);
  return recomputation::timetable(start, transfers);
}

LoopOps loop_of(const HostLink& link, std::pair<std::int32_t, std::int32_t> ops) {
  check_between(ops.second, 0, link.num_ops() + 1);
  check_between(ops.first, 0, ops.second + 1);
  return {ops.first, ops.second};
}

std::vector<LoopSeconds> of_loops(const HostLink& link, const OfLoops& all) {
  std::vector<LoopSeconds> found;
  for (const auto& [ops, seconds] : all) found.push_back({loop_of(link, ops), seconds});
  return found;
}

std::vector<LoopTransfer> in_loops(const HostLink& link, const InLoops& all) {
  std::vector<LoopTransfer> found;
  for (const auto& [ops, transfer] : all) {
    const LoopOps loop = loop_of(link, ops);
    check_between(transfer.begins, loop.first, loop.last + 1);
    check_between(transfer.needed, transfer.begins, loop.last + 1);
    found.push_back({loop, transfer});
  }
  return found;
}

using Loop = std::optional<std::pair<std::int32_t, std::int32_t>>;

/// A link with what a program sends.
HostLink link_of(Doubles busy, const std::vector<std::pair<std::int32_t, std::int32_t>>& loops,
                 const InLoops& moved, const std::vector<Transfer>& transfers,
                 double slowdown) {
  if (!(slowdown >= 1)) throw nb::value_error("slowdown is below 1");
  const HostLink ops(busy, {});
  std::vector<LoopOps> checked;
  for (const auto& loop : loops) checked.push_back(loop_of(ops, loop));
  HostLink link(std::move(busy), std::move(checked), slowdown);
  for (const LoopTransfer& one : in_loops(link, moved)) link.add(one);
  for (const Transfer& one : transfers) {
    check_transfer(one, link.num_ops());
    link.add(one);
  }
  return link;
}

LinkedBlock linked_block(const Block& block, HostLink link, Ints op_at, Loop loop) {
  if (op_at.size() != block.ops.size() + 1 || !std::is_sorted(op_at.begin(), op_at.end())) {
    throw nb::value_error("op_at is not that of the block");
  }
  check_in(op_at, static_cast<std::size_t>(link.num_ops()) + 1);
  std::optional<LoopOps> checked;
  if (loop) checked = loop_of(link, *loop);
  return {std::move(link), std::move(op_at), checked};
}

std::span<const Fate> fates_of(const Effects& effects, const nb::bytes& fates) {
  const auto* first = static_cast<const std::uint8_t*>(fates.data());
  if (fates.size() != effects.num_members()) throw nb::value_error("not a fate of each value");
  const auto last = static_cast<std::uint8_t>(effects.is_linked() ? Fate::host : Fate::again);
  for (std::size_t at = 0; at < fates.size(); ++at) {
    if (first[at] > last) throw nb::value_error("a fate is not known, or there is no link");
  }
  return {reinterpret_cast<const Fate*>(first), fates.size()};
}

template <typename Object>
nb::ndarray<nb::numpy, const double, nb::ndim<1>> array_of(const Object& owner,
                                                           const Doubles& numbers) {
  return {numbers.data(), {numbers.size()}, nb::find(owner)};
}

void bind_host_link(nb::module_& module) {
  nb::class_<Transfer>(module, "Transfer", "One value that is sent over the link to the host.")
      .def(
          "__init__",
          [](Transfer* self, double seconds, std::int32_t begins, std::int32_t needed) {
            new (self) Transfer{seconds, begins, needed};
          },
          "seconds"_a, "begins"_a, "needed"_a)
      .def_ro("seconds", &Transfer::seconds, "What it takes if the link sends nothing else.")
      .def_ro("begins", &Transfer::begins, "Number of the op before which it may begin.")
      .def_ro("needed", &Transfer::needed,
              "Number of the op that waits for it; the number of ops: only the end does.");

  nb::class_<Timetable>(module, "Timetable", "When transfers are over.")
      .def_ro("waited", &Timetable::waited, "Seconds in which no op runs, all together.")
      .def_ro("over", &Timetable::over,
              "For each transfer the number of the first op that runs when it is over.");

  module.def("timetable", &timetable, "start"_a, "transfers"_a,
             "Send all transfers beside the ops; see passes/recomputation/host_link.h.");

  nb::class_<HostLink>(module, "HostLink",
                       "The link to the host; see passes/recomputation/host_link.h.")
      .def(
          "__init__",
          [](HostLink* self, Doubles busy,
             const std::vector<std::pair<std::int32_t, std::int32_t>>& loops,
             const InLoops& moved, const std::vector<Transfer>& transfers, double slowdown) {
            new (self) HostLink(link_of(std::move(busy), loops, moved, transfers, slowdown));
          },
          "busy"_a, "loops"_a, "moved"_a, "transfers"_a, nb::kw_only(), "slowdown"_a = 1.0)
      .def_prop_ro("is_used", &HostLink::is_used, "Is anything sent?")
      .def(
          "delay", [](const HostLink& link) { return link.delay(); },
          "Seconds that a step is longer: those waited, and what ops beside transfers take "
          "more.");
}

void bind_effects(nb::module_& module) {
  nb::class_<LinkedBlock>(module, "LinkedBlock",
                          "A block beside the link to the host; see "
                          "passes/recomputation/fetches.h.")
      .def(
          "__init__",
          [](LinkedBlock* self, const Block& block, const HostLink& link, Ints op_at,
             Loop loop) {
            new (self) LinkedBlock(linked_block(block, link, std::move(op_at), loop));
          },
          "block"_a, "link"_a, "op_at"_a, "loop"_a.none());

  nb::class_<Fetch>(module, "Fetch", "One value that is on the host for a while.")
      .def_ro("number", &Fetch::number, "Number of the value in the block.")
      .def_ro("gone", &Fetch::gone,
              "Position of the op before which it has left the memory of the device.")
      .def_ro("back", &Fetch::back,
              "Position of the op before which the link begins to bring it back.");

  nb::class_<StackChanges>(module, "StackChanges",
                           "What is decided about stacks; see passes/recomputation/effects.h.")
      .def(
          "__init__",
          [](StackChanges* self, const Block& block, const std::optional<LinkedBlock>& linked,
             double seconds, Pairs change, const InLoops& moved, const OfLoops& computed) {
            for (const auto& [point, bytes] : change) check_point(block, point);
            if (!linked && !moved.empty()) throw nb::value_error("there is no link");
            StackChanges made{seconds, std::move(change)};
            if (linked) {
              made.moved = in_loops(linked->link, moved);
              made.computed = of_loops(linked->link, computed);
            }
            new (self) StackChanges(std::move(made));
          },
          "block"_a, "linked"_a.none(), "seconds"_a, "change"_a, "moved"_a, "computed"_a);

  nb::class_<Effect>(module, "Effect", "What decisions do, and what is written for them.")
      .def_prop_ro(
          "excess", [](const Effect& self) { return self.answer.excess; },
          "Bytes above the limit, over all points of the program.")
      .def_prop_ro(
          "seconds", [](const Effect& self) { return self.answer.seconds; },
          "What they add to a step.")
      .def_prop_ro(
          "live", [](const Effect& self) { return array_of(self, self.live); },
          "Bytes on one device at each point.")
      .def_ro("clones", &Effect::clones)
      .def_ro("fetches", &Effect::fetches);

  nb::class_<Effects>(module, "Effects",
                      "Answers for all sets of decisions about the same values; see "
                      "passes/recomputation/effects.h.")
      .def(
          "__init__",
          [](Effects* self, const Block& block, Doubles live, double limit,
             const std::vector<Dropped>& members, const Doubles& send_seconds,
             const std::optional<LinkedBlock>& linked, bool keep_sent, bool keep_parameters) {
            if (live.size() != static_cast<std::size_t>(block.num_points) ||
                members.size() != send_seconds.size()) {
              throw nb::value_error("lists do not have one number for each");
            }
            std::vector<Member> all;
            for (std::size_t at = 0; at < members.size(); ++at) {
              check_dropped(block, members[at]);
              all.push_back({members[at], send_seconds[at]});
            }
            new (self) Effects(block, std::move(live), limit,
                               CloneRules{keep_sent, keep_parameters}, std::move(all), linked);
          },
          "block"_a, "live"_a, "limit"_a, "members"_a, "send_seconds"_a, "linked"_a.none(),
          nb::kw_only(), "keep_sent"_a, "keep_parameters"_a, nb::keep_alive<1, 2>())
      .def(
          "effect",
          [](const Effects& self, const nb::bytes& fates, const StackChanges& stacks) {
            return self.effect(fates_of(self, fates), stacks);
          },
          "fates"_a, "stacks"_a, "Fates of all values: 0 kept, 1 again, 2 to the host.")
      .def(
          "answer",
          [](const Effects& self, const nb::bytes& fates, const StackChanges& stacks) {
            const Answer found = self.answer(fates_of(self, fates), stacks);
            return std::pair(found.excess, found.seconds);
          },
          "fates"_a, "stacks"_a, "The same: bytes above the limit, and seconds alone.")
      .def(
          "least_excess",
          [](const Effects& self, const nb::bytes& fates) {
            return self.least_excess(fates_of(self, fates));
          },
          "fates"_a, "Bytes above the limit of that answer's at least, without stacks.");
}

}  // namespace

void bind_recomputation(nb::module_& module) {
  nb::enum_<Storage>(module, "Storage", "Where a value is while others wait to read it.")
      .value("KEPT", Storage::kept,
             "In memory, whatever is chosen: arguments, results, scalars, what loops make.")
      .value("STORED", Storage::stored, "In memory, unless it is dropped and computed again.")
      .value("FUSED", Storage::fused, "Nowhere: the fusion that reads it computes it.")
      .value("FREE", Storage::free, "Nowhere: made of constants.");

  nb::class_<Value>(module, "BlockValue", "A value of a block.")
      .def_ro("maker", &Value::maker, "Position of the op that makes it; -1: an argument.")
      .def_ro("storage", &Value::storage)
      .def_ro("bytes", &Value::bytes, "In the memory of one device.")
      .def_ro("end", &Value::end, "Point from which its memory is free.")
      .def_ro("is_parameter", &Value::is_parameter, "Is it made of parameters alone?")
      .def_ro("in_program", &Value::in_program, "Its number in the program; -1: none.")
      .def_ro("matmul", &Value::matmul,
              "Position of the matmul that it is stored for, if that is not its maker; else "
              "-1.");

  nb::class_<Op>(module, "BlockOp", "An op of a block.")
      .def_ro("point", &Op::point)
      .def_ro("seconds", &Op::seconds, "Seconds of all its runs, with what it sends.")
      .def_ro("sends", &Op::sends, "Is its result sent between devices?")
      .def_ro("gathers", &Op::gathers, "Is something made of parameters alone sent for it?")
      .def_ro("in_module", &Op::in_module)
      .def_ro("in_program", &Op::in_program, "Its number in the program; -1: none.");

  nb::class_<Block>(module, "RecomputedBlock",
                    "The ops of a block as numbers; see passes/recomputation/block.h.")
      .def(
          "__init__",
          [](Block* self, std::int32_t num_points) {
            if (num_points < 0) throw nb::value_error("num_points is negative");
            new (self) Block{{}, {}, num_points};
          },
          "num_points"_a)
      .def(
          "add_value",
          [](Block& block, std::int32_t maker, Storage storage, double bytes, std::int32_t end,
             const Ints& demanders, bool is_counted, bool is_parameter) {
            check_between(maker, storage == Storage::fused ? 0 : -1, max_ops);
            check_point(block, end);
            const auto number = static_cast<std::int32_t>(block.values.size());
            block.values.push_back({maker, end, bytes, storage, is_counted, is_parameter});
            block.readers.emplace_back();
            block.demanders.set(number, demanders);
            block.sources.set(number, {});
          },
          "maker"_a, "storage"_a, "bytes"_a, "end"_a, "demanders"_a, nb::kw_only(),
          "is_counted"_a, "is_parameter"_a, "All of them come before the first op.")
      .def(
          "add_op",
          [](Block& block, const Ints& operands, const Ints& results, std::int32_t point,
             std::int32_t ready, double seconds, bool sends, bool gathers) {
            add_op(block, {point, ready, seconds, sends, gathers}, operands, results);
          },
          "operands"_a, "results"_a, "point"_a, "ready"_a, "seconds"_a, nb::kw_only(),
          "sends"_a, "gathers"_a, "In the order of the block.")
      .def_prop_ro("num_values", [](const Block& block) { return block.values.size(); })
      .def_prop_ro(
          "captured",
          [](const Block& block) {
            Ints numbers;
            for (std::size_t at = block.num_arguments; at < block.values.size(); ++at) {
              if (block.values[at].maker < 0) numbers.push_back(static_cast<std::int32_t>(at));
            }
            return numbers;
          },
          "Values that are made outside of the block.")
      .def(
          "value",
          [](const Block& block, std::int32_t number) -> const Value& {
            check_between(number, 0, block.values.size());
            return block.values[number];
          },
          "number"_a, nb::rv_policy::reference_internal)
      .def(
          "op",
          [](const Block& block, std::int32_t position) -> const Op& {
            check_between(position, 0, block.ops.size());
            return block.ops[position];
          },
          "position"_a, nb::rv_policy::reference_internal)
      .def_prop_ro(
          "ops_in_module",
          [](const Block& block) {
            Ints numbers;
            for (const Op& op : block.ops) numbers.push_back(op.in_module);
            return numbers;
          },
          "The number of each op in the module.")
      .def_prop_ro(
          "ops_in_program",
          [](const Block& block) {
            Ints numbers;
            for (const Op& op : block.ops) numbers.push_back(op.in_program);
            return numbers;
          },
          "The same in the program; -1: it is none there.")
      .def("operands", numbers_at<&Block::operands>, "position"_a,
           "Values that an op reads, those its regions read behind its own.")
      .def("results", numbers_at<&Block::results>, "position"_a)
      .def(
          "readers",
          [](const Block& block, std::int32_t number) {
            check_between(number, 0, block.values.size());
            return block.readers[number];
          },
          "number"_a, "Positions, in order, each once.")
      .def(
          "gaps",
          [](const Block& block, const Ints& stays) {
            std::int32_t most = -1;
            for (const Value& value : block.values) most = std::max(most, value.in_program);
            std::vector<bool> is_kept(most + 1);
            for (const std::int32_t value : stays) {
              if (value >= 0 && value <= most) is_kept[value] = true;
            }
            return recomputation::gaps_of(block, is_kept);
          },
          "stays"_a,
          "Values that may go while they wait, but for these of the program; see "
          "passes/recomputation/block.h.");

  nb::class_<Dropped>(module, "Dropped",
                      "A value that is not kept between two of its readers, by positions.")
      .def(
          "__init__",
          [](Dropped* self, std::int32_t number, std::int32_t early, std::int32_t late,
             std::int32_t middle) { new (self) Dropped{number, early, late, middle}; },
          "number"_a, nb::kw_only(), "early"_a, "late"_a, "middle"_a)
      .def_ro("number", &Dropped::number)
      .def_ro("early", &Dropped::early, "The last reader before, or the maker.")
      .def_ro("late", &Dropped::late, "The first reader behind.")
      .def_ro("middle", &Dropped::middle, "The point half way.");

  nb::class_<Gap>(module, "Gap", "The longest stretch in which a value only waits.")
      .def_ro("value", &Gap::value)
      .def_ro("first", &Gap::first, "The first point of the program at which it waits.")
      .def_ro("end", &Gap::end, "The point at which it is read again.");

  nb::class_<Batch>(module, "Batch", "Ops that run again before one reader.")
      .def_ro("position", &Batch::position, "Position of the reader.")
      .def_ro("ops", &Batch::ops,
              "Positions of the originals, in the order in which the copies run; none if the "
              "reader finds all it needs among earlier copies.")
      .def_ro("inputs", &Batch::inputs, "Values from memory that they read.");

  nb::class_<Use>(module, "HostUse", "When a value on the host is read behind its gap.")
      .def_ro("number", &Use::number)
      .def_ro(
          "first", &Use::first,
          "Position of the first op that reads it, or before which copies do that read it.")
      .def_ro("end", &Use::end, "Point from which nobody reads it any more.");

  nb::class_<Clones>(module, "Clones",
                     "Ops that run again for one set of dropped values, and what they change.")
      .def_ro("batches", &Clones::batches)
      .def_ro("seconds", &Clones::seconds,
              "Seconds of all ops that run again, less those that nobody needs any more.")
      .def_prop_ro(
          "change", [](const Clones& self) { return array_of(self, self.change); },
          "Bytes that live more on a device from each point on.")
      .def_ro("uses", &Clones::uses, "Values on the host meanwhile that are read again.")
      .def_ro(
          "last_read", &Clones::last_read,
          "For each value the position of the last op that needs it where it was made; -1: "
          "none.")
      .def(
          "anchors",
          [](const Clones& clones, const Block& block, std::int32_t reader,
             std::int32_t newest, std::int32_t below) {
            check_between(newest, -1, block.ops.size());
            check_between(below, 0, block.ops.size() + 1);
            if (clones.last_read.size() != block.values.size()) {
              throw nb::value_error("another block, or without batches");
            }
            return recomputation::anchors(block, clones, reader, newest, below);
          },
          "block"_a, "reader"_a, "newest"_a, "below"_a,
          "Values that the op at `reader` finds in memory and that are still needed; see "
          "passes/recomputation/clones.h.");

  module.def("clones_for", &clones_for, "block"_a, "dropped"_a, "sent"_a, nb::kw_only(),
             "keep_sent"_a, "keep_parameters"_a,
             "What has to run again; see passes/recomputation/clones.h.");

  bind_host_link(module);
  bind_effects(module);
}

}  // namespace autoshard
