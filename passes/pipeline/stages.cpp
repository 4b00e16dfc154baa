#include "pipeline/stages.h"

#include <algorithm>
#include <utility>

#include "pipeline/cuts.h"
#include "pipeline/levels.h"
#include "pipeline/min_cut.h"
#include "pipeline/surroundings.h"

namespace autoshard::pipeline {

using importer::Block;
using importer::ModuleStructure;

namespace {

class Stager {
 public:
  Stager(Ops& ops, const Loop& loop, const Body& body, const Options& options)
      : ops_(ops),
        loop_(loop),
        options_(options),
        parts_(options.stages * options.chunks),
        body_(body),
        line_(body.line) {
    op_of_.resize(line_.size());
    for (std::size_t k = 0; k < body_.ops.size(); ++k) {
      if (body_.node[k] >= 0) op_of_[body_.node[k]] = body_.ops[k];
    }
  }

  Stages run(bool is_placed) {
    lie();
    cut();
    if (is_placed) place();
    return std::move(found_);
  }

  Stages run_on_line() {
    lie();
    cut_line();
    return std::move(found_);
  }

 private:
  /// Finds the units, and where all else lies.
  void lie() {
    ranges_ = ranges_of(line_, parts_);
    for (std::int32_t node = 0; node < line_.size(); ++node) {
      const std::int32_t mark = line_.mark[node];
      const std::int32_t led_to =
          line_.is_forward[node] ? ranges_[node].first : ranges_[node].last;
      if (mark >= 0 && (line_.is_forward[node] ? led_to > mark : led_to < mark)) {
        throw refused(Why::order, op_of_[node], led_to);
      }
    }
    places_ = places_of(line_, ranges_);
    found_.units = static_cast<std::int32_t>(places_.units.size());
  }

  CannotCut refused(Why why, std::int32_t op = -1, std::int32_t stage = -1,
                    double share = 0) const {
    return {why, op, stage, share, found_.units};
  }

  /// What lies at each unit.
  std::vector<Unit> read_units() const {
    std::vector<Unit> units(places_.units.size());
    const std::vector<double> bytes = crossing(line_, places_);
    for (std::size_t u = 0; u < units.size(); ++u) {
      units[u].bytes = bytes[u];
      units[u].range = ranges_[places_.units[u]];
    }
    for (std::int32_t node = 0; node < line_.size() && !units.empty(); ++node) {
      units[places_.unit[node]].seconds += line_.seconds[node];
    }
    return units;
  }

  /// Throws where one loop, which has no mark, is too much for a stage.
  void check_loops(const std::vector<Unit>& units) {
    double whole = 0;
    for (const Unit& unit : units) whole += unit.seconds;
    constexpr double most = 1.5;  // times the mean; no choice of cuts makes up for more
    for (const std::int32_t unit : places_.units) {
      if (line_.mark[unit] >= 0) return;
    }
    for (std::size_t u = 0; u < units.size(); ++u) {
      const std::int32_t op = op_of_[places_.units[u]];
      if (ops_.kind(op).is_loop && units[u].seconds * parts_ > most * whole) {
        throw refused(Why::loop, op, -1, units[u].seconds / whole);
      }
    }
  }

  /// Chooses the units with which stages begin, and the stage of all else.
  ///
  /// What is no unit may end on another stage than the cut was chosen by: then it is counted
  /// there, and a cut is chosen anew, with less slack.
  void cut() {
    std::vector<Unit> units = read_units();
    check_loops(units);
    if (found_.units < parts_) throw refused(Why::few);
    std::optional<std::vector<std::int32_t>> best;
    std::pair<double, double> fewest;
    const auto is_good = [&] {
      decide();
      measure();
      const std::pair<double, double> slowest = slowest_of(found_.seconds);
      if (!best || slowest < fewest) best = first_units_, fewest = slowest;
      return slowest.first <= found_.least_seconds * options_.slack;
    };
    for (const double part : {1.0, 0.6, 0.3, 0.0}) {
      const auto least = least_turns(units, options_.stages, options_.chunks);
      if (!least) throw refused(Why::marks);
      if (!best) found_.least_seconds = slowest_of(*least).first;
      if (!best && cut_cheaply(units) && is_good()) return;
      first_units_ = cut_within(units, *least, 1 + part * (options_.slack - 1));
      if (is_good() && keeps(*least)) return;
      follow();
      units = read_units();
    }
    if (*best == first_units_) return;
    first_units_ = *best;
    decide();
    measure();
  }

