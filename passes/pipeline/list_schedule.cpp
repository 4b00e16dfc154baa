#include "pipeline/list_schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace autoshard::pipeline {
namespace {

/// What is done first: by rank, group of micro-batches, number and micro-batch.
using Rank = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>;

/// What a stage does next: its start, whether it is deferred, the stage and the work.
using Next = std::tuple<double, bool, std::int32_t, std::int32_t>;

class Scheduler {
 public:
  Scheduler(const std::vector<ListWork>& works, const ListOptions& options)
      : works_(works), options_(options), readers_(works.size()), ends_(works.size()) {
    std::int32_t stages = 0;
    for (const ListWork& work : works) stages = std::max(stages, work.stage + 1);
    queues_.resize(stages);
    free_.assign(stages, 0.0);
    ahead_.assign(stages, 0);
    kept_.assign(stages, 0);
    for (std::size_t k = 0; k < works.size(); ++k) {
      const ListWork& work = works[k];
      const auto number = static_cast<std::int32_t>(k);
      auto& queues = queues_[work.stage];
      if (queues.size() <= static_cast<std::size_t>(work.name)) queues.resize(work.name + 1);
      queues[work.name].push_back(rank_of(number, 0));
      for (const std::int32_t it : work.after) {
        std::vector<std::int32_t>& readers = readers_[it];
        if (std::find(readers.begin(), readers.end(), work.stage) == readers.end()) {
          readers.push_back(work.stage);
        }
      }
    }
    for (auto& queues : queues_) {
      for (auto& queue : queues) std::make_heap(queue.begin(), queue.end(), std::greater<>());
    }
  }

  std::optional<std::vector<ListRun>> run() {
    const std::size_t count = works_.size() * static_cast<std::size_t>(options_.micro_batches);
    std::vector<ListRun> runs;
    runs.reserve(count);
    std::vector<std::optional<Next>> following(queues_.size());
    const auto ask_all = [&] {
      for (std::size_t stage = 0; stage < queues_.size(); ++stage) {
        following[stage] = first(static_cast<std::int32_t>(stage));
      }
    };
    ask_all();
    while (runs.size() < count) {
      const Next* best = nullptr;
      for (const std::optional<Next>& it : following) {
        if (it && (best == nullptr || *it < *best)) best = &*it;
      }
      if (best == nullptr) {
        const bool may_raise =
            options_.limits.are_raised && static_cast<std::size_t>(raised_) < count;
        if (!may_raise) return std::nullopt;
        ++raised_;
        ask_all();
        continue;
      }
      const auto [start, is_deferred, stage, number] = *best;
      runs.push_back(done(number, start));
      following[stage] = first(stage);  // what the others do next is the same
      for (const std::int32_t reader : readers_[number]) following[reader] = first(reader);
    }
    return runs;
  }

 private:
  Rank rank_of(std::int32_t number, std::int32_t micro_batch) const {
    return {works_[number].rank, micro_batch / options_.together, number, micro_batch};
  }
  static std::int32_t number_of(const Rank& rank) { return std::get<2>(rank); }

  std::int32_t micro_batch(std::int32_t number) const {
    return static_cast<std::int32_t>(ends_[number].size());
  }

  bool is_within(const std::vector<std::int32_t>& limit, std::int32_t stage, std::int32_t now,
                 std::int32_t more) const {
    return limit.empty() || more <= 0 || now + more <= limit[stage] + raised_;
  }

  /// When the next micro-batch's may start, but for its stage; none: that is not known yet.
  std::optional<double> ready(std::int32_t number) const {
    const ListWork& work = works_[number];
    const ListLimits& limits = options_.limits;
    if (!is_within(limits.ahead, work.stage, ahead_[work.stage], work.ahead) ||
        !is_within(limits.kept, work.stage, kept_[work.stage], work.kept)) {
      return std::nullopt;
    }
    const std::size_t now = ends_[number].size();
    double ready = 0;
    for (std::size_t k = 0; k < work.after.size(); ++k) {
      const std::vector<double>& ends = ends_[work.after[k]];
      if (ends.size() <= now) return std::nullopt;
      ready = std::max(ready, ends[now] + work.ways[k]);
    }
    return ready;
  }

  /// What a stage does next; none: it has to wait.
  std::optional<Next> first(std::int32_t stage) {
    options_of_.clear();
    for (const auto& queue : queues_[stage]) {
      if (queue.empty()) continue;
      if (const std::optional<double> at = ready(number_of(queue.front()))) {
        options_of_.emplace_back(std::max(*at, free_[stage]), queue.front());
      }
    }
    if (options_of_.empty()) return std::nullopt;
    const Option* best = &*std::min_element(options_of_.begin(), options_of_.end());
    const ListWork& work = works_[number_of(best->second)];
    if (options_.patience != 0 && work.is_deferred) {
      const double end = best->first + options_.patience * work.seconds;
      const Option* other = nullptr;
      for (const Option& it : options_of_) {
        if (it.first >= end || works_[number_of(it.second)].is_deferred) continue;
        if (other == nullptr || it < *other) other = &it;
      }
      if (other != nullptr) best = other;
    }
    const std::int32_t number = number_of(best->second);
    return Next{best->first, works_[number].is_deferred, stage, number};
  }

  ListRun done(std::int32_t number, double start) {
    const ListWork& work = works_[number];
    const double end = start + work.seconds;
    ends_[number].push_back(end);
    free_[work.stage] = end;
    ahead_[work.stage] += work.ahead;
    kept_[work.stage] += work.kept;
    auto& queue = queues_[work.stage][work.name];
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());  // it was the first one
    if (micro_batch(number) < options_.micro_batches) {
      queue.back() = rank_of(number, micro_batch(number));
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    } else {
      queue.pop_back();
    }
    return {number, micro_batch(number) - 1, start, end};
  }

  using Option = std::pair<double, Rank>;

  const std::vector<ListWork>& works_;
  const ListOptions& options_;
  /// By how much all limits have been raised.
  std::int32_t raised_ = 0;
  /// By stage and name: a heap of the works that are left.
  std::vector<std::vector<std::vector<Rank>>> queues_;
  /// By work: the stages that read what it makes; ends of its micro-batches.
  std::vector<std::vector<std::int32_t>> readers_;
  std::vector<std::vector<double>> ends_;
  /// By stage.
  std::vector<double> free_;
  std::vector<std::int32_t> ahead_, kept_;
  std::vector<Option> options_of_;
};

}  // namespace

std::optional<std::vector<ListRun>> list_schedule(const std::vector<ListWork>& works,
                                                  const ListOptions& options) {
  return Scheduler(works, options).run();
}

}  // namespace autoshard::pipeline
