/// Which ops a compiler may compute in one kernel with others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compilers/compiler.h"
#include "memory/aliases.h"
#include "memory/program_index.h"
#include "memory/sources.h"
#include "memory/uses.h"

namespace autoshard {

/// A program as fusion sees it, and the answers of the compiler.
struct FusionInput {
  const ProgramIndex& index;
  const Aliases& aliases;
  const Uses& uses;
  const Fusion& rules;
  /// By op: a reduction that the kernels which read it compute (memory/row_reductions.h).
  std::vector<bool> is_row_reduction = {};
};

/// Whether every kernel of the loop of `op` finds `value` in memory from the start: an
/// argument, what comes into the loop, a scalar, or a broadcast of one of these.
bool is_there_before(const FusionInput& input, std::int32_t value, std::int32_t op);

/// Whether an op is cheap elementwise work on one value that has no more bytes than the
/// result, such as a relu.
bool is_of_one(const ProgramIndex& index, std::int32_t op);

/// Whether an op finds the maximum of each window of its first operand and adds an element of
/// its second one there: unlike a gather it reads all of both.
bool is_scatter_to_maxima(const ProgramIndex& index, std::int32_t op);

/// Whether `op` takes operand number `operand` from its own kernel.
///
/// Example: elementwise ops, views and reductions take all; a sort takes none; a dynamic
/// update slice takes its update.
bool takes_fused(const FusionInput& input, std::int32_t op, std::int32_t operand);

/// Whether `op` can be a part of the kernels that read its result.
bool may_be_fused(const FusionInput& input, std::int32_t op);

/// Whether the result of `op` is a function so expensive that it is stored where several
/// fusions read it, whatever it is computed from.
bool is_expensive(const FusionInput& input, std::int32_t op);

/// The ops that are maxima of rows which the kernel of their product computes, as it writes a
/// function of them beside its sum (`Fusion::short_products`).
///
/// Example: of attention with heads of 64 one kernel multiplies queries and keys, and writes
/// the exponentials of the scores less their maxima; no scores are in memory.
std::vector<std::int32_t> maxima_in_products(const FusionInput& input);

/// What each op that may be fused would read from memory then, by op. Matmuls have none. Where
/// that is too much for several fusions, and a value is cast to a wider type on the way, the
/// value that is cast is read, if that is narrower than the result.
std::vector<Sources> sources_of(const FusionInput& input);

/// Whether `op` is computed in each of so many fusions that read it, instead of stored:
///
///   bytes of its sources <= Fusion::most_reread * bytes of its result
///
/// or, without that limit, what moves no more than to write it once and to read it in each.
///
/// Example: of a value of 4 bytes, computed from one of 4 and read by 3 fusions: 3 reads of 4
/// bytes are less than one write and 3 reads, so it is computed in each.
///
/// Args:
///   fusions: Where a fusion reads a slice alone it counts as that share of one: two halves
///     of a value are computed from half of the sources each, which is never more.
///   most_reread: In place of `Fusion::most_reread`.
bool is_duplicated(const FusionInput& input, const std::vector<Sources>& sources,
                   std::int32_t op, double fusions, std::optional<double> most_reread = {});

/// The share of operand number `operand` that `op` reads: 1 but for slices.
double share_read(const ProgramIndex& index, std::int32_t op, std::int32_t operand);

/// Whether an expression of these fills a kernel (`Fusion::most_operands`), so that its result
/// is stored.
bool is_too_much(const FusionInput& input, const Sources& sources);

}  // namespace autoshard
