#include "memory/stage_shares.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "memory/loop_nest.h"

namespace autoshard {
namespace {

/// Marks what varies from trip to trip: what loops change, and what is made of that.
class Varying {
 public:
  explicit Varying(const Program& program)
      : program_(program), loops_(program), varies_(program.values.size(), false) {
    for (const Loop& loop : program.loops) {
      for (std::size_t k = 0; k < loop.carried.size(); ++k) {
        const std::int32_t yielded = loop.yielded[k];
        if (yielded != no_value && yielded != loop.carried[k]) varies_[loop.carried[k]] = true;
      }
    }
    while (spread()) {
    }
  }

  const std::vector<bool>& values() const { return varies_; }

 private:
  bool varies(std::int32_t value) const { return value == no_value || varies_[value]; }

  bool spread() {
    bool is_more = false;
    const auto mark = [&](std::int32_t value) {
      if (value == no_value || varies_[value]) return;
      varies_[value] = true;
      is_more = true;
    };
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      if (loops_.of_op(static_cast<std::int32_t>(i)) == no_loop) continue;
      const bool is_marked = std::any_of(op.operands.begin(), op.operands.end(),
                                         [&](std::int32_t v) { return varies(v); });
      if (!is_marked) continue;
      for (std::int32_t result : op.results) mark(result);
    }
    for (const Join& join : program_.joins) {
      if (varies(join.source)) mark(join.target);
    }
    return is_more;
  }

  const Program& program_;
  const LoopNest loops_;
  std::vector<bool> varies_;
};

std::vector<LiveRange> outer_loops(const std::vector<LiveRange>& loops) {
  std::vector<LiveRange> sorted = loops, outer;
  std::sort(sorted.begin(), sorted.end(), [](const LiveRange& a, const LiveRange& b) {
    return a.first != b.first ? a.first < b.first : a.last > b.last;
  });
  for (const LiveRange& loop : sorted) {
    if (outer.empty() || loop.last > outer.back().last) outer.push_back(loop);
  }
  return outer;
}

}  // namespace

std::vector<bool> values_of_all_trips(const Program& program) {
  std::vector<bool> found = Varying(program).values();
  found.flip();
  const LoopNest nest(program);
  for (std::size_t l = 0; l < program.loops.size(); ++l) {
    if (nest.parent(static_cast<std::int32_t>(l)) != no_loop) continue;
    for (std::int32_t value : program.loops[l].carried) found[value] = true;
  }
  return found;
}

ProgramMemory of_a_stage(ProgramMemory memory, const Program& program, int stages) {
  memory.stages = stages;
  memory.is_of_all_trips = values_of_all_trips(program);
  memory.loops = outer_loops(memory.loops);
  memory.of_all_trips = memory.loops;
  const LoopNest nest(program);
  for (std::size_t l = 0; l < program.loops.size(); ++l) {
    if (nest.parent(static_cast<std::int32_t>(l)) != no_loop) continue;
    for (std::int32_t value : program.loops[l].carried) {
      memory.of_all_trips.push_back(memory.live[memory.alias[value]]);
    }
  }
  std::sort(memory.of_all_trips.begin(), memory.of_all_trips.end());
  for (Buffer& buffer : memory.buffers) {
    buffer.bytes *= memory.share(buffer.live, buffer.value);
  }
  return memory;
}

}  // namespace autoshard
