/// A program for micro-batches of another size, by two that were read.
#pragma once

#include <optional>

#include "model/program.h"

namespace autoshard {

/// A step in micro-batches of so many examples each.
struct SizedProgram {
  const Program& program;
  double examples;
};

/// The step in micro-batches of `examples`. Sizes of tensors and what ops do with them are
/// taken to grow by as much for each example; what falls has to be as many times as much as
/// there are micro-batches, as trips of the loop.
///
/// Example: dims of 8 and 16 at 1 and 2 examples are 32 at 4; trips of 64 and 32 are 16.
///
/// Nothing where the two differ in anything else, or where a size would be no whole number.
std::optional<Program> resized(const SizedProgram& one, const SizedProgram& other,
                               double examples);

}  // namespace autoshard
