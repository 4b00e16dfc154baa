#include "pipeline/surroundings.h"

#include <algorithm>

namespace autoshard::pipeline {

using importer::Block;

void add_copy(std::set<std::pair<std::int32_t, std::int32_t>>& places, std::int32_t stage,
              std::int32_t level, bool is_free) {
  if (!is_free) {
    // Once a stage, where it is first read.
    const auto first = places.lower_bound({stage, 0});
    if (first != places.end() && first->first == stage) {
      if (first->second <= level) return;
      places.erase(first);
    }
  }
  places.insert({stage, level});
}

namespace {

/// Bytes: where values of several stages have equally many, and fewer than these, they meet on
/// stage 0.
constexpr double small = 65536;

class Surroundings {
 public:
  Surroundings(Ops& ops, const Loop& loop, std::int32_t stages, const SplitSums& split,
               PlacesOfOps& places)
      : ops_(ops),
        loop_(loop),
        stages_(stages),
        split_(split),
        places_(places),
        main_(ops.module.regions[ops.module.ops[loop.main].first_region]),
        body_(ops.module.regions[ops.module.ops[loop.op].first_region + 1]),
        stage_(ops.module.ops.size(), -1),
        level_(ops.module.ops.size(), 0),
        is_copied_(ops.module.ops.size(), 0) {
    for (const std::int32_t op : ops.ops_of(main_)) {
      if (op != loop.op) (op < loop.op ? before_ : after_).push_back(op);
    }
  }

  void place() {
    find_homes();
    decide_after();
    for (std::size_t k = after_.size(); k-- > 0;) settle(after_[k]);
    decide_before();
    for (std::size_t k = before_.size(); k-- > 0;) settle(before_[k]);
  }

 private:
  /// The stage of each value that leaves the loop.
  void find_homes() {
    const std::int32_t end = ops_.module.ops[body_.last_op].first_operand;
    home_.assign(body_.num_arguments, -1);
    home_level_.assign(body_.num_arguments, 0);
    std::vector<std::int32_t> first(body_.num_arguments, -1);
    for (const std::int32_t op : ops_.ops_of(body_)) {
      if (places_[op].empty()) continue;
      for (const std::int32_t value : ops_.reads(op)) {
        const std::int32_t k = value - body_.first_argument;
        if (k < 0 || k >= body_.num_arguments) continue;
        std::int32_t& stage = first[k];
        const std::int32_t here = places_[op].begin()->first;
        stage = stage < 0 ? here : std::min(stage, here);
      }
    }
    read_on_ = first;
    for (std::int32_t k = 0; k < body_.num_arguments; ++k) {
      const std::int32_t maker = ops_.owner(ops_.module.operands[end + k]);
      if (const auto sum = split_.find(maker); sum != split_.end()) {
        home_[k] = sum->second;
        home_level_[k] = 1;
        continue;
      }
      const bool is_made = maker > loop_.op && !places_[maker].empty();
      home_[k] = is_made ? places_[maker].begin()->first : std::max(first[k], 0);
    }
  }

  /// What an op reads of one stage and level.
  struct From {
    std::int32_t stage, level;
    double bytes;  ///< of the largest value
  };

  /// Where a value comes from, through ops that are made where they are read.
  void add_sources(std::int32_t value, std::vector<From>& found) {
    const std::int32_t owner = ops_.owner(value);
    if (owner == loop_.op) {
      const std::int32_t k = value - ops_.module.ops[owner].first_result;
      add(found, {home_[k], home_level_[k], loop_.argument_bytes[k]});
    } else if (owner > loop_.op && is_copied_[owner]) {
      for (const From& from : sources_[owner]) add(found, from);
    } else if (owner > loop_.op) {
      add(found, {stage_[owner], level_[owner], ops_.bytes(value)});
    }
  }

  static void add(std::vector<From>& found, const From& from) {
    for (From& other : found) {
      if (other.stage != from.stage || other.level != from.level) continue;
      other.bytes = std::max(other.bytes, from.bytes);
      return;
    }
    found.push_back(from);
  }

