#include "cost/storage.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "memory/lending.h"
#include "memory/lists.h"
#include "memory/regions.h"
#include "memory/sources.h"
#include "memory/waiting_matmuls.h"

namespace autoshard {
namespace {

constexpr std::int32_t none = -1;
/// As a reader: the value leaves the program or its loop.
constexpr std::int32_t never = std::numeric_limits<std::int32_t>::max();
/// A cheap value that more fusions read than this is stored: recomputing it everywhere would
/// cost more time than compilers accept.
constexpr std::size_t most_copies = 256;

/// A narrower value is computed from one wider one if everything that is read for it has at
/// most so many times the bytes of that one.
constexpr double most_beside_one = 1.25;

struct Reader {
  std::int32_t op;
  std::int32_t operand;
};

/// An op reads a value from memory, for itself or for the fusion that it is part of.
struct Read {
  std::int32_t value;
  std::int32_t op;
};

/// A permutation of dims.
using Order = std::vector<std::int32_t>;

/// A carried value of a loop that changes from trip to trip.
struct Slot {
  std::int32_t loop;
  std::int32_t carried;
  std::int32_t yielded;
  /// The yielded value is made in the body and yielded here only, so that it takes over the
  /// storage when it is made; otherwise the carried value keeps it all the time.
  bool is_handed_over = false;
};

/// Builds what `Storage` keeps. Values are meant by their representative (`same_`): a bitcast
/// is its operand, a constrained value the one before the constraint.
class Builder {
 public:
  Builder(const Program& program, const Compiler& compiler)
      : program_(program),
        compiler_(compiler),
        regions_(program),
        num_values_(program.values.size()),
        num_ops_(static_cast<std::int32_t>(program.ops.size())),
        moments_(std::max(1, num_ops_)),
        bytes_(num_values_),
        same_(num_values_),
        maker_(num_values_, none),
        argument_(num_values_, none),
        slot_of_(num_values_, none),
        listed_as_(num_values_),
        is_dead_(num_ops_, false),
        roots_(num_ops_),
        beside_(num_ops_, none) {
    for (std::size_t v = 0; v < num_values_; ++v) {
      bytes_[v] = program.types[program.values[v].type].bytes();
      same_[v] = listed_as_[v] = static_cast<std::int32_t>(v);
    }
    find_makers();
    find_arguments();
    find_slots();
    find_what_enters_loops();
    find_same();
    find_live_outs();
    collect_readers();
    find_orders();
    find_sources();
    waits_ = matmuls_that_wait(program);
    fuse();
    collect_reads();
    place_ops();
    measure_lifetimes();
    if (compiler_.layout.converted_stacks) convert_stacks();
    if (compiler_.layout.row_major_stacks) transpose_stacks();
  }

  std::int32_t moments() const { return moments_; }
  std::vector<Lifetime> lifetimes() const;
  std::vector<Stored> stored() const;
  std::vector<std::int32_t> moment_of() const;
  std::vector<Lifetime> if_stored();
  std::vector<std::int32_t> sames();
  std::map<std::int32_t, std::vector<Stored>> copies_if_reduced() const;
  std::vector<std::vector<bool>> reads();
  std::vector<std::vector<bool>> writes();

 private:
  const Rule& rule(std::int32_t op) const { return program_.rules[program_.ops[op].rule]; }
  bool is_free(std::int32_t value) const { return program_.values[value].is_free; }

  std::int32_t same(std::int32_t value) {
    while (same_[value] != value) {
      same_[value] = same_[same_[value]];
      value = same_[value];
    }
    return value;
  }

  void find_makers() {
    for (std::int32_t i = 0; i < num_ops_; ++i) {
      for (std::int32_t v : program_.ops[i].results) {
        if (v != no_value) maker_[v] = i;
      }
    }
  }

  void find_arguments() {
    for (std::size_t a = 0; a < program_.arguments.size(); ++a) {
      const std::int32_t v = program_.arguments[a].value;
      if (v != no_value) argument_[v] = static_cast<std::int32_t>(a);
    }
  }

  void find_slots() {
    for (std::size_t l = 0; l < program_.loops.size(); ++l) {
      const Loop& loop = program_.loops[l];
      for (std::size_t k = 0; k < loop.carried.size(); ++k) {
        if (loop.yielded[k] == no_value || loop.yielded[k] == loop.carried[k]) continue;
        slot_of_[loop.carried[k]] = static_cast<std::int32_t>(slots_.size());
        slots_.push_back({static_cast<std::int32_t>(l), loop.carried[k], loop.yielded[k]});
      }
    }
  }

  /// A view of as many bytes as its operand is that operand: reshapes and transposes are a
  /// choice of layout, which compilers make so that they cost nothing. Where arguments lie row
  /// by row, one that a loop takes transposed is written once more.
  bool is_bitcast(std::int32_t op) {
    const Op& o = program_.ops[op];
    return rule(op).work == Work::view && o.operands.size() == 1 && o.results.size() == 1 &&
           o.operands[0] != no_value && o.results[0] != no_value &&
           bytes_[o.operands[0]] == bytes_[o.results[0]] &&
           (!compiler_.layout.row_major_arguments || !enters_loop_[o.results[0]] ||
            !transposes(rule(op)) || argument_[same(o.operands[0])] == none);
  }

  /// A view whose result has the dims of its operand in another order.
  bool transposes(const Rule& rule) const {
    const auto order = [&rule](const RuleTensor& tensor) {
      std::vector<std::int32_t> factors;
      for (const std::vector<std::int32_t>& dim : tensor.dims) {
        for (std::int32_t f : dim) {
          if (rule.factors[f].size > 1) factors.push_back(f);
        }
      }
      return factors;
    };
    return order(rule.operands[0]) != order(rule.results[0]);
  }

  /// What loops read in every trip as it is.
  void find_what_enters_loops() {
    enters_loop_.assign(num_values_, false);
    std::vector<bool> is_passed_on(num_values_, false);
    for (const Loop& loop : program_.loops) {
      for (std::size_t k = 0; k < loop.carried.size(); ++k) {
        const std::int32_t v = loop.carried[k];
        is_passed_on[v] = loop.yielded[k] == no_value || loop.yielded[k] == v;
      }
    }
    for (const Join& join : program_.joins) {
      if (is_passed_on[join.target]) enters_loop_[join.source] = true;
    }
  }

