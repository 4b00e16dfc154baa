#include "pipeline/body.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace autoshard::pipeline {

using importer::Block;
using importer::ModuleStructure;
using importer::OpStructure;

Ops::Ops(const ModuleStructure& of, Describe describe)
    : module(of),
      describe_(std::move(describe)),
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

void Ops::describe(const Block& block) {
  for (const std::int32_t op : ops_of(block)) kind(op);
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

using Numbers = std::vector<std::int32_t>;

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
    find_sums();
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

  /// What a value before the loop is made of alone, as a weight that is cast.
  std::int32_t source(std::int32_t value) const {
    for (std::int32_t owner = ops_.owner(value); owner != loop_.main;
         owner = ops_.owner(value)) {
      const std::vector<std::int32_t> read = ops_.reads(owner);
      if (read.size() != 1) break;
      value = read[0];
    }
    return value;
  }

  void find_light();
  void find_sums();
  void make_nodes();
  void make_values();
  void find_forward();
  std::vector<Numbers> arguments_read();
  std::vector<std::uint64_t> weights_read(std::size_t& words);
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
      is_light &=
          from >= 0 ? is_light_[from] : argument(value) == 0 || is_passed_on(argument(value));
      is_free &= from >= 0 && body_.is_free[from];
    }
    is_light_[k] = is_light;
    body_.is_free[k] = is_free && (kind.is_free || kind.is_view);
  }
}

/// Adds that nobody reads but the next one, up to what the loop carries on.
void Reader::find_sums() {
  body_.is_sum.assign(body_.ops.size(), 0);
  std::vector<std::int32_t> readers(module_.num_values, 0);
  for (const std::vector<std::int32_t>& reads : body_.reads) {
    for (const std::int32_t value : reads) ++readers[value];
  }
  const std::int32_t end = module_.ops[block_.last_op].first_operand;
  for (std::int32_t k = 1; k < block_.num_arguments; ++k) {
    const std::int32_t made = module_.operands[end + k], carried = block_.first_argument + k;
    const std::int32_t last = maker(made);
    if (last < 0 || readers[made] > 0 || readers[carried] != 1) continue;
    const std::vector<std::int32_t>& reads = body_.reads[last];
    if (!std::binary_search(reads.begin(), reads.end(), carried)) continue;
    std::vector<std::int32_t> waiting{last};
    while (!waiting.empty()) {
      const std::int32_t op = waiting.back();
      waiting.pop_back();
      if (!ops_.kind(body_.ops[op]).is_add || is_light_[op]) continue;
      body_.is_sum[op] = 1;
      for (const std::int32_t value : body_.reads[op]) {
        if (maker(value) >= 0 && readers[value] == 1) waiting.push_back(maker(value));
      }
    }
  }
}

void Reader::make_nodes() {
  Line& line = body_.line;
  body_.node.assign(body_.ops.size(), -1);
  for (std::size_t k = 0; k < body_.ops.size(); ++k) {
    if (is_light_[k] || body_.is_sum[k]) continue;
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
  const std::vector<std::int32_t> given_to_loop = ops_.operands(loop_.op);
  const auto reach = [&](std::int32_t value, double bytes, std::int32_t reader) {
    const std::int32_t from = maker(value);
    // A weight and its cast for the way forward are one: both are where it is updated.
    if (from < 0) value = source(given_to_loop[argument(value)]);
    if (value_of[value] < 0) {
      value_of[value] = static_cast<std::int32_t>(line.values.size());
      line.values.push_back({bytes, from < 0 ? -1 : body_.node[from], {}});
      if (from >= 0) line.makes[body_.node[from]].push_back(value_of[value]);
    }
    Value& made = line.values[value_of[value]];
    made.bytes = std::max(made.bytes, bytes);
    if (!made.readers.empty() && made.readers.back() == reader) return;
    made.readers.push_back(reader);
    line.reads[reader].push_back(value_of[value]);
  };
  std::vector<std::vector<std::int32_t>> through(body_.ops.size());
  constexpr std::size_t most = 4;  // of a longer list nothing large is to be expected
  for (std::size_t k = 0; k < body_.ops.size(); ++k) {
    if (body_.is_sum[k]) continue;
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
          reach(given, loop_.argument_bytes[argument(given)], reader);
        } else if (through[k].size() < most) {
          through[k].push_back(given);
        }
      }
    }
  }
}

