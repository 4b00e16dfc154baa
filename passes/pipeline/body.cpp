#include "pipeline/body.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace autoshard::pipeline {

using importer::Block;
using importer::ModuleStructure;
using importer::OpStructure;

Ops::Ops(const ModuleStructure& of, const Describe& describe)
    : module(of),
      describe_(describe),
      kinds_(of.num_classes),
      is_described_(of.num_classes),
      owner_(of.num_values, -1) {
  for (std::size_t op = 0; op < of.ops.size(); ++op) {
    const OpStructure& read = of.ops[op];
    for (std::int32_t k = 0; k < read.num_results; ++k) {
      owner_[read.first_result + k] = static_cast<std::int32_t>(op);
    }
    for (std::int32_t r = 0; r < read.num_regions; ++r) {
      const Block& block = of.regions[read.first_region + r];
      for (std::int32_t k = 0; k < block.num_arguments; ++k) {
        owner_[block.first_argument + k] = static_cast<std::int32_t>(op);
      }
    }
  }
}

const OpKind& Ops::kind(std::int32_t op) {
  const std::int32_t number = module.ops[op].op_class;
  if (!is_described_[number]) {
    kinds_[number] = describe_(op);
    is_described_[number] = true;
  }
  return kinds_[number];
}

std::vector<std::int32_t> Ops::ops_of(const Block& block) const {
  std::vector<std::int32_t> found;
  for (std::int32_t op = block.first_op; op < block.last_op; op = module.ops[op].end) {
    found.push_back(op);
  }
  return found;
}

std::vector<std::int32_t> Ops::operands(std::int32_t op) const {
  const auto first = module.operands.begin() + module.ops[op].first_operand;
  return {first, first + module.ops[op].num_operands};
}

