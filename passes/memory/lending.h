/// Results of the program that lend their storage until they are made.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/stored.h"

namespace autoshard {

/// A result that has storage of its own from end to end.
struct Lender {
  /// Among all that is stored.
  std::int32_t index;
  /// The moment when it is made.
  std::int32_t made;
};

/// A result has storage for the whole program, and what is free again before the result is
/// made may take it if it is not larger: the largest values first, each in the smallest
/// result. Sets `Stored::lender`; `moments`: of the whole program.
///
/// Example: a result of 8 bytes that is made at moment 5 lends its storage to a value of 8
/// bytes that lives at [1, 3), and to one of 4 bytes at [3, 5), but to none that lives at [4,
/// 6).
void lend(const std::vector<Lender>& lenders, std::int32_t moments,
          std::vector<Stored>& stored);

}  // namespace autoshard