/// By op of the body: the arguments of `main` that lead to it directly, or through ops that
/// are made where they are read.
std::vector<Numbers> Reader::arguments_read() {
  const Block& main = module_.regions[module_.ops[loop_.main].first_region];
  std::vector<Numbers> before(loop_.op);  // by op of `main`
  const auto add = [&](Numbers& numbers, std::int32_t value) {
    const std::int32_t owner = ops_.owner(value);
    if (owner == loop_.main) {
      numbers.push_back(value - main.first_argument);
    } else {
      numbers.insert(numbers.end(), before[owner].begin(), before[owner].end());
    }
  };
  const auto once = [](Numbers& numbers) {
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  };
  for (const std::int32_t op : ops_.ops_of(main)) {
    if (op >= loop_.op) break;
    for (const std::int32_t value : ops_.reads(op)) add(before[op], value);
    once(before[op]);
  }
  const std::vector<std::int32_t> given = ops_.operands(loop_.op);
  std::vector<Numbers> near(body_.ops.size());
  for (std::size_t k = 0; k < body_.ops.size(); ++k) {
    for (const std::int32_t value : body_.reads[k]) {
      const std::int32_t from = maker(value);
      if (from < 0) {
        add(near[k], given[argument(value)]);
      } else if (is_light_[from]) {
        near[k].insert(near[k].end(), near[from].begin(), near[from].end());
      }
    }
    once(near[k]);
  }
  return near;
}

/// By op of the body, a row of `words`: which of the weights, arguments that a heavy op reads,
/// lead to it. Where there are none, all arguments are.
std::vector<std::uint64_t> Reader::weights_read(std::size_t& words) {
  const std::vector<Numbers> near = arguments_read();
  Numbers number(module_.regions[module_.ops[loop_.main].first_region].num_arguments, -1);
  std::int32_t count = 0;
  for (const bool of_heavy : {true, false}) {
    for (std::size_t k = 0; k < body_.ops.size() && (of_heavy || count == 0); ++k) {
      if (of_heavy && !ops_.kind(body_.ops[k]).is_heavy) continue;
      for (const std::int32_t given : near[k]) {
        if (number[given] < 0) number[given] = count++;
      }
    }
  }
  words = (count + 63) / 64;
  std::vector<std::uint64_t> rows(words * body_.ops.size(), 0);
  for (std::size_t k = 0; k < body_.ops.size(); ++k) {
    std::uint64_t* row = rows.data() + words * k;
    for (const std::int32_t given : near[k]) {
      const std::int32_t bit = number[given];
      if (bit >= 0) row[bit / 64] |= std::uint64_t{1} << (bit % 64);
    }
    for (const std::int32_t value : body_.reads[k]) {
      const std::int32_t from = maker(value);
      if (from < 0) continue;
      const std::uint64_t* other = rows.data() + words * from;
      for (std::size_t w = 0; w < words; ++w) row[w] |= other[w];
    }
  }
  return rows;
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

/// The loss is, among what leaves the loop, what is made of the most weights with the fewest
/// products, kernels and loops, and of such with the fewest ops: all gradients are made of
/// what it is made of, and of more. Weights that do not lead to it have a loss of their own.
void Reader::find_forward() {
  std::size_t words = 0;
  const std::vector<std::uint64_t> read = weights_read(words);
  std::vector<std::int32_t> leaving;
  for (std::int32_t k = 1; k < block_.num_arguments; ++k) {
    const std::int32_t value = module_.operands[module_.ops[block_.last_op].first_operand + k];
    const std::int32_t from = maker(value);
    if (!is_passed_on(k) && from >= 0 && !is_light_[from]) leaving.push_back(from);
  }
  std::sort(leaving.begin(), leaving.end());
  std::vector<std::uint64_t> left(words, ~std::uint64_t{0});
  for (;;) {
    const auto gain = [&](std::int32_t op) {
      int bits = 0;
      for (std::size_t w = 0; w < words; ++w) {
        bits += std::popcount(left[w] & read[words * op + w]);
      }
      return bits;
    };
    int most = 0;
    for (const std::int32_t op : leaving) most = std::max(most, gain(op));
    if (most == 0) return;
    constexpr int tried = 16;  // the loss is among the first that are made of everything
    std::vector<char> best;
    std::pair<std::int32_t, std::int32_t> fewest{std::numeric_limits<std::int32_t>::max(), 0};
    int tries = 0;
    for (const std::int32_t op : leaving) {
      if (gain(op) < most) continue;
      if (tries++ == tried) break;
      std::vector<char> found = ancestors(op);
      std::pair<std::int32_t, std::int32_t> size{0, 0};
      for (std::size_t k = 0; k < body_.ops.size(); ++k) {
        if (!found[k]) continue;
        size.first += ops_.kind(body_.ops[k]).is_heavy;
        ++size.second;
      }
      if (size < fewest) fewest = size, best = std::move(found);
    }
    for (std::size_t k = 0; k < body_.ops.size(); ++k) {
      if (!best[k]) continue;
      if (body_.node[k] >= 0) body_.line.is_forward[body_.node[k]] = 1;
      for (std::size_t w = 0; w < words; ++w) left[w] &= ~read[words * k + w];
    }
  }
}

}  // namespace

Body body_of(Ops& ops, const Loop& loop, const std::vector<double>& seconds) {
  return Reader(ops, loop, seconds).read();
}

}  // namespace autoshard::pipeline
