/// The parts of a `Program` as Python gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "model/program.h"

namespace autoshard {

using Dims = std::vector<std::vector<std::int32_t>>;
/// (type, factors of each dim)
using TensorTuple = std::tuple<std::int32_t, Dims>;
/// (size, kind, halo) of each factor, operands, results
using RuleTuple = std::tuple<std::vector<std::tuple<std::int64_t, int, std::int64_t>>,
                             std::vector<TensorTuple>, std::vector<TensorTuple>>;
/// (value, (axes, is_open, num_shards) of each dim, axes that cut no dim)
using PinTuple = std::tuple<
    std::int32_t,
    std::vector<std::tuple<std::vector<std::int32_t>, bool, std::optional<std::int64_t>>>,
    std::vector<std::int32_t>>;

/// (work, arithmetic, flops, is_cheap, has_workspace, operand bytes, result bytes,
/// operand in place, padded bytes, expense)
using WorkTuple = std::tuple<int, int, double, bool, bool, std::vector<double>,
                             std::vector<double>, std::int32_t, double, int>;
/// (first op, end of its ops, trips, carried, yielded)
using LoopTuple = std::tuple<std::int32_t, std::int32_t, double, std::vector<std::int32_t>,
                             std::vector<std::int32_t>>;
/// (value, is_donated)
using ArgumentTuple = std::pair<std::int32_t, bool>;

/// (dims, bits of an element)
using TypeTuple = std::pair<std::vector<std::int64_t>, std::int64_t>;

std::vector<Pin> make_pins(const std::vector<PinTuple>& tuples);

/// `works`: one for each rule, or none. Throws `InvalidProgram`.
void set_tables(Program& program, const std::vector<std::int64_t>& axis_sizes,
                const std::vector<TypeTuple>& types, const std::vector<RuleTuple>& rules,
                const std::vector<WorkTuple>& works, bool all_to_all);

/// What enters and leaves a program, and its loops.
void set_edges(Program& program, const std::vector<PinTuple>& pins,
               const std::vector<LoopTuple>& loops,
               const std::vector<ArgumentTuple>& arguments,
               const std::vector<std::int32_t>& results,
               const std::vector<std::int32_t>& early);

}  // namespace autoshard