  /// The same by what lies at units alone.
  void cut_line() {
    const std::vector<Unit> units = read_units();
    check_loops(units);
    if (found_.units < parts_) throw refused(Why::few);
    const auto least = least_turns(units, options_.stages, options_.chunks);
    if (!least) throw refused(Why::marks);
    found_.least_seconds = slowest_of(*least).first;
    if (!cut_cheaply(units)) first_units_ = cut_within(units, *least, options_.slack);
    found_.seconds.assign(parts_, 0.0);
    for (std::int32_t unit = 0; unit < found_.units; ++unit) {
      found_.seconds[part_of_unit(unit)] += units[unit].seconds;
    }
    for (const std::int32_t unit : first_units_) {
      found_.cuts.push_back({op_of_[places_.units[unit]], units[unit].bytes, 0});
    }
  }

  static std::vector<std::int32_t> cut_within(const std::vector<Unit>& units,
                                              std::vector<double> limits, double slack) {
    for (double& limit : limits) limit *= slack + 1e-9;
    return cheapest_cuts(units, limits)->first_units;
  }

  /// Cuts only where the fewest bytes cross; false: not possible, or not needed, as where each
  /// stage has one part the slack is for all of it.
  bool cut_cheaply(const std::vector<Unit>& units) {
    if (options_.chunks == 1) return false;
    const std::vector<std::int32_t> places = cheapest_places(units, parts_);
    const std::vector<Unit> few = joined(units, places);
    const auto least = least_turns(few, options_.stages, options_.chunks);
    if (!least) return false;
    const double slack = options_.slack * found_.least_seconds / slowest_of(*least).first;
    if (slack < 1) return false;
    first_units_ = cut_within(few, *least, slack);
    for (std::int32_t& unit : first_units_) unit = places[unit];
    return true;
  }

  /// Seconds of the slowest stage, and of the slowest part, by those of parts.
  std::pair<double, double> slowest_of(const std::vector<double>& parts) const {
    std::vector<double> stages(options_.stages, 0.0);
    for (std::int32_t part = 0; part < parts_; ++part) {
      stages[part % options_.stages] += parts[part];
    }
    return {*std::max_element(stages.begin(), stages.end()),
            *std::max_element(parts.begin(), parts.end())};
  }

  /// Do parts take no more than limits, and a little?
  bool keeps(const std::vector<double>& limits) const {
    for (std::int32_t part = 0; part < parts_; ++part) {
      if (found_.seconds[part] > limits[part] * options_.slack) return false;
    }
    return true;
  }

  /// Lets nodes lie at the nearest unit of the stage that they are on.
  void follow() {
    for (std::int32_t node = 0; node < line_.size(); ++node) {
      const std::int32_t k = stage_[node];
      const std::int32_t low = k > 0 ? first_units_[k - 1] : 0;
      const std::int32_t high = k < parts_ - 1 ? first_units_[k] : found_.units;
      places_.unit[node] = std::clamp(places_.unit[node], low, high - 1);
    }
  }

