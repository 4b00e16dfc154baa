#include "planning/stream_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

namespace autoshard::planning {
namespace {

constexpr std::int32_t no_task = -1;

/// Makes the schedule from its end: `now_` is how long before it, and what a task waits for
/// comes behind it.
class FromEnd {
 public:
  FromEnd(const std::vector<Task>& tasks, double slowdown)
      : tasks_(tasks), slowdown_(slowdown), open_readers_(tasks.size(), 0) {
    made_.tasks.resize(tasks.size());
    check();
    for (const Task& task : tasks_) {
      for (std::int32_t before : task.after) ++open_readers_[before];
    }
  }

  StreamSchedule run() {
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      if (open_readers_[t] == 0) queue(static_cast<std::int32_t>(t));
    }
    while (num_ended_ < tasks_.size()) {
      begin_collectives();
      begin_computing();
      if (computing_ == no_task && sending_.empty()) {
        throw std::invalid_argument("tasks wait for each other in a circle");
      }
      go_on();
    }
    return forwards();
  }

 private:
  struct Sending {
    std::int32_t task;
    double left;
  };
  /// By the highest number: what comes last in the program.
  using Queue = std::priority_queue<std::pair<std::int32_t, std::int32_t>>;

  void check() const;
  void queue(std::int32_t task);
  void begin_collectives();
  void begin_computing();
  void compute(Queue& queue);
  void go_on();
  void end(std::int32_t task);
  StreamSchedule forwards();

  bool is_free(LinkStreams links) const { return (taken_ & links) == 0; }
  bool is_slowed() const {
    return computing_ != no_task && tasks_[computing_].links == 0 && !sending_.empty();
  }

  const std::vector<Task>& tasks_;
  const double slowdown_;
  /// By task: those that wait for it and have not ended.
  std::vector<std::int32_t> open_readers_;
  StreamSchedule made_;
  double now_ = 0;
  std::size_t num_ended_ = 0;
  LinkStreams taken_ = 0;
  /// On the cores, and how long it would still take alone.
  std::int32_t computing_ = no_task;
  double left_ = 0;
  /// Collectives that do not keep the cores.
  std::vector<Sending> sending_;
  /// What may begin: ops, what takes cores and links, and other collectives by their links.
  Queue ops_, both_;
  std::array<Queue, 1 << num_link_streams> collectives_;
};

void FromEnd::check() const {
  const auto fail = [](std::size_t task, const std::string& what) {
    throw std::invalid_argument("task " + std::to_string(task) + " " + what);
  };
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const Task& task = tasks_[t];
    if (!(task.seconds >= 0 && task.seconds <= std::numeric_limits<double>::max())) {
      fail(t, "takes " + std::to_string(task.seconds) + " seconds; 0 or more are needed");
    }
    if (task.links >= collectives_.size()) fail(t, "takes links that are none");
    if (!task.computes && task.links == 0) fail(t, "takes neither cores nor links");
    for (std::int32_t before : task.after) {
      if (before < 0 || static_cast<std::size_t>(before) >= tasks_.size()) {
        fail(t, "waits for task " + std::to_string(before) + ", which is none");
      }
    }
  }
  if (!(slowdown_ >= 1)) throw std::invalid_argument("a slowdown of 1 or more is needed");
}

void FromEnd::queue(std::int32_t task) {
  const Task& what = tasks_[task];
  if (what.computes) {
    (what.links == 0 ? ops_ : both_).emplace(task, task);
    return;
  }
  std::int32_t maker = no_task;
  for (std::int32_t before : what.after) maker = std::max(maker, before);
  collectives_[what.links].emplace(maker, task);
}

void FromEnd::begin_collectives() {
  while (true) {
    Queue* next = nullptr;
    for (std::size_t links = 1; links < collectives_.size(); ++links) {
      Queue& waiting = collectives_[links];
      if (waiting.empty() || !is_free(static_cast<LinkStreams>(links))) continue;
      if (!next || next->top() < waiting.top()) next = &waiting;
    }
    if (!next) return;
    const std::int32_t task = next->top().second;
    next->pop();
    made_.tasks[task].end = now_;
    taken_ |= tasks_[task].links;
    sending_.push_back({task, tasks_[task].seconds});
  }
}

void FromEnd::begin_computing() {
  if (computing_ != no_task) return;
  const bool may_take_both = !both_.empty() && is_free(tasks_[both_.top().second].links);
  if (may_take_both && (ops_.empty() || ops_.top() < both_.top())) {
    compute(both_);
  } else if (!ops_.empty()) {
    compute(ops_);
  }
}

void FromEnd::compute(Queue& queue) {
  computing_ = queue.top().second;
  queue.pop();
  left_ = tasks_[computing_].seconds;
  taken_ |= tasks_[computing_].links;
  made_.tasks[computing_].end = now_;
}

void FromEnd::go_on() {
  const double rate = is_slowed() ? slowdown_ : 1;
  const auto first =
      std::min_element(sending_.begin(), sending_.end(),
                       [](const Sending& a, const Sending& b) { return a.left < b.left; });
  const bool ends_computing =
      computing_ != no_task && (first == sending_.end() || rate * left_ <= first->left);
  const double seconds = ends_computing ? rate * left_ : first->left;
  if (computing_ == no_task) made_.tasks[first->task].exposed += seconds;
  now_ += seconds;
  left_ = ends_computing ? 0 : left_ - seconds / rate;
  for (Sending& one : sending_) one.left -= seconds;
  // All that ends now ends before anything begins.
  if (ends_computing) end(std::exchange(computing_, no_task));
  for (std::size_t i = sending_.size(); i-- > 0;) {
    if (sending_[i].left > 0) continue;
    const std::int32_t task = sending_[i].task;
    sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i));
    end(task);
  }
}

void FromEnd::end(std::int32_t task) {
  made_.tasks[task].begin = now_;
  taken_ &= static_cast<LinkStreams>(~tasks_[task].links);
  ++num_ended_;
  for (std::int32_t before : tasks_[task].after) {
    if (--open_readers_[before] == 0) queue(before);
  }
}

StreamSchedule FromEnd::forwards() {
  made_.seconds = now_;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    // From the end both are later than what comes before it in the step.
    double until = now_;
    for (std::int32_t before : tasks_[t].after) {
      until = std::min(until, made_.tasks[before].end);
    }
    made_.tasks[t].slack = std::max(0.0, until - made_.tasks[t].begin);
  }
  for (TaskTimes& times : made_.tasks) {
    times.begin = now_ - times.begin;
    times.end = now_ - times.end;
  }
  return std::move(made_);
}

}  // namespace

LinkStreams stream_of(LinkKind kind) {
  if (kind == LinkKind::network) return 4;
  return kind == LinkKind::switched ? 2 : 1;
}

StreamSchedule scheduled_from_end(const std::vector<Task>& tasks, double slowdown) {
  return FromEnd(tasks, slowdown).run();
}

}  // namespace autoshard::planning
