/// In which order the dims of values lie in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/aliases.h"
#include "memory/program_index.h"

namespace autoshard {

/// A permutation of dims, outermost first; empty: row by row.
using Order = std::vector<std::int32_t>;

/// How one stored value of as many elements becomes another, by elementwise ops and views.
struct Chain {
  std::int32_t source;
  /// The first elementwise op, or `no_op`.
  std::int32_t first;
};

/// Follows the order of dims from arguments, which lie row by row, through views and
/// elementwise ops; of those that read different orders the result has that of the oldest.
/// What other ops make lies row by row.
class Orders {
 public:
  /// `keeps_batches`: see `Layout::ordered_batches`. Of those that read different orders the
  /// result has that of a batch of products.
  Orders(const ProgramIndex& index, const Aliases& aliases, bool keeps_batches = false)
      : index_(index),
        aliases_(aliases),
        keeps_batches_(keeps_batches),
        orders_(index.num_values),
        is_of_batch_(index.num_values, false) {}

  /// Op by op, in the order of the program.
  void follow(std::int32_t op);
  const Order& of(std::int32_t value) const {
    return orders_[aliases_.before_constraints(value)];
  }
  /// A batch of products has made it, or what it is made of one by one.
  bool is_of_batch(std::int32_t value) const {
    return is_of_batch_[aliases_.before_constraints(value)];
  }
  /// What an elementwise op reads and has an order of its own, before constraints.
  std::vector<std::int32_t> sources_of(std::int32_t op) const;
  /// The one of them that was made first.
  std::int32_t oldest(const std::vector<std::int32_t>& values) const;
  Chain chain_of(std::int32_t value) const;

 private:
  /// Made by repeating fewer elements: a value without an order of its own.
  bool is_broadcast(std::int32_t value) const;
  /// The order of a view.
  Order order_after(std::int32_t op) const;

  const ProgramIndex& index_;
  const Aliases& aliases_;
  const bool keeps_batches_;
  std::vector<Order> orders_;
  std::vector<bool> is_of_batch_;
};

/// The factors of an operand of a rule as they lie in memory, outermost first.
std::vector<std::int32_t> factors_in(const RuleTensor& tensor, const Order& order);

}  // namespace autoshard