  void find_same() {
    bitcast_.assign(num_ops_, false);
    for (std::int32_t i = 0; i < num_ops_; ++i) {
      if (!is_bitcast(i)) continue;
      bitcast_[i] = true;
      same_[program_.ops[i].results[0]] = program_.ops[i].operands[0];
    }
    std::vector<std::int32_t> source(num_values_, none);
    std::vector<std::int32_t> readers(num_values_, 0);
    for (const Op& op : program_.ops) {
      for (std::int32_t v : op.operands) {
        if (v != no_value) ++readers[v];
      }
    }
    for (const Join& join : program_.joins) ++readers[join.source];
    std::vector<bool> is_carried(num_values_, false);
    for (const Loop& loop : program_.loops) {
      for (std::int32_t v : loop.carried) is_carried[v] = true;
    }
    for (const Join& join : program_.joins) {
      const std::int32_t t = join.target;
      if (argument_[t] != none || slot_of_[t] != none) continue;
      source[t] = source[t] == none || source[t] == join.source ? join.source : never;
    }
    for (std::size_t t = 0; t < num_values_; ++t) {
      if (source[t] == none || source[t] == never || maker_[t] != none) continue;
      if (same(source[t]) == static_cast<std::int32_t>(t)) continue;
      same_[t] = source[t];
      // The plan may cut the two differently: what is read counts, and how arguments arrive.
      const bool is_argument = argument_[same(source[t])] != none;
      if (is_argument || is_carried[t] || readers[source[t]] > 1) continue;
      listed_as_[same(source[t])] = static_cast<std::int32_t>(t);
    }
    std::vector<std::int32_t> times(num_values_, 0);
    for (Slot& slot : slots_) {
      slot.yielded = same(slot.yielded);
      ++times[slot.yielded];
    }
    for (Slot& slot : slots_) {
      const std::int32_t y = slot.yielded;
      const bool is_inner_result = slot_of_[y] != none &&
                                   slots_[slot_of_[y]].loop != slot.loop &&
                                   regions_.contains(slot.loop, slots_[slot_of_[y]].loop);
      slot.is_handed_over =
          times[y] == 1 && !is_free(y) &&
          (is_inner_result ||
           (maker_[y] != none && regions_.contains(slot.loop, regions_.of_op(maker_[y]))));
    }
  }

  /// Where the value lives: the loop whose body it belongs to.
  std::int32_t home(std::int32_t value) const {
    if (slot_of_[value] != none) return slots_[slot_of_[value]].loop;
    return maker_[value] == none ? none : regions_.of_op(maker_[value]);
  }

  /// The value whose storage is read when `value` is read in `region`: behind a loop, a
  /// carried value is what its body yielded last.
  std::int32_t holder(std::int32_t value, std::int32_t region) const {
    while (slot_of_[value] != none) {
      const Slot& slot = slots_[slot_of_[value]];
      if (!slot.is_handed_over || regions_.contains(slot.loop, region)) return value;
      value = slot.yielded;
      region = slot.loop;
    }
    return value;
  }

  bool is_root(std::int32_t op) const { return roots_[op].size() == 1 && roots_[op][0] == op; }

  bool is_materialized(std::int32_t value) const {
    return !is_free(value) && (maker_[value] == none || is_root(maker_[value]));
  }

  double elements(std::int32_t value) const {
    double count = 1;
    if (value == no_value) return count;
    for (std::int64_t dim : program_.types[program_.values[value].type].dims) {
      count *= static_cast<double>(dim);
    }
    return count;
  }

  static Lifetime clipped(Lifetime l) { return l.first < l.last ? l : Lifetime{}; }

  /// The value that constraints were put on.
  std::int32_t before_constraints(std::int32_t value) const {
    while (constrained_[value] != none) value = constrained_[value];
    return value;
  }

  /// Made by repeating fewer elements: no order of its own.
  bool is_broadcast(std::int32_t value) const {
    const std::int32_t op = maker_[value];
    return op != none && rule(op).work == Work::view && !bitcast_[op];
  }

  void find_live_outs();
  void collect_readers();
  Order order_after(std::int32_t op, const std::vector<Order>& orders) const;
  struct Chain {
    std::int32_t source;
    /// The first elementwise op; `none` if there is none.
    std::int32_t first;
  };
  Chain chain_of(std::int32_t value) const;
  void find_orders();
  bool is_of_one(std::int32_t op) const;
  bool takes_fused(std::int32_t op, std::int32_t operand) const;
  bool may_be_fused(std::int32_t op) const;
  bool is_costly(std::int32_t op) const;
  bool is_computed_again(std::int32_t op, std::size_t fusions);
  bool is_cast_of_argument(std::int32_t op);
  double most_read(std::size_t fusions) const;
  bool is_cast_of_one(std::int32_t op);
  void find_sources();
  bool is_one_kernel(const std::vector<std::int32_t>& roots);
  void fuse();
  std::int32_t visible_after(std::int32_t made, std::int32_t home, std::int32_t region);
  void collect_reads();
  void place_ops();
  void measure_lifetimes();
  void join_at(const Join& join);
  bool is_reduced(std::int32_t value) const;
  void hand_over();
  void leave(std::int32_t value, std::int32_t argument);
  void convert_stacks();
  void transpose_stacks();

