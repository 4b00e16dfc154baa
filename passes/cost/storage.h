/// Which values of a program take memory, and when.
///
/// Compilers fuse: a value that only fused ops read is never stored, and what it is made of
/// must live until they have run. What is stored takes its bytes from the op that makes it to
/// the last op that reads it, arguments and results from end to end, what loops carry from
/// trip to trip. Moments are op indices: moment i is while op i runs, if it runs where the
/// program has it. docs/memory.md gives every rule and its reason.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "model/cluster.h"
#include "model/mesh.h"
#include "model/program.h"
#include "model/sharding.h"

namespace autoshard {

/// Live moments of a stored value: [first, last).
struct Lifetime {
  std::int32_t first = 0, last = 0;
};

/// What is known of a program's memory before anything is cut.
class Storage {
 public:
  /// One stretch of moments in which a value takes memory, with its bytes before any cut.
  struct Stored {
    std::int32_t value;
    Lifetime lifetime;
    double bytes;
    /// Which of `stored()` lends it its storage: a result that is not made yet; -1: it has its
    /// own. Of what one result lends its storage to, no two live at once.
    std::int32_t lender = -1;
  };

  explicit Storage(const Program& program, const Fusing& fusing = {});

  /// False for values that live in fusions, for free values, and for those that share another
  /// one's storage.
  bool is_stored(std::int32_t value) const { return lifetimes_[value].last > 0; }
  /// Empty for values that are not stored. The first one, if it is stored more than once.
  Lifetime lifetime(std::int32_t value) const { return lifetimes_[value]; }
  /// Op `op` reads its operand `k` from memory: it is stored, and no earlier op of the same
  /// fusion has read it.
  bool reads(std::int32_t op, std::size_t k) const { return reads_[op][k]; }
  const std::vector<bool>& reads(std::int32_t op) const { return reads_[op]; }
  /// Op `op` stores its result `k`.
  bool writes(std::int32_t op, std::size_t k) const { return writes_[op][k]; }
  const std::vector<bool>& writes(std::int32_t op) const { return writes_[op]; }
  /// When op `op` runs: with the fusion it belongs to, or earlier than the program has it if
  /// that frees memory.
  std::int32_t moment(std::int32_t op) const { return moment_of_[op]; }
  std::int32_t moments() const { return moments_; }
  /// From when to when a value that lives in fusions would live if it were stored: from the
  /// first fusion that computes it to the last one. Empty for values that are stored anyway or
  /// need no storage.
  Lifetime if_stored(std::int32_t value) const { return if_stored_[value]; }
  /// The value whose storage a view or constraint shares; values of their own name themselves.
  std::int32_t same(std::int32_t value) const { return same_[value]; }
  /// What is copied if the sums in `value` are reduced as they are: an all-reduce sends a
  /// gradient in the order in which the matmul wrote it, and where that is not the order of
  /// the parameter, the optimizer's state is updated in copies of that order. Listed by value,
  /// with the argument that is copied.
  const std::vector<Stored>* copies_if_reduced(std::int32_t value) const {
    const auto found = copies_if_reduced_.find(same(value));
    return found == copies_if_reduced_.end() ? nullptr : &found->second;
  }
  /// Everything that takes memory; a value twice if it has two copies.
  const std::vector<Stored>& stored() const { return stored_; }

 private:
  std::vector<Lifetime> lifetimes_;
  std::vector<std::vector<bool>> reads_, writes_;
  std::vector<std::int32_t> moment_of_, same_;
  std::vector<Lifetime> if_stored_;
  std::vector<Stored> stored_;
  std::map<std::int32_t, std::vector<Stored>> copies_if_reduced_;
  std::int32_t moments_ = 0;
};

/// Bytes that live for a while beside the values: a gathered copy of one. In moments, not ops.
struct Transient {
  Lifetime live;
  double bytes;
};

/// The worst moment of a plan.
struct Peak {
  double bytes = 0;
  std::int32_t moment = 0;
  /// Stored values that live then, largest first, with their bytes on one device.
  std::vector<std::pair<std::int32_t, double>> live;
};

/// Bytes of a device that each of `storage.stored()` takes when value v is cut into
/// `num_shards[v]` blocks; of what is lent its storage, those that do not fit in it.
std::vector<double> taken_bytes(const Storage& storage, const std::vector<double>& num_shards);

/// Peak memory of a device when value v is cut into `num_shards[v]` blocks.
Peak peak(const Storage& storage, const std::vector<double>& num_shards,
          const std::vector<Transient>& transients);

/// Into how many blocks every value is cut.
std::vector<double> shards_of(const std::vector<Sharding>& shardings, const Mesh& mesh);

}  // namespace autoshard