  /// The part of each node, cut after cut: near one, fewest bytes decide.
  ///
  /// A node is open where the part of its unit begins, and where that ends, if it is behind
  /// the first of these cuts. So each cut asks the nodes of two parts.
  void decide() {
    std::vector<std::vector<std::int32_t>> nodes_of(parts_);
    stage_.resize(line_.size());
    for (std::int32_t node = 0; node < line_.size(); ++node) {
      const std::int32_t part = part_of_unit(places_.unit[node]);
      if (line_.is_forward[node] && line_.is_unit[node]) {
        stage_[node] = part;
        continue;
      }
      stage_[node] = std::clamp(part - 1, ranges_[node].first, ranges_[node].last);
      nodes_of[part].push_back(node);
    }
    std::vector<std::int32_t> open;
    for (std::int32_t k = 1; k < parts_; ++k) {
      open.clear();
      for (const std::int32_t part : {k - 1, k}) {
        for (const std::int32_t node : nodes_of[part]) {
          if (side_of(node, k) == Side::open) open.push_back(node);
        }
      }
      std::sort(open.begin(), open.end());
      const auto side = [&](std::int32_t node) { return side_of(node, k); };
      const std::vector<char> is_behind = open_sides(line_, open, side);
      for (std::size_t n = 0; n < open.size(); ++n) {
        if (is_behind[n]) stage_[open[n]] = k;
      }
    }
  }

  std::int32_t part_of_unit(std::int32_t unit) const {
    const auto behind = std::upper_bound(first_units_.begin(), first_units_.end(), unit);
    return static_cast<std::int32_t>(behind - first_units_.begin());
  }

  /// The side of a node at the cut in front of part `k`, those before it being decided.
  Side side_of(std::int32_t node, std::int32_t k) const {
    const std::int32_t unit = places_.unit[node];
    if (line_.is_forward[node] && line_.is_unit[node]) {
      return unit < first_units_[k - 1] ? Side::before : Side::behind;
    }
    if (ranges_[node].first >= k) return Side::behind;
    const std::int32_t low = k > 1 ? first_units_[k - 2] : 0;
    if (ranges_[node].last < k || stage_[node] < k - 1 || unit < low) return Side::before;
    const std::int32_t high = k < parts_ - 1 ? first_units_[k] : found_.units;
    return unit >= high ? Side::behind : Side::open;
  }

  void measure() {
    found_.seconds.assign(parts_, 0.0);
    for (std::int32_t node = 0; node < line_.size(); ++node) {
      found_.seconds[stage_[node]] += line_.seconds[node];
    }
    found_.cuts.clear();
    for (const std::int32_t unit : first_units_) {
      found_.cuts.push_back({op_of_[places_.units[unit]], 0, 0});
    }
    for (const Value& value : line_.values) {
      if (value.maker < 0) continue;
      std::int32_t low = stage_[value.maker], high = low;
      for (const std::int32_t reader : value.readers) {
        low = std::min(low, stage_[reader]);
        high = std::max(high, stage_[reader]);
      }
      for (std::int32_t k = low; k < high; ++k) {
        found_.cuts[k].bytes += value.bytes;
        ++found_.cuts[k].values;
      }
    }
  }

  void place() {
    for (std::int32_t& stage : stage_) stage %= options_.stages;
    const std::vector<std::int32_t> level = levels_of(line_, stage_);
    PlacesOfOps places(ops_.module.ops.size());
    for (std::size_t k = 0; k < body_.ops.size(); ++k) {
      const std::int32_t node = body_.node[k];
      if (node >= 0) places[body_.ops[k]] = {{stage_[node], level[node]}};
    }
    const SplitSums split = add_sums(places);
    for (std::size_t k = body_.ops.size(); k-- > 0;) {
      const std::int32_t op = body_.ops[k];
      for (const std::int32_t value : body_.reads[k]) {
        const std::int32_t maker =
            ops_.owner(value) <= loop_.op ? -1 : index(ops_.owner(value));
        if (maker < 0 || body_.node[maker] >= 0 || body_.is_sum[maker]) continue;
        auto& copies = places[body_.ops[maker]];
        if (body_.is_sum[k] && places[op].empty()) add_copy(copies, 0, 0, true);
        for (const auto& [s, l] : places[op]) add_copy(copies, s, l, body_.is_free[maker]);
      }
    }
    place_surroundings(ops_, loop_, options_.stages, split, places);
    for (std::size_t op = 0; op < places.size(); ++op) {
      for (const auto& [s, l] : places[op]) {
        found_.places.push_back({static_cast<std::int32_t>(op), s, l});
      }
    }
  }