  const Program& program_;
  Compiler compiler_;
  Regions regions_;
  std::size_t num_values_;
  std::int32_t num_ops_, moments_;
  std::vector<double> bytes_;
  std::vector<std::int32_t> same_, maker_, argument_, slot_of_, listed_as_, constrained_;
  std::vector<Slot> slots_;
  std::vector<bool> bitcast_;
  /// Values that are results, and for each the argument whose storage it takes, or `none`.
  std::map<std::int32_t, std::int32_t> live_out_;
  /// Further copies of values that are returned twice, or returned as they came.
  std::vector<std::int32_t> copies_;
  /// Stacks of a narrower type, padded operands: what they are made from, when, and their
  /// bytes.
  std::vector<Stored> converted_;
  std::vector<bool> must_store_;
  /// A value that an op reads in another order than an argument's.
  struct Meeting {
    std::int32_t value, argument, op;
  };
  std::vector<Meeting> meetings_;
  std::vector<std::vector<Reader>> readers_;
  /// Of every op that may be fused, what it would read then, without arguments.
  std::vector<Sources> sources_;
  std::vector<bool> enters_loop_;
  /// What dynamic update slices make whose updates do not lie row by row in memory.
  std::vector<bool> is_transposed_;
  std::vector<bool> is_dead_;
  /// The ops that end the fusions which compute an op; itself if its results are stored.
  std::vector<std::vector<std::int32_t>> roots_;
  /// Matmuls that only gradients wait for.
  std::vector<bool> waits_;
  /// By root: the later one with which it is one kernel of two results, or `none`.
  std::vector<std::int32_t> beside_;
  Lists<Read> group_reads_;
  /// When a root runs.
  std::vector<std::int32_t> moment_;
  std::vector<Lifetime> lifetimes_;
  /// Of results that have their own storage from end to end: when they are made.
  std::map<std::int32_t, std::int32_t> made_at_;
  /// The last fusion, in program order, that reads a value.
  std::vector<std::int32_t> last_root_;
};

void Builder::find_live_outs() {
  std::vector<std::int32_t> source(num_values_, none);
  for (const Join& join : program_.joins) {
    if (argument_[join.target] != none) source[join.target] = same(join.source);
  }
  const auto is_donated = [&](std::int32_t v) {
    return program_.arguments[argument_[v]].is_donated;
  };
  const auto leaves = [&](std::int32_t value, std::int32_t argument) {
    const bool needs_copy = is_free(value) || argument_[value] != none;
    if (!needs_copy && live_out_.try_emplace(value, argument).second) return;
    if (argument == none) copies_.push_back(value);
  };
  std::vector<bool> is_result(num_values_, false);
  for (std::int32_t r : program_.results) {
    if (r == no_value) continue;
    if (argument_[r] == none) {
      leaves(same(r), none);
    } else if (!is_result[r]) {
      is_result[r] = true;
      const std::int32_t storage = is_donated(r) ? r : none;
      if (source[r] != none || storage == none)
        leaves(source[r] == none ? r : source[r], storage);
    }
  }
  // Donated without a word on which result takes the storage: XLA takes one of equal type.
  std::multimap<std::int32_t, std::int32_t> donors;
  for (const Argument& argument : program_.arguments) {
    if (argument.value != no_value && argument.is_donated && !is_result[argument.value]) {
      donors.emplace(program_.values[argument.value].type, argument.value);
    }
  }
  for (std::int32_t r : program_.results) {
    if (r == no_value || argument_[r] != none) continue;
    const auto leaving = live_out_.find(same(r));
    const auto donor = donors.find(program_.values[r].type);
    if (leaving == live_out_.end() || leaving->second != none || donor == donors.end())
      continue;
    leaving->second = donor->second;
    donors.erase(donor);
  }
}

void Builder::collect_readers() {
  must_store_.assign(num_values_, false);
  for (const Join& join : program_.joins) {
    if (same(join.source) != same(join.target)) must_store_[same(join.source)] = true;
  }
  for (const auto& leaving : live_out_) must_store_[leaving.first] = true;
  for (std::int32_t value : copies_) must_store_[value] = true;
  readers_.resize(num_values_);
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    if (bitcast_[i]) continue;
    const auto& operands = program_.ops[i].operands;
    for (std::size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == no_value) continue;
      const std::int32_t v = same(operands[k]);
      if (!is_free(v)) readers_[v].push_back({i, static_cast<std::int32_t>(k)});
    }
  }
}

/// In which order the dims of a value lie in memory, outermost first, if nothing is copied.
/// Views keep the order of their operand; empty: row by row. Dims of size 1 are anywhere.
Order Builder::order_after(std::int32_t op, const std::vector<Order>& orders) const {
  const Rule& r = rule(op);
  if (r.work != Work::view || !bitcast_[op]) return {};
  const std::int32_t operand = before_constraints(program_.ops[op].operands[0]);
  // When each factor comes, in the operand's memory.
  std::vector<std::int32_t> position(r.factors.size(), none);
  const auto& dims = r.operands[0].dims;
  std::int32_t next = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    for (std::int32_t f : dims[orders[operand].empty() ? d : orders[operand][d]]) {
      position[f] = next++;
    }
  }
  const auto& result = r.results[0].dims;
  const auto& sizes = program_.types[r.results[0].type].dims;
  const auto place = [&](std::int32_t d) {
    return result[d].empty() ? none : position[result[d][0]];
  };
  Order order(result.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t x, std::int32_t y) { return place(x) < place(y); });
  // Row by row but for dims of size 1 is row by row.
  std::int32_t last = none;
  for (std::int32_t d : order) {
    if (sizes[d] == 1) continue;
    if (d < last) return order;
    last = d;
  }
  return {};
}

/// How one stored value of as many elements becomes `value`, by elementwise ops and views.
Builder::Chain Builder::chain_of(std::int32_t value) const {
  Chain chain{value, none};
  for (;;) {
    chain.source = before_constraints(chain.source);
    const std::int32_t op = maker_[chain.source];
    if (op == none || (!bitcast_[op] && rule(op).work != Work::elementwise)) return chain;
    std::int32_t source = none;
    for (std::int32_t v : program_.ops[op].operands) {
      if (v == no_value || is_free(v) || is_broadcast(v)) continue;
      if (source != none && source != v) return chain;
      source = v;
    }
    if (source == none) return chain;
    if (!bitcast_[op]) chain.first = op;
    chain.source = source;
  }
}

