/// A hash table from 64-bit hashes to indices, without memory of its own for every entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace autoshard {

/// Hash of a list of integers.
template <typename Integers>
std::uint64_t hash_of(const Integers& integers) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const auto integer : integers) {
    hash = (hash ^ static_cast<std::uint64_t>(integer)) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

/// Several entries may have one hash; the caller knows which of them it means.
class HashIndex {
 public:
  /// `capacity`: a power of two.
  explicit HashIndex(std::size_t capacity = 64) { slots_.resize(capacity); }

  /// The first index under `hash` for which `is_wanted(index)`, or -1.
  template <typename Predicate>
  int find(std::uint64_t hash, const Predicate& is_wanted) const {
    const std::size_t last = slots_.size() - 1;
    for (std::size_t at = hash & last;; at = (at + 1) & last) {
      const Slot& slot = slots_[at];
      if (slot.index < 0) return -1;
      if (slot.hash == static_cast<std::uint32_t>(hash) && is_wanted(slot.index)) {
        return slot.index;
      }
    }
  }

  /// The same, or else the index that `make()` gives, which is inserted.
  template <typename Predicate, typename Make>
  int find_or_insert(std::uint64_t hash, const Predicate& is_wanted, const Make& make) {
    int index = find(hash, is_wanted);
    if (index < 0) insert(hash, index = make());
    return index;
  }

  void insert(std::uint64_t hash, int index) {
    if (2 * ++count_ > slots_.size()) {
      std::vector<Slot> before = std::move(slots_);
      slots_.assign(2 * before.size(), Slot{});
      for (const Slot& slot : before) {
        if (slot.index >= 0) put(slot);
      }
    }
    put({static_cast<std::uint32_t>(hash), index});
  }

 private:
  /// The low half of a hash is enough to tell most entries apart, and to move them.
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t index = -1;
  };
  void put(const Slot& slot) {
    const std::size_t last = slots_.size() - 1;
    std::size_t at = slot.hash & last;
    while (slots_[at].index >= 0) at = (at + 1) & last;
    slots_[at] = slot;
  }

  /// A power of two.
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace autoshard
