/// Rows of a table that are equal.
#pragma once

#include <cstdint>
#include <vector>

namespace autoshard {

/// Groups of the rows that are equal in all columns, in the order of the first row of each;
/// rows in growing order.
///
/// Example: numbers {{1, 2, 1}, {5, 5, 5}} and no reals: {{0, 2}, {1}}.
///
/// Columns have one length; throws std::invalid_argument if not. Reals are equal as numbers
/// are: 0.0 is -0.0, and what is no number is equal to nothing.
std::vector<std::vector<std::int64_t>> alike_rows(
    const std::vector<std::vector<std::int64_t>>& numbers,
    const std::vector<std::vector<double>>& reals);

}  // namespace autoshard