/// Finds elementwise ops that read values which lie in memory in different orders: the younger
/// one is copied. Where matmuls write row by row, the first op that works on the younger value
/// makes a copy of it; that is what transposes cost. Others write any order, unless a
/// collective comes between: `copies_if_reduced`.
void Builder::find_orders() {
  constrained_.assign(num_values_, none);
  for (const Join& join : program_.joins) {
    const std::int32_t t = join.target;
    if (maker_[t] != none || argument_[t] != none || slot_of_[t] != none) continue;
    if (same_[t] != t && same(t) == same(join.source)) constrained_[t] = join.source;
  }
  is_transposed_.assign(num_values_, false);
  std::vector<Order> orders(num_values_);
  std::vector<std::int32_t> sources;
  const auto age = [&](std::int32_t v) { return maker_[chain_of(v).source]; };
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    const Op& op = program_.ops[i];
    if (op.results.empty() || op.results[0] == no_value || is_free(op.results[0])) continue;
    Order& made = orders[op.results[0]];
    if (rule(i).work != Work::elementwise) {
      made = order_after(i, orders);
      const bool updates = rule(i).in_place_operand == 0 && op.operands.size() > 1 &&
                           op.operands[1] != no_value;
      if (updates && !orders[before_constraints(op.operands[1])].empty()) {
        is_transposed_[same(op.results[0])] = true;
      }
      continue;
    }
    sources.clear();
    for (std::int32_t v : op.operands) {
      if (v != no_value && !is_free(v) && !is_broadcast(v)) {
        sources.push_back(before_constraints(v));
      }
    }
    if (sources.empty()) continue;
    const auto is_like_first = [&](std::int32_t v) { return orders[v] == orders[sources[0]]; };
    if (std::all_of(sources.begin(), sources.end(), is_like_first)) {
      made = orders[sources[0]];
      continue;
    }
    const std::int32_t oldest =
        *std::min_element(sources.begin(), sources.end(),
                          [&](std::int32_t a, std::int32_t b) { return age(a) < age(b); });
    made = orders[oldest];
    for (std::int32_t v : sources) {
      if (orders[v] == made) continue;
      const Chain chain = chain_of(v);
      if (compiler_.layout.row_major_matmuls && chain.first != none) {
        must_store_[program_.ops[chain.first].results[0]] = true;
      }
      if (!compiler_.layout.states_as_gradients) continue;
      const std::int32_t met = same(chain_of(oldest).source);
      if (argument_[met] != none) meetings_.push_back({same(chain.source), met, i});
    }
  }
}

/// Cheap elementwise work on one value that has no more bytes than the result, such as a relu.
bool Builder::is_of_one(std::int32_t op) const {
  if (rule(op).work != Work::elementwise || !rule(op).is_cheap) return false;
  std::int32_t source = none;
  for (std::int32_t v : program_.ops[op].operands) {
    if (v == no_value || is_free(v)) continue;
    if (source != none && source != v) return false;
    source = v;
  }
  return source != none && bytes_[source] <= bytes_[program_.ops[op].results[0]];
}

bool Builder::takes_fused(std::int32_t op, std::int32_t operand) const {
  const Rule& r = rule(op);
  switch (r.work) {
    case Work::elementwise:
    case Work::view:
    case Work::reduce:
      return true;
    case Work::matmul:
      if (compiler_.fusion.matmul_operands) return true;
      return compiler_.fusion.cheap_matmul_operands && !r.has_workspace &&
             maker_[program_.ops[op].operands[operand]] != none &&
             is_of_one(maker_[program_.ops[op].operands[operand]]);
    case Work::indexed:
      // A dynamic update slice computes what it writes.
      return r.in_place_operand >= 0 && operand == 1 && r.operands.size() > 2 &&
             r.operands[2].type == no_type;
    case Work::other:
    case Work::kernel:
      return false;
  }
  return false;
}

bool Builder::may_be_fused(std::int32_t op) const {
  const Op& o = program_.ops[op];
  if (o.results.size() != 1 || o.results[0] == no_value || must_store_[o.results[0]]) {
    return false;
  }
  const Rule& r = rule(op);
  return r.work == Work::elementwise || r.work == Work::view ||
         (r.work == Work::matmul && compiler_.fusion.matmul_results) ||
         (r.work == Work::indexed && r.is_cheap);
}

bool Builder::is_cast_of_argument(std::int32_t op) {
  const Op& o = program_.ops[op];
  if (rule(op).work != Work::elementwise || o.operands.size() != 1) return false;
  return o.operands[0] != no_value && argument_[same(o.operands[0])] != none;
}

/// A cast to a narrower type of what is computed from one value of the wider type and little
/// else, which is there anyway when the narrower one is read last: the probabilities of a
/// softmax, from its exponentials.
bool Builder::is_cast_of_one(std::int32_t op) {
  const Op& o = program_.ops[op];
  if (rule(op).work != Work::elementwise || o.operands.size() != 1) return false;
  if (o.operands[0] == no_value) return false;
  const double wider = bytes_[o.operands[0]];
  const auto [source, bytes] = sources_[op].largest();
  return wider > bytes_[o.results[0]] && bytes >= wider &&
         sources_[op].bytes() <= most_beside_one * wider && !readers_[o.results[0]].empty() &&
         readers_[source].back().op > readers_[o.results[0]].back().op;
}

/// The bytes, in those of a value, that each of several fusions may read to compute it.
/// Stored, it is written once and read in each; some compilers know no more than a limit.
double Builder::most_read(std::size_t fusions) const {
  const auto count = static_cast<double>(fusions);
  const double limit = compiler_.fusion.most_reread;
  return limit > 0 ? limit : (count + 1) / (count - 1);
}

/// A function that is stored where several fusions read it, whatever it is computed from.
bool Builder::is_costly(std::int32_t op) const {
  return rule(op).work == Work::elementwise &&
         rule(op).expense >= compiler_.fusion.stored_functions;
}

/// Whether an op is fused into each of several fusions that read it.
bool Builder::is_computed_again(std::int32_t op, std::size_t fusions) {
  const std::int32_t result = program_.ops[op].results[0];
  if (fusions > most_copies) return false;
  if (!rule(op).is_cheap) {
    // A sum over it stores it on the way, as a second output of the same fusion.
    for (const Reader& r : readers_[result]) {
      if (rule(r.op).work == Work::reduce) return false;
    }
  }
  if (is_costly(op)) return false;
  if (compiler_.fusion.casts_of_arguments && is_cast_of_argument(op)) return true;
  if (compiler_.fusion.casts && is_cast_of_one(op)) return true;
  // Nobody reads more to save memory that is read once.
  return sources_[op].bytes() <= most_read(fusions) * bytes_[result];
}