  std::size_t index(std::int32_t op) const {
    return std::lower_bound(body_.ops.begin(), body_.ops.end(), op) - body_.ops.begin();
  }

  /// Places of the ops that add to what the loop sums up: on the stage of what they add. Those
  /// of sums over several stages stay without.
  SplitSums add_sums(PlacesOfOps& places) {
    std::vector<std::pair<std::int32_t, std::int32_t>> low(body_.ops.size(), {-1, -1}),
        high(low);
    std::vector<char> is_read(body_.ops.size(), 0);
    for (std::size_t k = 0; k < body_.ops.size(); ++k) {
      if (!body_.is_sum[k]) continue;
      for (const std::int32_t value : body_.reads[k]) {
        if (ops_.owner(value) <= loop_.op) continue;
        const std::size_t maker = index(ops_.owner(value));
        auto first = low[maker], last = high[maker];
        if (body_.is_sum[maker]) {
          is_read[maker] = 1;
        } else if (body_.node[maker] >= 0) {
          first = last = *places[body_.ops[maker]].begin();
        }
        if (first.first < 0) continue;
        low[k] = low[k].first < 0 ? first : std::min(low[k], first);
        high[k].first = std::max(high[k].first, last.first);
        high[k].second = std::max(high[k].second, last.second);
      }
    }
    SplitSums split;
    std::vector<char> is_split(body_.ops.size(), 0);
    for (std::size_t k = body_.ops.size(); k-- > 0;) {
      if (!body_.is_sum[k]) continue;
      if (!is_read[k]) is_split[k] = low[k].first != high[k].first;
      for (const std::int32_t value : body_.reads[k]) {
        if (ops_.owner(value) <= loop_.op) continue;
        const std::size_t maker = index(ops_.owner(value));
        if (body_.is_sum[maker]) is_split[maker] = is_split[k];
      }
      if (!is_split[k]) {
        // A sum of constants alone is wherever.
        places[body_.ops[k]] = {{std::max(low[k].first, 0), std::max(high[k].second, 0)}};
      } else if (!is_read[k]) {
        split[body_.ops[k]] = low[k].first;
        found_.split_sums.push_back(body_.ops[k]);
      }
    }
    return split;
  }

  Ops& ops_;
  const Loop& loop_;
  const Options& options_;
  const std::int32_t parts_;
  const Body& body_;
  const Line& line_;
  /// By node.
  std::vector<std::int32_t> op_of_, stage_;
  std::vector<Range> ranges_;
  Places places_;
  std::vector<std::int32_t> first_units_;
  Stages found_;
};

}  // namespace

TimedStep::TimedStep(ModuleStructure module, Loop loop, std::vector<double> seconds,
                     const Describe& describe)
    : module_(std::move(module)),
      loop_(std::move(loop)),
      seconds_(std::move(seconds)),
      ops_(module_, describe),
      body_(body_of(ops_, loop_, seconds_)) {
  ops_.describe(module_.regions[module_.ops[loop_.main].first_region]);
  ops_.describe(module_.regions[module_.ops[loop_.op].first_region + 1]);
  ops_.forget_describe();
}

Stages TimedStep::cut(const Options& options) {
  return Stager(ops_, loop_, body_, options).run(true);
}

Stages TimedStep::parts(const Options& options) {
  return Stager(ops_, loop_, body_, options).run(false);
}

Stages TimedStep::parts_on_line(const Options& options) {
  return Stager(ops_, loop_, body_, options).run_on_line();
}

std::vector<StageWork> TimedStep::works(const std::vector<Place>& places) const {
  return works_of(ops_, loop_, places, seconds_);
}

}  // namespace autoshard::pipeline
