/// Which values of a program take memory, and when.
///
/// Compilers fuse: a value that only fused ops read is never stored, and what it is made of
/// must live until they have run. What is stored takes its bytes from the op that makes it to
/// the last op that reads it, arguments and results from end to end, what loops carry from
/// trip to trip. Moments are op indices: moment i is while op i runs, if it runs where the
/// program has it. docs/design/memory.md gives every rule and its reason.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "compilers/compiler.h"
#include "memory/stored.h"
#include "model/program.h"

namespace autoshard {

/// What is known of a program's memory before anything is cut.
class Storage {
 public:
  explicit Storage(const Program& program, const Compiler& compiler = {});

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

}  // namespace autoshard
