#include "pipeline/stages.h"

#include <algorithm>

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
  Stager(const ModuleStructure& module, const Loop& loop, const Options& options,
         const std::vector<double>& seconds, const Describe& describe)
      : ops_(module, describe),
        loop_(loop),
        options_(options),
        body_(body_of(ops_, loop, seconds)),
        line_(body_.line) {
    op_of_.resize(line_.size());
    for (std::size_t k = 0; k < body_.ops.size(); ++k) {
      if (body_.node[k] >= 0) op_of_[body_.node[k]] = body_.ops[k];
    }
  }

  Stages run() {
    ranges_ = ranges_of(line_, options_.stages);
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
    cut();
    decide();
    measure();
    place();
    return std::move(found_);
  }

 private:
  CannotCut refused(Why why, std::int32_t op = -1, std::int32_t stage = -1,
                    double share = 0) const {
    return {why, op, stage, share, found_.units};
  }

  /// Chooses the units with which stages begin.
  void cut() {
    std::vector<Unit> units(places_.units.size());
    const std::vector<double> bytes = crossing(line_, places_);
    double whole = 0;
    bool has_marks = false;
    for (std::size_t u = 0; u < units.size(); ++u) {
      units[u].bytes = bytes[u];
      units[u].range = ranges_[places_.units[u]];
      has_marks |= line_.mark[places_.units[u]] >= 0;
    }
    for (std::int32_t node = 0; node < line_.size(); ++node) {
      if (!units.empty()) units[places_.unit[node]].seconds += line_.seconds[node];
      whole += line_.seconds[node];
    }
    if (found_.units < options_.stages) throw refused(Why::few);
    const std::optional<double> least = least_slowest_seconds(units, options_.stages);
    if (!least) throw refused(Why::marks);
    found_.least_seconds = *least;
    constexpr double most = 1.5;  // times the mean; no choice of cuts makes up for more
    for (std::size_t u = 0; u < units.size() && !has_marks; ++u) {
      const std::int32_t op = op_of_[places_.units[u]];
      if (ops_.kind(op).is_loop && units[u].seconds * options_.stages > most * whole) {
        throw refused(Why::loop, op, -1, units[u].seconds / whole);
      }
    }
    const double limit = *least * options_.slack;
    first_units_ = cheapest_cuts(units, options_.stages, limit)->first_units;
  }

  /// The stage of each node, cut after cut: near one, fewest bytes decide.
  void decide() {
    const std::int32_t stages = options_.stages;
    stage_.assign(line_.size(), 0);
    for (std::int32_t k = 1; k < stages; ++k) {
      const std::int32_t cut = first_units_[k - 1];
      const std::int32_t low = k > 1 ? first_units_[k - 2] : 0;
      const std::int32_t high = k < stages - 1 ? first_units_[k] : found_.units;
      std::vector<Side> side(line_.size(), Side::open);
      for (std::int32_t node = 0; node < line_.size(); ++node) {
        const std::int32_t unit = places_.unit[node];
        if (line_.is_forward[node] && line_.is_unit[node]) {
          side[node] = unit < cut ? Side::before : Side::behind;
        } else if (ranges_[node].first >= k) {
          side[node] = Side::behind;
        } else if (ranges_[node].last < k || stage_[node] < k - 1 || unit < low) {
          side[node] = Side::before;
        } else if (unit >= high) {
          side[node] = Side::behind;
        }
      }
      decide_sides(line_, side);
      for (std::int32_t node = 0; node < line_.size(); ++node) {
        if (side[node] == Side::behind) stage_[node] = k;
      }
    }
  }

  void measure() {
    found_.seconds.assign(options_.stages, 0.0);
    for (std::int32_t node = 0; node < line_.size(); ++node) {
      found_.seconds[stage_[node]] += line_.seconds[node];
    }
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
    const std::vector<std::int32_t> level = levels_of(line_, stage_);
    PlacesOfOps places(ops_.module.ops.size());
    for (std::size_t k = body_.ops.size(); k-- > 0;) {
      const std::int32_t op = body_.ops[k], node = body_.node[k];
      if (node >= 0) places[op] = {{stage_[node], level[node]}};
      for (const std::int32_t value : body_.reads[k]) {
        const std::int32_t from = ops_.owner(value);
        if (from <= loop_.op) continue;
        const auto at = std::lower_bound(body_.ops.begin(), body_.ops.end(), from);
        const auto maker = at - body_.ops.begin();
        if (body_.node[maker] >= 0) continue;
        for (const auto& [s, l] : places[op]) {
          add_copy(places[from], s, l, body_.is_free[maker]);
        }
      }
    }
    place_surroundings(ops_, loop_, places);
    for (std::size_t op = 0; op < places.size(); ++op) {
      for (const auto& [s, l] : places[op]) {
        found_.places.push_back({static_cast<std::int32_t>(op), s, l});
      }
    }
  }

  Ops ops_;
  const Loop& loop_;
  const Options& options_;
  const Body body_;
  const Line& line_;
  /// By node.
  std::vector<std::int32_t> op_of_, stage_;
  std::vector<Range> ranges_;
  Places places_;
  std::vector<std::int32_t> first_units_;
  Stages found_;
};

}  // namespace

Stages stages_of(const ModuleStructure& module, const Loop& loop, const Options& options,
                 const std::vector<double>& seconds, const Describe& describe) {
  return Stager(module, loop, options, seconds, describe).run();
}

}  // namespace autoshard::pipeline
