/// Tasks of one step on streams that do one thing at a time, scheduled from the end.
#pragma once

#include <cstdint>
#include <vector>

#include "model/cluster.h"

namespace autoshard::planning {

/// One of the streams of links, or several that a collective takes at once: one bit each.
using LinkStreams = std::uint8_t;
inline constexpr int num_link_streams = 3;

/// The stream of a kind of link: rings and lines share one (ICI), as do the links within a
/// node (NVLink), and those between nodes or slices.
LinkStreams stream_of(LinkKind kind);

/// What takes the cores, links, or both.
struct Task {
  double seconds = 0;
  /// Takes the cores, and so keeps other tasks from computing.
  bool computes = false;
  /// Links that it takes from its beginning to its end.
  LinkStreams links = 0;
  /// Tasks that end before it begins; their numbers.
  std::vector<std::int32_t> after = {};
};

/// When a task of a schedule runs, and what it keeps waiting. Seconds.
struct TaskTimes {
  double begin = 0, end = 0;
  /// While the task took links, so long did nothing compute. Of what computes 0.
  double exposed = 0;
  /// How much longer it could take until a task waited for it that now begins later than its
  /// end; of what nothing waits for, until the end of the step.
  double slack = 0;
};

struct StreamSchedule {
  double seconds = 0;
  /// By task.
  std::vector<TaskTimes> tasks;
};

/// Schedules `tasks` as latency-hiding schedulers do: from the end, each as late as its
/// readers let it, so that what is gathered early waits for as short as it can. At every
/// moment
///
///   - a collective takes its links as soon as they are free; among several the one whose
///     maker has the highest number first: there is least time left to hide it
///   - the cores take the task of the highest number whose readers are scheduled; other ones
///     are pulled in front of one that waits for a collective
///
/// While a collective runs, what computes takes `slowdown` times as long. So the numbers of
/// tasks are their order in the program, and what depends on nothing but arguments may begin
/// with the step.
///
/// Example: ops of 3, 2 and 4 s, a collective of 5 s that waits for the first and for which
/// the third waits, slowdown 1: the ops run from 0 to 3, 6 to 8 and 8 to 12, the collective
/// from 3 to 8. It takes 12 s, of which 3 are exposed, and the collective has no slack.
///
/// Throws `std::invalid_argument` where tasks wait for each other in a circle, for themselves
/// or for a number that is none, take nothing, or take less than no time.
StreamSchedule scheduled_from_end(const std::vector<Task>& tasks, double slowdown);

}  // namespace autoshard::planning