void Builder::find_sources() {
  sources_.resize(num_ops_);
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    if (bitcast_[i] || !may_be_fused(i) || rule(i).work == Work::matmul) continue;
    Sources& sources = sources_[i];
    const double bytes = bytes_[program_.ops[i].results[0]];
    for (std::int32_t operand : program_.ops[i].operands) {
      if (operand == no_value) continue;
      const std::int32_t v = same(operand);
      if (is_free(v) || (argument_[v] != none && compiler_.fusion.ignores_arguments)) continue;
      const std::int32_t maker = maker_[v];
      const bool is_expression = maker != none && may_be_fused(maker) &&
                                 rule(maker).work != Work::matmul &&
                                 regions_.of_op(maker) == regions_.of_op(i);
      const auto needs_it = [&](const Reader& r) {
        return compiler_.fusion.reads_what_is_stored && !takes_fused(r.op, r.operand);
      };
      const bool is_stored = is_expression && readers_[v].size() > 1 &&
                             (std::any_of(readers_[v].begin(), readers_[v].end(), needs_it) ||
                              !is_computed_again(maker, 2));
      if (is_expression && !is_stored) {
        sources.add(sources_[maker]);
      } else {
        // A gradient reads a costly function beside its argument: it is there anyway.
        const bool is_there =
            compiler_.fusion.ignores_stored_functions && is_expression && is_costly(maker);
        sources.add(v, is_there ? 0 : bytes_[v]);
      }
    }
    const auto& touched = rule(i).operand_bytes;
    if (!touched.empty() && touched[0] >= 0) sources.limit(bytes);
  }
}

/// Two elementwise results of one size are written by one kernel if they share what would be
/// stored for them otherwise, and neither is computed from the other: a gradient's matmul
/// alone reads the first.
bool Builder::is_one_kernel(const std::vector<std::int32_t>& roots) {
  if (!compiler_.fusion.two_results || roots.size() != 2) return false;
  for (std::int32_t root : roots) {
    if (rule(root).work != Work::elementwise || beside_[root] != none) return false;
  }
  const std::int32_t first = program_.ops[roots[0]].results[0];
  const auto& readers = readers_[first];
  return bytes_[first] == bytes_[program_.ops[roots[1]].results[0]] && !must_store_[first] &&
         std::all_of(readers.begin(), readers.end(),
                     [&](const Reader& reader) { return waits_[reader.op]; });
}

void Builder::fuse() {
  std::vector<std::int32_t> matmul_of(num_ops_, none);
  std::vector<std::int32_t> roots;
  for (std::int32_t i = num_ops_; i-- > 0;) {
    const Op& op = program_.ops[i];
    if (bitcast_[i]) continue;
    bool is_read = false;
    for (std::int32_t v : op.results) {
      if (v == no_value || must_store_[v]) {
        is_read = true;
        continue;
      }
      for (const Reader& r : readers_[v]) is_read = is_read || !is_dead_[r.op];
    }
    if (!is_read) {
      is_dead_[i] = true;
      continue;
    }
    const Work work = rule(i).work;
    if (work == Work::matmul) matmul_of[i] = i;
    roots_[i] = {i};
    if (!may_be_fused(i)) continue;
    roots.clear();
    bool fuses = true;
    for (const Reader& r : readers_[op.results[0]]) {
      if (is_dead_[r.op]) continue;
      fuses =
          fuses && regions_.of_op(r.op) == regions_.of_op(i) && takes_fused(r.op, r.operand);
      if (work == Work::matmul) fuses = fuses && rule(r.op).work == Work::elementwise;
      if (!fuses) break;
      roots.insert(roots.end(), roots_[r.op].begin(), roots_[r.op].end());
    }
    if (!fuses) continue;
    std::sort(roots.begin(), roots.end());
    roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
    if (work == Work::matmul) {
      // Elementwise work on the result of a matmul is done before the result is stored.
      if (roots.size() != 1 || rule(roots[0]).work != Work::elementwise) continue;
      if (matmul_of[roots[0]] != none) continue;
      matmul_of[roots[0]] = i;
    } else if (roots.size() > 1 && !is_computed_again(i, roots.size())) {
      if (!is_one_kernel(roots)) continue;
      beside_[roots[0]] = roots[1];
    }
    roots_[i] = roots;
  }
}

/// The op after which `value`, made after op `made` of loop `home`, can be read in `region`.
std::int32_t Builder::visible_after(std::int32_t made, std::int32_t home,
                                    std::int32_t region) {
  for (std::int32_t r = home; !regions_.contains(r, region); r = regions_.parent(r)) {
    made = std::max(made, program_.loops[r].last_op - 1);
  }
  return made;
}

/// What each fusion reads from memory, and which is the last one to read a value.
void Builder::collect_reads() {
  last_root_.assign(num_values_, none);
  std::vector<std::pair<std::int32_t, Read>> items;
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    if (bitcast_[i] || is_dead_[i]) continue;
    for (std::int32_t operand : program_.ops[i].operands) {
      if (operand == no_value) continue;
      const std::int32_t v = same(operand);
      if (!is_materialized(v)) continue;
      const std::int32_t h = holder(v, regions_.of_op(i));
      for (std::int32_t root : roots_[i]) {
        items.push_back({root, {h, i}});
        last_root_[h] = std::max(last_root_[h], root);
      }
    }
  }
  group_reads_ = Lists<Read>(num_ops_, std::move(items));
  for (const Join& join : program_.joins) {
    if (same(join.source) == same(join.target)) continue;
    const std::int32_t t = join.target;
    const std::int32_t region = slot_of_[t] == none ? none : slots_[slot_of_[t]].loop;
    const bool is_yield =
        slot_of_[t] != none && same(join.source) == slots_[slot_of_[t]].yielded;
    const std::int32_t reader = region == none || is_yield ? region : regions_.parent(region);
    last_root_[holder(same(join.source), reader)] = never;
  }
  for (const auto& [value, argument] : live_out_) last_root_[holder(value, none)] = never;
}

