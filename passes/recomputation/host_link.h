/// For how long a device waits for transfers to and from its host, if ops run in order.
///
/// One link, which sends one value after the other, first come, first served, while ops run:
///
///   ops        | matmul | matmul | matmul |     | reader |
///   link         out a ......... | back a .......|
///                                           ^ waits for a
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace autoshard::recomputation {

/// One value that is sent.
struct Transfer {
  double seconds = 0;       ///< what it takes if the link sends nothing else
  std::int32_t begins = 0;  ///< number of the op before which it may begin
  /// Number of the op that waits for it; the number of ops: only the end of the step does.
  std::int32_t needed = 0;
};

/// When transfers are over.
struct Timetable {
  double waited = 0;  ///< seconds in which no op runs, all together
  /// For each transfer the number of the first op that runs when it is over.
  std::vector<std::int32_t> over = {};
};

/// Send all transfers beside the ops, in the order in which they begin; of those that begin at
/// the same op the one that is needed first.
///
/// Example: ops of one second each; what takes 1.5 s, begins before op 2 and is needed by op 3
/// is waited for 0.5 s.
///
/// Args:
///   start: Seconds that the link is free before each op, and in all: one more than ops. Not
///     empty, nor does a later one have less.
///   transfers: What is sent, in any order; none is needed before it begins.
Timetable timetable(std::span<const double> start, std::span<const Transfer> transfers);

/// Ops of a loop: its first one, and the one behind its last.
struct LoopOps {
  std::int32_t first = 0, last = 0;
  friend bool operator==(const LoopOps&, const LoopOps&) = default;
};

/// Seconds of something in a loop, in all of its trips.
struct LoopSeconds {
  LoopOps loop;
  double seconds = 0;
};

/// A transfer in all trips of a loop: each waits for its own.
struct LoopTransfer {
  LoopOps loop;
  Transfer transfer;  ///< begins and is needed within the loop, or at its end
};

/// The link to the host beside the ops of a plan: what a program itself sends, and how long
/// devices wait.
class HostLink {
 public:
  /// Args:
  ///   busy: Seconds of all runs of each op.
  ///   loops: In any order; within the ops.
  ///   slowdown: Times as long that ops take while something is sent beside them.
  HostLink(std::vector<double> busy, std::vector<LoopOps> loops, double slowdown = 1);

  /// A transfer of a loop.
  void add(const LoopTransfer& moved) {
    moved_.push_back(moved);
    sent_ += moved.transfer.seconds;
  }
  /// A transfer outside of loops.
  void add(const Transfer& transfer) {
    transfers_.push_back(transfer);
    sent_ += transfer.seconds;
  }

  std::int32_t num_ops() const { return static_cast<std::int32_t>(busy_.size()); }
  /// Is anything sent?
  bool is_used() const { return !moved_.empty() || !transfers_.empty(); }

  /// Seconds that the link is free.
  struct Free {
    std::vector<double> start;  ///< before each op, and in all
    double waited = 0;          ///< seconds for which loops wait
  };
  /// Args:
  ///   moved: Transfers of loops besides those that were added.
  ///   computed: Seconds of ops of loops besides those of the plan, where a trip begins.
  Free free(std::span<const LoopTransfer> moved, std::span<const LoopSeconds> computed) const;
  /// All transfers outside of loops, `more` of them first.
  Timetable table(std::span<const double> start, std::vector<Transfer> more) const;
  /// Seconds that a step is longer: those waited, and what ops beside transfers take more.
  ///
  /// Example: of 3 s that are sent 1 s is waited for; ops take 1.1 times as long beside the
  /// others, 2 s of the link: 1 + 0.2 s.
  ///
  /// Args:
  ///   sent: Seconds of transfers besides those that were added.
  ///   waited: Of all transfers.
  double delay(double sent, double waited) const;
  /// The same of the transfers that were added.
  double delay() const;

 private:
  double slowdown_ = 1;
  double sent_ = 0;  ///< seconds of the transfers that were added
  std::vector<double> busy_, start_;
  std::vector<LoopOps> loops_;  ///< the shortest first
  std::vector<LoopTransfer> moved_;
  std::vector<Transfer> transfers_;
};

}  // namespace autoshard::recomputation
