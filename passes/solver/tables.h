/// Tables of pairwise costs, stored once however many edges use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/hash_index.h"

namespace autoshard::solver {

/// A growing set of distinct dense tables, named by index. Equal contents have equal indices,
/// so products and sums of shared tables are computed once: every operation remembers its
/// results.
class TableStore {
 public:
  int rows(int table) const { return entries_[table].rows; }
  int cols(int table) const { return entries_[table].cols; }
  std::size_t size(int table) const {
    return static_cast<std::size_t>(rows(table)) * static_cast<std::size_t>(cols(table));
  }
  const double* data(int table) const { return entries_[table].cost; }
  bool has_infinity(int table) const { return entries_[table].has_infinity; }
  int count() const { return static_cast<int>(entries_.size()); }

  /// The index of this table, stored if it is new.
  int add(int rows, int cols, const double* cost);
  int transpose(int table);
  /// Entry-wise factor; 0 keeps +inf.
  int scaled(int table, double factor);
  /// Entry-wise sum of two tables of one shape.
  int sum(int left, int right);
  /// Rows and columns listed by `row_list` and `col_list`, which are indices of stored lists.
  int selected(int table, int row_list, int col_list);
  /// (a, c) -> min_b left(a, b) + middle[b] + right(b, c); `middle` is a stored 1 x n table.
  int product(int left, int middle, int right);
  /// (s, t) -> max_c table(s, c) - table(t, c): how much dearer s can be than t. Not a table
  /// of the store: nothing is made of it.
  const double* largest_excess(int table);

  /// The index of a list of options; equal lists have equal indices. -1 means "all".
  int add_list(const std::vector<int>& list);

 private:
  struct Entry {
    int rows, cols;
    bool has_infinity;
    const double* cost;
  };
  struct Key {
    /// A factor's bits, or an index.
    std::int64_t b;
    std::int32_t kind, a, c;
    bool operator==(const Key&) const = default;
  };
  struct Result {
    Key key;
    std::int32_t table;
  };
  int remembered(const Key& key) const;
  void remember(const Key& key, int table);
  /// Room for a table, which stays where it is.
  double* allocate(std::size_t size);

  std::vector<Entry> entries_;
  /// By table; null where nobody asked.
  std::vector<const double*> excess_;
  HashIndex by_content_;
  std::vector<Result> results_;
  HashIndex by_key_;
  std::vector<std::vector<int>> lists_;
  HashIndex lists_by_content_;
  /// Tables lie one behind the other in blocks.
  std::vector<std::unique_ptr<double[]>> blocks_;
  std::size_t left_ = 0;
  double* next_ = nullptr;
  std::vector<double> scratch_;
};

}  // namespace autoshard::solver
