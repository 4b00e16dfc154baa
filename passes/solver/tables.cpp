#include "solver/tables.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "solver/kernels.h"

namespace autoshard::solver {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash ^= value;
  hash *= 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

/// Entries of a block of tables; larger tables have a block of their own.
constexpr std::size_t block_entries = 1 << 13;

enum Operation : std::int32_t { kTranspose, kScaled, kSum, kSelected, kProduct };

template <typename Key>
std::uint64_t hash_of(const Key& key) {
  std::uint64_t hash = mixed(0x243F6A8885A308D3ull, static_cast<std::uint64_t>(key.kind));
  hash = mixed(hash, static_cast<std::uint64_t>(key.a));
  hash = mixed(hash, static_cast<std::uint64_t>(key.b));
  return mixed(hash, static_cast<std::uint64_t>(key.c));
}

}  // namespace

int TableStore::remembered(const Key& key) const {
  const int found =
      by_key_.find(hash_of(key), [&](int result) { return results_[result].key == key; });
  return found < 0 ? -1 : results_[found].table;
}

void TableStore::remember(const Key& key, int table) {
  by_key_.insert(hash_of(key), static_cast<int>(results_.size()));
  results_.push_back({key, table});
}

double* TableStore::allocate(std::size_t size) {
  if (size > left_) {
    left_ = std::max(size, block_entries);
    blocks_.push_back(std::make_unique_for_overwrite<double[]>(left_));
    next_ = blocks_.back().get();
  }
  double* room = next_;
  next_ += size;
  left_ -= size;
  return room;
}

int TableStore::add(int rows, int cols, const double* cost) {
  const std::size_t size = static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
  std::uint64_t hash =
      mixed(static_cast<std::uint64_t>(rows) << 32, static_cast<std::uint64_t>(cols));
  bool infinite = false;
  for (std::size_t i = 0; i < size; ++i) {
    // -0.0 == 0.0 must hash alike.
    hash = mixed(hash, cost[i] == 0 ? 0 : std::bit_cast<std::uint64_t>(cost[i]));
    infinite |= cost[i] == kInfinity;
  }
  const int found = by_content_.find(hash, [&](int table) {
    const Entry& entry = entries_[table];
    return entry.rows == rows && entry.cols == cols &&
           std::equal(cost, cost + size, entry.cost);
  });
  if (found >= 0) return found;
  double* copy = allocate(size);
  std::copy(cost, cost + size, copy);
  entries_.push_back({rows, cols, infinite, copy});
  by_content_.insert(hash, count() - 1);
  return count() - 1;
}

int TableStore::transpose(int table) {
  const Key key{0, kTranspose, table, 0};
  if (const int found = remembered(key); found >= 0) return found;
  const int r = rows(table), c = cols(table);
  std::vector<double>& cost = scratch_;
  cost.resize(size(table));
  for (int i = 0; i < r; ++i) {
    for (int j = 0; j < c; ++j) {
      cost[static_cast<std::size_t>(j) * r + i] =
          data(table)[static_cast<std::size_t>(i) * c + j];
    }
  }
  const int result = add(c, r, cost.data());
  remember(key, result);
  remember(Key{0, kTranspose, result, 0}, table);
  return result;
}

int TableStore::scaled(int table, double factor) {
  if (factor == 1.0) return table;
  const Key key{std::bit_cast<std::int64_t>(factor), kScaled, table, 0};
  if (const int found = remembered(key); found >= 0) return found;
  std::vector<double>& cost = scratch_;
  cost.assign(data(table), data(table) + size(table));
  for (double& value : cost) {
    if (value != kInfinity) value *= factor;
  }
  const int result = add(rows(table), cols(table), cost.data());
  remember(key, result);
  return result;
}

int TableStore::sum(int left, int right) {
  const Key key{std::max(left, right), kSum, std::min(left, right), 0};
  if (const int found = remembered(key); found >= 0) return found;
  std::vector<double>& cost = scratch_;
  cost.assign(data(left), data(left) + size(left));
  for (std::size_t i = 0; i < cost.size(); ++i) cost[i] += data(right)[i];
  const int result = add(rows(left), cols(left), cost.data());
  remember(key, result);
  return result;
}

int TableStore::selected(int table, int row_list, int col_list) {
  if (row_list < 0 && col_list < 0) return table;
  const Key key{row_list, kSelected, table, col_list};
  if (const int found = remembered(key); found >= 0) return found;
  std::vector<int> all_rows, all_cols;
  if (row_list < 0) {
    for (int i = 0; i < rows(table); ++i) all_rows.push_back(i);
  }
  if (col_list < 0) {
    for (int i = 0; i < cols(table); ++i) all_cols.push_back(i);
  }
  const std::vector<int>& row_options = row_list < 0 ? all_rows : lists_[row_list];
  const std::vector<int>& col_options = col_list < 0 ? all_cols : lists_[col_list];
  std::vector<double>& cost = scratch_;
  cost.clear();
  for (int r : row_options) {
    for (int c : col_options) {
      cost.push_back(data(table)[static_cast<std::size_t>(r) * cols(table) + c]);
    }
  }
  const int result = add(static_cast<int>(row_options.size()),
                         static_cast<int>(col_options.size()), cost.data());
  remember(key, result);
  return result;
}

int TableStore::product(int left, int middle, int right) {
  const Key key{middle, kProduct, left, right};
  if (const int found = remembered(key); found >= 0) return found;
  const int a = rows(left), b = cols(left), c = cols(right);
  std::vector<double> sums(data(left), data(left) + size(left));
  for (int i = 0; i < a; ++i) {
    for (int j = 0; j < b; ++j) sums[static_cast<std::size_t>(i) * b + j] += data(middle)[j];
  }
  std::vector<double> cost(static_cast<std::size_t>(a) * c);
  min_plus_matrix(sums.data(), data(right), a, b, c, cost.data());
  const int result = add(a, c, cost.data());
  remember(key, result);
  return result;
}

const double* TableStore::largest_excess(int table) {
  const auto index = static_cast<std::size_t>(table);
  if (index < excess_.size() && excess_[index]) return excess_[index];
  const int r = rows(table);
  const int transposed = transpose(table);
  double* made = allocate(static_cast<std::size_t>(r) * r);
  largest_differences(data(transposed), r, cols(table), made);
  if (index >= excess_.size()) excess_.resize(entries_.size(), nullptr);
  return excess_[index] = made;
}

int TableStore::add_list(const std::vector<int>& list) {
  std::uint64_t hash = list.size();
  for (int value : list) hash = mixed(hash, static_cast<std::uint64_t>(value));
  const int found =
      lists_by_content_.find(hash, [&](int index) { return lists_[index] == list; });
  if (found >= 0) return found;
  lists_.push_back(list);
  lists_by_content_.insert(hash, static_cast<int>(lists_.size()) - 1);
  return static_cast<int>(lists_.size()) - 1;
}

}  // namespace autoshard::solver
