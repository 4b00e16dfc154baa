#include "model/alike_rows.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <stdexcept>

#include "model/hash_index.h"

namespace autoshard {

std::vector<std::vector<std::int64_t>> alike_rows(
    const std::vector<std::vector<std::int64_t>>& numbers,
    const std::vector<std::vector<double>>& reals) {
  const std::size_t rows = !numbers.empty() ? numbers[0].size()
                           : !reals.empty() ? reals[0].size()
                                            : 0;
  const auto has_rows = [rows](const auto& column) { return column.size() == rows; };
  if (!std::all_of(numbers.begin(), numbers.end(), has_rows) ||
      !std::all_of(reals.begin(), reals.end(), has_rows)) {
    throw std::invalid_argument("alike_rows: columns differ in length");
  }
  std::vector<std::vector<std::int64_t>> groups;
  HashIndex group_of;
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    const auto add = [&hash](std::uint64_t part) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 32;
    };
    for (const auto& column : numbers) add(static_cast<std::uint64_t>(column[row]));
    for (const auto& column : reals) {
      add(column[row] == 0 ? 0 : std::bit_cast<std::uint64_t>(column[row]));
    }
    const auto is_equal = [&](int group) {
      const auto first = static_cast<std::size_t>(groups[group].front());
      const auto agrees = [&](const auto& column) { return column[row] == column[first]; };
      return std::all_of(numbers.begin(), numbers.end(), agrees) &&
             std::all_of(reals.begin(), reals.end(), agrees);
    };
    const int group = group_of.find_or_insert(hash, is_equal, [&groups] {
      groups.emplace_back();
      return static_cast<int>(groups.size()) - 1;
    });
    groups[group].push_back(static_cast<std::int64_t>(row));
  }
  return groups;
}

}  // namespace autoshard
