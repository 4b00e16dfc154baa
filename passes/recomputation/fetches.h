/// When values of straight-line code go to the host, and when they come back.
///
/// Each comes back as late as its first reader allows if the link does nothing else, the last
/// one first; it leaves memory when the link has sent it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "recomputation/block.h"
#include "recomputation/clones.h"
#include "recomputation/host_link.h"

namespace autoshard::recomputation {

/// One value that is on the host for a while.
struct Fetch {
  std::int32_t number = 0;  ///< of the value in the block
  /// Position of the op before which it has left the memory of the device.
  std::int32_t gone = 0;
  /// Position of the op before which the link begins to bring it back.
  std::int32_t back = 0;
};

/// A block beside the link to the host.
struct LinkedBlock {
  HostLink link;
  /// Number in the program of the first op that runs at each position of the block, or behind
  /// it; one more for the end.
  std::vector<std::int32_t> op_at = {};
  /// The loop whose body the block is: it waits for the transfers of its trips.
  std::optional<LoopOps> loop = std::nullopt;
};

/// A value that is sent, and read again.
struct Sent {
  Dropped gap;
  Use use;
  double seconds = 0;  ///< of all transfers one way, in a step
};

/// When values are on the host, and what that changes.
struct Fetches {
  std::vector<Fetch> fetches = {};
  /// `HostLink::delay` by all transfers, those of loops and of the program included.
  double delay = 0;
};

/// Place the transfers of values that are sent to the host.
///
/// Args:
///   block: The ops.
///   linked: The same beside the link.
///   sent: Values that go there.
///   moved, computed: As of `HostLink::free`, without the values that are sent.
///   change: Bytes that live more from each point of the program on, one more for behind the
///     last; what waits on the host takes none.
Fetches fetches_for(const Block& block, const LinkedBlock& linked, std::span<const Sent> sent,
                    std::vector<LoopTransfer> moved, std::span<const LoopSeconds> computed,
                    std::vector<double>& change);

}  // namespace autoshard::recomputation