/// Decide in which order the ops run. JAX puts all updates of an optimizer behind the whole
/// backward pass, where all gradients live at once; schedulers run an op as soon as its
/// operands are there if that frees at least what it makes.
void Builder::place_ops() {
  // Ops run in the order of (after[i], i): `after[i]` is i or the op that i moves up behind.
  std::vector<std::int32_t> after(num_ops_, 0), ready(num_values_, 0),
      last_read(num_values_, 0);
  for (std::size_t v = 0; v < num_values_; ++v) {
    if (slot_of_[v] != none) ready[v] = program_.loops[slots_[slot_of_[v]].loop].first_op;
  }
  std::vector<std::vector<std::int32_t>> branches(num_values_);
  for (const Join& join : program_.joins) {
    const std::int32_t t = join.target;
    if (same(t) == t && slot_of_[t] == none && argument_[t] == none && maker_[t] == none) {
      branches[t].push_back(same(join.source));
    }
  }
  // The program names the last op that a scalar depends on: any earlier one of the same loop
  // that makes scalars, or a loop in it, may be another.
  std::vector<std::int32_t> scalars(num_ops_, 0), latest(program_.loops.size() + 1, 0);
  std::vector<bool> is_waited_for(num_values_, false);
  /// Operands that an op is the last to read: when they are read before it, and their bytes.
  std::vector<std::pair<std::int32_t, double>> dying;

  for (std::int32_t i = 0; i < num_ops_; ++i) {
    const Op& op = program_.ops[i];
    const std::int32_t region = regions_.of_op(i);
    std::int32_t earliest = region == none ? 0 : program_.loops[region].first_op;
    for (std::int32_t operand : op.operands) {
      if (operand == no_value) continue;
      const std::int32_t v = same(operand);
      for (std::int32_t source : branches[v]) {
        ready[v] = std::max(ready[v], visible_after(ready[source], home(source), region));
      }
      earliest = std::max(earliest, visible_after(ready[v], home(v), region));
    }
    if (op.after >= 0) {
      earliest = std::max(earliest,
                          visible_after(scalars[op.after], regions_.of_op(op.after), region));
    }
    earliest = std::min(earliest, i);
    after[i] = earliest;
    if (is_root(i)) {
      double made = 0;
      for (std::int32_t v : op.results) {
        if (v == no_value) continue;
        const auto leaving = live_out_.find(v);
        if (leaving == live_out_.end()) {
          made += bytes_[v];
        } else if (leaving->second != none) {
          const std::int32_t a = leaving->second;
          if (last_root_[a] > i) made += bytes_[v];
          earliest = std::max(earliest, std::min(i, last_read[a]));
        }
      }
      dying.clear();
      std::int32_t previous = none;
      for (const Read& read : in(group_reads_, i)) {
        const bool dies = last_root_[read.value] == i && argument_[read.value] == none &&
                          home(read.value) == region && read.value != previous &&
                          !is_waited_for[read.value];
        if (dies) dying.emplace_back(std::min(i, last_read[read.value]), bytes_[read.value]);
        previous = read.value;
      }
      std::sort(dying.begin(), dying.end());
      double freed = 0;
      for (const auto& [read_before, bytes] : dying) {
        if (freed >= made && made > 0) break;
        freed += bytes;
        earliest = std::max(earliest, read_before);
      }
      after[i] = freed >= made ? earliest : i;
      for (const Read& read : in(group_reads_, i)) {
        std::int32_t& last = last_read[read.value];
        last = std::max(last, visible_after(after[i], region, home(read.value)));
        if (waits_[read.op]) is_waited_for[read.value] = true;
      }
    }
    for (std::int32_t v : op.results) {
      if (v != no_value) ready[v] = after[i];
      if (v == no_value) latest[region + 1] = std::max(latest[region + 1], after[i]);
    }
    scalars[i] = std::max(after[i], latest[region + 1]);
    for (std::int32_t r = region; r != none && program_.loops[r].last_op == i + 1;) {
      r = regions_.parent(r);
      latest[r + 1] = std::max(latest[r + 1], i);
    }
  }

  // By op: which one it moves up behind, and behind which one of those that do it runs.
  std::vector<std::pair<std::int32_t, std::int32_t>> place(num_ops_);
  std::vector<std::int32_t> late(num_values_, none);
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    place[i] = {is_root(i) ? after[i] : i, i};
  }
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    if (beside_[i] != none) place[i] = place[beside_[i]];
    for (std::int32_t v : program_.ops[i].operands) {
      if (v != no_value && late[same(v)] != none)
        place[i] = std::max(place[i], place[late[same(v)]]);
    }
    if (place[i].second == i) continue;
    for (std::int32_t v : program_.ops[i].results) {
      if (v != no_value) late[v] = i;
    }
  }
  std::vector<std::int32_t> order(num_ops_);
  std::iota(order.begin(), order.end(), 0);
  // Of a kernel of two results the one that is first in the program takes what is left.
  const auto is_younger = [&](std::int32_t i) { return place[i].second != i; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(place[a], is_younger(a)) < std::pair(place[b], is_younger(b));
  });
  moment_.resize(num_ops_);
  for (std::int32_t m = 0; m < num_ops_; ++m) moment_[order[m]] = m;
  regions_.reorder(moment_);
}

void Builder::measure_lifetimes() {
  lifetimes_.assign(num_values_, {});
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    if (!is_root(i)) continue;
    for (std::int32_t v : program_.ops[i].results) {
      if (v != no_value && !is_free(v)) lifetimes_[v] = {moment_[i], moment_[i] + 1};
    }
  }
  for (const Join& join : program_.joins) {
    const std::int32_t t = same(join.target);
    if (maker_[t] == none && argument_[t] == none) lifetimes_[t].first = moments_ - 1;
  }
  for (const Slot& slot : slots_) {
    const Lifetime loop = regions_.moments(slot.loop);
    lifetimes_[slot.carried] = {loop.first, slot.is_handed_over ? loop.first : loop.last};
  }
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    for (const Read& read : in(group_reads_, i)) {
      std::int32_t& last = lifetimes_[read.value].last;
      last = std::max(last,
                      regions_.end_of_read(moment_[i], regions_.of_op(i), home(read.value)));
    }
  }
  for (const Join& join : program_.joins) join_at(join);
  hand_over();
  for (std::int32_t v : program_.early) lifetimes_[same(v)].first = 0;
  for (const auto& [value, argument] : live_out_) leave(value, argument);
  for (const Argument& argument : program_.arguments) {
    if (argument.value != no_value) lifetimes_[argument.value] = {0, moments_};
  }
}