std::vector<std::int32_t> Ops::reads(std::int32_t op) const {
  std::vector<std::int32_t> found;
  for (std::int32_t inner = op; inner < module.ops[op].end; ++inner) {
    const OpStructure& read = module.ops[inner];
    for (std::int32_t k = 0; k < read.num_operands; ++k) {
      const std::int32_t value = module.operands[read.first_operand + k];
      if (owner_[value] < op) found.push_back(value);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

namespace {

using Bits = std::vector<std::uint64_t>;

/// Reads the body of the loop.
class Reader {
 public:
  Reader(Ops& ops, const Loop& loop, const std::vector<double>& seconds)
      : ops_(ops),
        loop_(loop),
        seconds_(seconds),
        module_(ops.module),
        block_(module_.regions[module_.ops[loop.op].first_region + 1]),
        index_(module_.ops[loop.op].end - loop.op, -1) {
    body_.ops = ops.ops_of(block_);
    for (std::size_t k = 0; k < body_.ops.size(); ++k) {
      index_[body_.ops[k] - loop.op] = static_cast<std::int32_t>(k);
      body_.reads.push_back(ops.reads(body_.ops[k]));
    }
  }

  Body read() {
    find_light();
    make_nodes();
    make_values();
    find_forward();
    return std::move(body_);
  }

 private:
  /// Number in the body of the op that makes a value; -1: an argument of the body.
  std::int32_t maker(std::int32_t value) const {
    const std::int32_t owner = ops_.owner(value);
    return owner <= loop_.op ? -1 : index_[owner - loop_.op];
  }
  std::int32_t argument(std::int32_t value) const { return value - block_.first_argument; }
  bool is_passed_on(std::int32_t argument) const {
    const std::int32_t end = module_.ops[block_.last_op].first_operand;
    return module_.operands[end + argument] == block_.first_argument + argument;
  }

  void find_light();
  void make_nodes();
  void make_values();
  void find_forward();
  std::vector<Bits> weights_read();
  std::vector<char> ancestors(std::int32_t op) const;

  Ops& ops_;
  const Loop& loop_;
  const std::vector<double>& seconds_;
  const ModuleStructure& module_;
  const Block& block_;
  std::vector<std::int32_t> index_;
  std::vector<char> is_light_;
  Body body_;
};

void Reader::find_light() {
  const std::size_t count = body_.ops.size();
  is_light_.assign(count, 0);
  body_.is_free.assign(count, 0);
  for (std::size_t k = 0; k < count; ++k) {
    const OpKind& kind = ops_.kind(body_.ops[k]);
    bool is_light = (kind.is_light || kind.is_free) && kind.mark < 0, is_free = is_light;
    for (const std::int32_t value : body_.reads[k]) {
      const std::int32_t from = maker(value);
      is_light &= from >= 0 ? is_light_[from]
                            : argument(value) == 0 || is_passed_on(argument(value));
      is_free &= from >= 0 && body_.is_free[from];
    }
    is_light_[k] = is_light;
    body_.is_free[k] = is_free && (kind.is_free || kind.is_view);
  }
}

void Reader::make_nodes() {
  Line& line = body_.line;
  body_.node.assign(body_.ops.size(), -1);
  for (std::size_t k = 0; k < body_.ops.size(); ++k) {
    if (is_light_[k]) continue;
    const OpKind& kind = ops_.kind(body_.ops[k]);
    body_.node[k] = line.size();
    line.mark.push_back(kind.mark);
    line.is_unit.push_back(kind.is_heavy || kind.mark >= 0);
    line.seconds.push_back(seconds_[body_.ops[k]]);
  }
  line.is_forward.assign(line.size(), 0);
  line.reads.resize(line.size());
  line.makes.resize(line.size());
}

void Reader::make_values() {
  Line& line = body_.line;
  std::vector<std::int32_t> value_of(module_.num_values, -1);
  const auto reach = [&](std::int32_t value, double bytes, std::int32_t reader) {
    if (value_of[value] < 0) {
      const std::int32_t from = maker(value);
      value_of[value] = static_cast<std::int32_t>(line.values.size());
      line.values.push_back({bytes, from < 0 ? -1 : body_.node[from], {}});
      if (from >= 0) line.makes[body_.node[from]].push_back(value_of[value]);
    }
    Value& made = line.values[value_of[value]];
    if (!made.readers.empty() && made.readers.back() == reader) return;
    made.readers.push_back(reader);
    line.reads[reader].push_back(value_of[value]);
  };
  // What is known before the loop goes once a step, and its gradient goes back.
  const double once = 2.0 / static_cast<double>(loop_.micro_batches);
  std::vector<std::vector<std::int32_t>> through(body_.ops.size());
  constexpr std::size_t most = 4;  // of a longer list nothing large is to be expected
  for (std::size_t k = 0; k < body_.ops.size(); ++k) {
    const std::int32_t reader = body_.node[k];
    for (const std::int32_t value : body_.reads[k]) {
      const std::int32_t from = maker(value);
      if (from >= 0 && !is_light_[from]) {
        reach(value, ops_.bytes(value), reader);
        continue;
      }
      const std::vector<std::int32_t> own{value};
      const std::vector<std::int32_t>& arguments = from < 0 ? own : through[from];
      for (const std::int32_t given : arguments) {
        if (argument(given) == 0) continue;
        if (reader >= 0) {
          reach(given, once * loop_.argument_bytes[argument(given)], reader);
        } else if (through[k].size() < most) {
          through[k].push_back(given);
        }
      }
    }
  }
}

/// By op of the body: which arguments of `main` lead to it that a heavy op reads, directly or
/// through ops that are none of the line.
std::vector<Bits> Reader::weights_read() {
  const Block& main = module_.regions[module_.ops[loop_.main].first_region];
  const std::size_t words = (main.num_arguments + 63) / 64;
  std::vector<Bits> before(loop_.op, Bits());  // by op of `main`
  const auto add = [&](Bits& bits, const Bits& more) {
    for (std::size_t w = 0; w < more.size(); ++w) bits[w] |= more[w];
  };
  const auto of_main = [&](std::int32_t value, Bits& bits) {
    const std::int32_t owner = ops_.owner(value);
    if (owner == loop_.main) {
      const std::int32_t number = value - main.first_argument;
      bits[number / 64] |= std::uint64_t{1} << (number % 64);
    } else {
      add(bits, before[owner]);
    }
  };
  for (const std::int32_t op : ops_.ops_of(main)) {
    if (op >= loop_.op) break;
    before[op].assign(words, 0);
    for (const std::int32_t value : ops_.reads(op)) of_main(value, before[op]);
  }
  const std::vector<std::int32_t> given = ops_.operands(loop_.op);
  std::vector<Bits> read(body_.ops.size(), Bits(words, 0)), light(read);
  Bits weights(words, 0);
  for (std::size_t k = 0; k < body_.ops.size(); ++k) {
    Bits near(words, 0);
    for (const std::int32_t value : body_.reads[k]) {
      const std::int32_t from = maker(value);
      if (from < 0) {
        of_main(given[argument(value)], near);
      } else {
        add(read[k], read[from]);
        if (is_light_[from]) add(near, light[from]);
      }
    }
    if (is_light_[k]) light[k] = near;
    if (ops_.kind(body_.ops[k]).is_heavy) add(weights, near);
    add(read[k], near);
  }
  if (std::any_of(weights.begin(), weights.end(), [](std::uint64_t w) { return w != 0; })) {
    for (Bits& bits : read) {
      for (std::size_t w = 0; w < words; ++w) bits[w] &= weights[w];
    }
  }
  return read;
}

std::vector<char> Reader::ancestors(std::int32_t op) const {
  std::vector<char> found(body_.ops.size(), 0);
  std::vector<std::int32_t> waiting{op};
  found[op] = 1;
  while (!waiting.empty()) {
    const std::int32_t next = waiting.back();
    waiting.pop_back();
    for (const std::int32_t value : body_.reads[next]) {
      const std::int32_t from = maker(value);
      if (from < 0 || found[from]) continue;
      found[from] = 1;
      waiting.push_back(from);
    }
  }
  return found;
}

/// Of what leaves the loop the loss is what is made of the most weights with the fewest ops:
/// all gradients are made of what it is made of, and of more. Weights that do not lead to it
/// have a loss of their own.
void Reader::find_forward() {
  const std::vector<Bits> read = weights_read();
  std::vector<std::int32_t> leaving;
  for (std::int32_t k = 1; k < block_.num_arguments; ++k) {
    const std::int32_t value = module_.operands[module_.ops[block_.last_op].first_operand + k];
    const std::int32_t from = maker(value);
    if (!is_passed_on(k) && from >= 0 && !is_light_[from]) leaving.push_back(from);
  }
  std::sort(leaving.begin(), leaving.end());
  Bits left(read.empty() ? 0 : read[0].size(), ~std::uint64_t{0});
  for (;;) {
    const auto gain = [&](std::int32_t op) {
      int bits = 0;
      for (std::size_t w = 0; w < left.size(); ++w) bits += std::popcount(left[w] & read[op][w]);
      return bits;
    };
    int most = 0;
    for (const std::int32_t op : leaving) most = std::max(most, gain(op));
    if (most == 0) return;
    constexpr int tried = 16;  // the loss is among the first that are made of everything
    std::vector<char> best;
    std::size_t fewest = body_.ops.size() + 1;
    int tries = 0;
    for (const std::int32_t op : leaving) {
      if (gain(op) < most || tries++ == tried) continue;
      std::vector<char> found = ancestors(op);
      const auto size = static_cast<std::size_t>(std::count(found.begin(), found.end(), 1));
      if (size < fewest) fewest = size, best = std::move(found);
    }
    for (std::size_t k = 0; k < body_.ops.size(); ++k) {
      if (!best[k]) continue;
      if (body_.node[k] >= 0) body_.line.is_forward[body_.node[k]] = 1;
      for (std::size_t w = 0; w < left.size(); ++w) left[w] &= ~read[k][w];
    }
  }
}

}  // namespace

Body body_of(Ops& ops, const Loop& loop, const std::vector<double>& seconds) {
  return Reader(ops, loop, seconds).read();
}

}  // namespace autoshard::pipeline