  void decide_after() {
    sources_.resize(ops_.module.ops.size());
    for (const std::int32_t op : after_) {
      std::vector<From> from;
      for (const std::int32_t value : ops_.reads(op)) add_sources(value, from);
      const OpKind& kind = ops_.kind(op);
      double read = 0, made = 0;
      for (const From& it : from) read = std::max(read, it.bytes);
      for (const double bytes : kind.result_bytes) made += bytes;
      // What is made of nothing of the loop, or makes more of little, is made where it is
      // read.
      is_copied_[op] = kind.mark < 0 && (from.empty() || (kind.is_view && made > 4 * read));
      if (is_copied_[op]) {
        sources_[op] = std::move(from);
        continue;
      }
      stage_[op] = kind.mark >= 0 ? kind.mark % stages_ : heaviest(from);
      for (const From& it : from) {
        level_[op] = std::max(level_[op], it.level + (it.stage != stage_[op]));
      }
    }
  }

  static std::int32_t heaviest(const std::vector<From>& from) {
    std::map<std::int32_t, double> bytes;
    for (const From& it : from) bytes[it.stage] = std::max(bytes[it.stage], it.bytes);
    std::int32_t best = -1, ties = 0;
    for (const auto& [stage, size] : bytes) {
      if (best >= 0 && size <= bytes[best]) {
        ties += size == bytes[best];
        continue;
      }
      best = stage, ties = 0;
    }
    return best < 0 || (ties > 0 && bytes[best] < small) ? 0 : best;
  }

  /// The places of an op, and of what it reads that is made for it.
  void settle(std::int32_t op) {
    const bool is_free = ops_.kind(op).is_free;
    if (!is_copied_[op]) {
      places_[op] = {{stage_[op], level_[op]}};
    } else if (places_[op].empty()) {
      places_[op] = {{0, 0}};  // a result that nobody else reads
    }
    for (const std::int32_t value : ops_.reads(op)) {
      const std::int32_t owner = ops_.owner(value);
      if (owner == loop_.main || owner == loop_.op || !is_copied_[owner]) continue;
      if (is_before(owner) != is_before(op)) continue;
      for (const auto& [stage, level] : places_[op]) {
        add_copy(places_[owner], stage, level, is_free || ops_.kind(owner).is_free);
      }
    }
  }

  /// From the last op to the first one: on the first stage that reads it.
  void decide_before() {
    for (const std::int32_t op : before_) is_copied_[op] = ops_.kind(op).is_free;
    const std::vector<std::int32_t> given = ops_.operands(loop_.op);
    for (std::size_t k = 0; k < given.size(); ++k) {
      reach(given[k], read_on_[k] < 0 ? home_[k] : read_on_[k]);
    }
    for (const std::int32_t op : after_) {
      for (const std::int32_t value : ops_.reads(op)) {
        for (const auto& [stage, level] : places_[op]) reach(value, stage);
      }
    }
    for (std::size_t k = before_.size(); k-- > 0;) {
      const std::int32_t op = before_[k], mark = ops_.kind(op).mark;
      if (is_copied_[op]) continue;
      stage_[op] = mark >= 0 ? mark % stages_ : std::max(stage_[op], 0);
      for (const std::int32_t value : ops_.reads(op)) reach(value, stage_[op]);
    }
    for (const std::int32_t op : before_) {
      if (is_copied_[op]) continue;
      for (const std::int32_t value : ops_.reads(op)) {
        const std::int32_t from = ops_.owner(value);
        if (!is_before(from) || is_copied_[from]) continue;
        level_[op] = std::max(level_[op], level_[from] + (stage_[from] != stage_[op]));
      }
    }
  }

  bool is_before(std::int32_t op) const { return op < loop_.op && op != loop_.main; }

  void reach(std::int32_t value, std::int32_t stage) {
    const std::int32_t op = ops_.owner(value);
    if (!is_before(op)) return;
    if (is_copied_[op]) {
      places_[op].insert({stage, 0});
    } else {
      stage_[op] = stage_[op] < 0 ? stage : std::min(stage_[op], stage);
    }
  }

  Ops& ops_;
  const Loop& loop_;
  const std::int32_t stages_;
  const SplitSums& split_;
  PlacesOfOps& places_;
  const Block &main_, &body_;
  std::vector<std::int32_t> before_, after_;
  /// By op; by argument of the body.
  std::vector<std::int32_t> stage_, level_;
  std::vector<char> is_copied_;
  std::vector<std::vector<From>> sources_;
  std::vector<std::int32_t> home_, home_level_, read_on_;
};

}  // namespace

void place_surroundings(Ops& ops, const Loop& loop, std::int32_t stages,
                        const SplitSums& split, PlacesOfOps& places) {
  Surroundings(ops, loop, stages, split, places).place();
}

}  // namespace autoshard::pipeline
