/// What decisions about the values of a block do to its memory and its step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "recomputation/block.h"
#include "recomputation/clones.h"
#include "recomputation/fetches.h"
#include "recomputation/host_link.h"

namespace autoshard::recomputation {

/// What becomes of a value between the halves of a step.
enum class Fate : std::uint8_t { keep, again, host };

/// A value that may go.
struct Member {
  Dropped gap;
  double send_seconds = 0;  ///< of all transfers one way, in a step
};

/// What else is decided: about what loops stack for each other.
struct StackChanges {
  double seconds = 0;
  /// (point, bytes): from this point on so many bytes more live on a device.
  std::vector<std::pair<std::int32_t, double>> change = {};
  /// As of `HostLink::free`.
  std::vector<LoopTransfer> moved = {};
  std::vector<LoopSeconds> computed = {};
};

/// Bytes above the limit, over all points of the program, and what decisions add to a step.
struct Answer {
  double excess = 0, seconds = 0;
};

struct Effect {
  Answer answer;
  std::vector<double> live = {};  ///< bytes on one device at each point
  Clones clones;
  std::vector<Fetch> fetches = {};
};

/// Answers for all sets of decisions about the same values.
class Effects {
 public:
  /// Args:
  ///   block: The ops; outlives this.
  ///   live: Bytes on one device at each point, if everything is kept.
  ///   limit: Bytes on one device.
  ///   rules: What is kept where nothing is decided about it.
  ///   members: Values that may go.
  ///   linked: The block beside the link to the host, if something is sent over it.
  Effects(const Block& block, std::vector<double> live, double limit, const CloneRules& rules,
          std::vector<Member> members, std::optional<LinkedBlock> linked);

  std::size_t num_members() const { return members_.size(); }
  bool is_linked() const { return linked_.has_value(); }

  /// Args:
  ///   fates: Of each member; none goes to the host where there is no link.
  ///   stacks: What is decided besides.
  Effect effect(std::span<const Fate> fates, const StackChanges& stacks) const;
  /// The same without what is written for it.
  Answer answer(std::span<const Fate> fates, const StackChanges& stacks) const;
  /// Bytes above the limit of at least that answer's, in a small part of its time: what goes
  /// takes no memory while it waits, and nothing for that lives longer. Without stacks.
  double least_excess(std::span<const Fate> fates) const;

 private:
  /// The effect but for `live`; of `clones.change` all that changes.
  Effect decided(std::span<const Fate> fates, const StackChanges& stacks,
                 bool with_batches) const;

  const Block& block_;
  const std::vector<double> live_;
  const double limit_;
  const CloneRules rules_;
  const std::vector<Member> members_;
  const std::optional<LinkedBlock> linked_;
  double delay_ = 0;  ///< by what the program itself sends
};

}  // namespace autoshard::recomputation