/// What flows into a loop lives until it begins, what a body yields until the trip ends.
/// Branch results are where the branches put them.
void Builder::join_at(const Join& join) {
  const std::int32_t s = same(join.source), t = same(join.target);
  if (s == t || is_free(s) || argument_[t] != none) return;
  if (slot_of_[t] == none) {
    Lifetime& result = lifetimes_[t];
    const Lifetime& source = lifetimes_[s];
    result.first = std::min(result.first, argument_[s] == none ? source.first : moments_);
    result.last = std::max(result.last, result.first + 1);
    if (readers_[s].empty() && argument_[s] == none) lifetimes_[s] = {};
    return;
  }
  const Slot& slot = slots_[slot_of_[t]];
  const Lifetime loop = regions_.moments(slot.loop);
  const bool is_yield = s == slot.yielded;
  const std::int32_t region = is_yield ? slot.loop : regions_.parent(slot.loop);
  std::int32_t& last = lifetimes_[holder(s, region)].last;
  last = std::max(last, is_yield ? loop.last : loop.first);
}

/// A fusion that ends in a reduction reads `value`, and nothing else as large: a softmax or a
/// norm, which are one kernel with what reads both.
bool Builder::is_reduced(std::int32_t value) const {
  const auto is_of_value_alone = [&](std::int32_t root) {
    const auto reads = in(group_reads_, root);
    return rule(root).work == Work::reduce &&
           std::all_of(reads.begin(), reads.end(), [&](const Read& read) {
             return read.value == value || 2 * bytes_[read.value] < bytes_[value];
           });
  };
  const auto& readers = readers_[value];
  return std::any_of(readers.begin(), readers.end(), [&](const Reader& reader) {
    const auto& roots = roots_[reader.op];
    return std::any_of(roots.begin(), roots.end(), is_of_value_alone);
  });
}

/// An op that computes in place writes over an operand that nobody reads after it.
void Builder::hand_over() {
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    const Op& op = program_.ops[i];
    if (!is_root(i) || op.results.empty() || op.results[0] == no_value) continue;
    const std::int32_t in_place = rule(i).in_place_operand;
    const std::int32_t result = op.results[0];
    const auto leaving = live_out_.find(result);
    const bool is_elementwise = rule(i).work == Work::elementwise;
    if (in_place < 0 && !is_elementwise) continue;
    const std::int32_t target = in_place < 0 || op.operands[in_place] == no_value
                                    ? none
                                    : holder(same(op.operands[in_place]), regions_.of_op(i));
    const auto dies_in_place = [&](const Read& read) {
      const std::int32_t v = read.value;
      if (lifetimes_[v].last != moment_[i] + 1 || bytes_[v] != bytes_[result]) return false;
      const Buffers& buffers = compiler_.buffers;
      if (buffers.tuples_of_convolutions && maker_[v] != none &&
          rule(maker_[v]).has_workspace) {
        return false;
      }
      if (buffers.keeps_reduced && in_place < 0 && is_reduced(v)) return false;
      const bool lends =
          buffers.lending_results && leaving != live_out_.end() && leaving->second == none;
      if (leaving != live_out_.end() && leaving->second != v && !lends) return false;
      if (argument_[v] != none && (leaving == live_out_.end() || lends)) return false;
      if (in_place >= 0) return v == target && read.op == i;
      return rule(read.op).work == Work::elementwise &&
             elements(program_.ops[read.op].results[0]) == elements(result);
    };
    std::int32_t taken = none;
    for (const Read& read : in(group_reads_, i)) {
      if (taken == none && dies_in_place(read)) taken = read.value;
    }
    // Read in any other way as well, it must stay.
    for (const Read& read : in(group_reads_, i)) {
      if (taken == read.value && !dies_in_place(read)) taken = none;
    }
    if (taken != none) lifetimes_[taken].last = moment_[i];
  }
}

/// `value` is a result of the program: it has its own storage from end to end, or, from its
/// last reader on, that of a donated argument.
void Builder::leave(std::int32_t value, std::int32_t argument) {
  const bool is_carried = slot_of_[value] != none;
  const std::int32_t last_read = argument == none ? 0 : lifetimes_[argument].last;
  Lifetime& own = lifetimes_[value];
  if (argument == none) made_at_[value] = own.first;
  if (!is_carried) {
    own = argument == none ? Lifetime{0, moments_} : clipped({own.first, last_read});
    return;
  }
  const Slot& slot = slots_[slot_of_[value]];
  if (argument != none && last_read > regions_.moments(slot.loop).first) return;
  if (slot.is_handed_over) {
    Lifetime& made = lifetimes_[holder(value, none)];
    made = clipped({made.first, own.last});
  }
  own = argument == none ? Lifetime{0, moments_} : Lifetime{};
}

/// A loop that reads its slice of a stack only to convert it to a narrower type: compilers
/// convert the whole stack once, before the first such loop. So do scans over layers with
/// parameters in float32 and arithmetic in bfloat16.
void Builder::convert_stacks() {
  std::map<std::pair<std::int32_t, double>, Lifetime> stacks;
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    const Op& op = program_.ops[i];
    if (is_dead_[i] || bitcast_[i] || rule(i).work != Work::indexed || !rule(i).is_cheap)
      continue;
    if (op.operands[0] == no_value || op.results[0] == no_value) continue;
    const std::int32_t stack = same(op.operands[0]), slice = op.results[0];
    std::int32_t region = regions_.of_op(i);
    if (is_free(stack) || regions_.contains(region, home(stack))) continue;
    double narrowest = 1;
    for (const Reader& r : readers_[slice]) {
      if (is_dead_[r.op]) continue;
      const Op& reader = program_.ops[r.op];
      const std::int32_t result = reader.results[0];
      const bool converts = rule(r.op).work == Work::elementwise &&
                            reader.operands.size() == 1 && result != no_value &&
                            elements(result) == elements(slice) &&
                            bytes_[result] < bytes_[slice];
      narrowest = converts ? std::min(narrowest, bytes_[result] / bytes_[slice]) : 2;
      if (!converts) break;
    }
    if (narrowest >= 1) continue;
    while (!regions_.contains(regions_.parent(region), home(stack))) {
      region = regions_.parent(region);
    }
    const Lifetime loop = regions_.moments(region);
    const auto [entry, is_new] = stacks.try_emplace({stack, narrowest * bytes_[stack]}, loop);
    if (is_new) continue;
    entry->second.first = std::min(entry->second.first, loop.first);
    entry->second.last = std::max(entry->second.last, loop.last);
  }
  for (const auto& [key, lifetime] : stacks) {
    converted_.push_back({key.first, lifetime, key.second});
  }
}

/// Loops stack values as kernels make them, and take stacks row by row: each stack that lies
/// otherwise is written once more between the two loops, one after the other. While the
/// largest is written, all of them are there.
void Builder::transpose_stacks() {
  std::map<std::int32_t, std::int32_t> largest;
  for (const Slot& slot : slots_) {
    if (!is_transposed_[slot.yielded]) continue;
    const auto is_in_another_loop = [&](const Reader& reader) {
      const std::int32_t region = regions_.of_op(reader.op);
      return !is_dead_[reader.op] && !regions_.contains(slot.loop, region) &&
             region != regions_.parent(slot.loop);
    };
    const auto& readers = readers_[slot.carried];
    if (std::none_of(readers.begin(), readers.end(), is_in_another_loop)) continue;
    const auto [entry, is_new] = largest.try_emplace(slot.loop, slot.carried);
    if (!is_new && bytes_[slot.carried] > bytes_[entry->second]) entry->second = slot.carried;
  }
  for (const auto& [loop, stack] : largest) {
    const std::int32_t behind = regions_.moments(loop).last;
    if (behind >= moments_) continue;
    converted_.push_back({stack, {behind, behind + 1}, bytes_[stack]});
  }
}

std::vector<Lifetime> Builder::lifetimes() const {
  std::vector<Lifetime> result(num_values_);
  for (const Stored& s : stored()) {
    if (result[s.value].last == 0) result[s.value] = s.lifetime;
  }
  return result;
}

std::vector<Stored> Builder::stored() const {
  std::vector<Stored> result;
  std::vector<Lender> lenders;
  for (std::size_t v = 0; v < num_values_; ++v) {
    if (lifetimes_[v].first >= lifetimes_[v].last) continue;
    const auto made = made_at_.find(static_cast<std::int32_t>(v));
    if (made != made_at_.end()) {
      lenders.push_back({static_cast<std::int32_t>(result.size()), made->second});
    }
    result.push_back({listed_as_[v], lifetimes_[v], bytes_[v]});
  }
  for (std::int32_t v : copies_) result.push_back({v, {0, moments_}, bytes_[v]});
  result.insert(result.end(), converted_.begin(), converted_.end());
  if (compiler_.buffers.lending_results) lend(lenders, moments_, result);
  return result;
}

std::vector<std::int32_t> Builder::moment_of() const {
  std::vector<std::int32_t> result(num_ops_);
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    result[i] = roots_[i].empty() ? i : moment_[roots_[i][0]];
  }
  return result;
}

std::vector<Lifetime> Builder::if_stored() {
  std::vector<Lifetime> result(num_values_);
  for (std::size_t v = 0; v < num_values_; ++v) {
    const std::int32_t value = same(static_cast<std::int32_t>(v));
    const std::int32_t maker = maker_[value];
    if (is_free(value) || maker == none || is_root(maker) || roots_[maker].empty()) continue;
    Lifetime& live = result[v];
    live.first = moments_;
    for (std::int32_t root : roots_[maker]) {
      live.first = std::min(live.first, moment_[root]);
      live.last = std::max(live.last, moment_[root] + 1);
    }
  }
  return result;
}

std::map<std::int32_t, std::vector<Stored>> Builder::copies_if_reduced() const {
  std::map<std::int32_t, Lifetime> live;
  for (const Meeting& meeting : meetings_) {
    for (std::int32_t root : roots_[meeting.op]) {
      const Lifetime now{moment_[root], moment_[root] + 1};
      const auto [entry, is_new] = live.try_emplace(meeting.value, now);
      entry->second.first = std::min(entry->second.first, now.first);
      entry->second.last = std::max(entry->second.last, now.last);
    }
  }
  std::map<std::int32_t, std::vector<Stored>> result;
  for (const Meeting& meeting : meetings_) {
    if (!live.contains(meeting.value)) continue;
    std::vector<Stored>& copies = result[meeting.value];
    const bool is_known = std::any_of(copies.begin(), copies.end(), [&](const auto& copy) {
      return copy.value == meeting.argument;
    });
    if (is_known) continue;
    copies.push_back({meeting.argument, live.at(meeting.value), bytes_[meeting.argument]});
  }
  return result;
}

std::vector<std::int32_t> Builder::sames() {
  std::vector<std::int32_t> result(num_values_);
  for (std::size_t v = 0; v < num_values_; ++v) result[v] = same(static_cast<std::int32_t>(v));
  return result;
}

std::vector<std::vector<bool>> Builder::reads() {
  std::vector<std::vector<bool>> result(num_ops_);
  // By root and value, the operands that are read, first op first.
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> read;
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    const auto& operands = program_.ops[i].operands;
    result[i].assign(operands.size(), false);
    if (roots_[i].empty()) continue;
    for (std::size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == no_value || !is_materialized(same(operands[k]))) continue;
      read.emplace_back(roots_[i][0], same(operands[k]), i, static_cast<std::int32_t>(k));
    }
  }
  std::sort(read.begin(), read.end());
  for (std::size_t n = 0; n < read.size(); ++n) {
    const auto& [root, value, op, operand] = read[n];
    const bool is_first =
        n == 0 || std::get<0>(read[n - 1]) != root || std::get<1>(read[n - 1]) != value;
    if (is_first) result[op][operand] = true;
  }
  return result;
}

std::vector<std::vector<bool>> Builder::writes() {
  std::vector<std::vector<bool>> result(num_ops_);
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    for (std::int32_t v : program_.ops[i].results) {
      result[i].push_back(is_root(i) && v != no_value && !is_free(v));
    }
  }
  return result;
}

}  // namespace

Storage::Storage(const Program& program, const Compiler& compiler) {
  Builder builder(program, compiler);
  lifetimes_ = builder.lifetimes();
  reads_ = builder.reads();
  writes_ = builder.writes();
  moment_of_ = builder.moment_of();
  if_stored_ = builder.if_stored();
  same_ = builder.sames();
  copies_if_reduced_ = builder.copies_if_reduced();
  stored_ = builder.stored();
  moments_ = builder.moments();
}

}  // namespace autoshard
