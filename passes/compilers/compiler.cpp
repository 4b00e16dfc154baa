#include "compilers/compiler.h"

#include <cmath>

namespace autoshard {
namespace {

/// Calls `visit(name, field)` for every answer.
template <typename AnyCompiler, typename Visit>
void each_answer(AnyCompiler& compiler, const Visit& visit) {
  auto& [fusion, layout, buffers, schedule, collectives, functions] = compiler;
  visit("fusion.matmul_operands", fusion.matmul_operands);
  visit("fusion.cheap_matmul_operands", fusion.cheap_matmul_operands);
  visit("fusion.matmul_results", fusion.matmul_results);
  visit("fusion.matmul_side_results", fusion.matmul_side_results);
  visit("fusion.matmul_epilogues", fusion.matmul_epilogues);
  visit("fusion.split_products", fusion.split_products);
  visit("fusion.summed_products", fusion.summed_products);
  visit("fusion.casts", fusion.casts);
  visit("fusion.masks", fusion.masks);
  visit("fusion.casts_of_arguments", fusion.casts_of_arguments);
  visit("fusion.stored_functions", fusion.stored_functions);
  visit("fusion.stores_arguments_of_functions", fusion.stores_arguments_of_functions);
  visit("fusion.most_reread", fusion.most_reread);
  visit("fusion.most_operations", fusion.most_operations);
  visit("fusion.repeated_operations", fusion.repeated_operations);
  visit("fusion.ignores_arguments", fusion.ignores_arguments);
  visit("fusion.ignores_stored_functions", fusion.ignores_stored_functions);
  visit("fusion.most_operands", fusion.most_operands);
  visit("fusion.reads_what_is_stored", fusion.reads_what_is_stored);
  visit("fusion.two_results", fusion.two_results);
  visit("fusion.short_products", fusion.short_products);
  visit("fusion.several_results", fusion.several_results);
  visit("fusion.stores_summed", fusion.stores_summed);
  visit("fusion.summed_of_batches", fusion.summed_of_batches);
  visit("fusion.row_reductions", fusion.row_reductions);
  visit("fusion.nested_reductions", fusion.nested_reductions);
  visit("fusion.stores_gathered", fusion.stores_gathered);
  visit("fusion.stores_scattered", fusion.stores_scattered);
  visit("fusion.scattered_updates", fusion.scattered_updates);
  visit("fusion.window_operands", fusion.window_operands);
  visit("fusion.stored_pads", fusion.stored_pads);
  visit("fusion.joined_columns", fusion.joined_columns);
  visit("fusion.gather_kernels", fusion.gather_kernels);
  visit("fusion.index_bytes", fusion.index_bytes);
  visit("fusion.repeated_bytes", fusion.repeated_bytes);
  visit("fusion.reads_in_each", fusion.reads_in_each);
  visit("fusion.kept_bytes", fusion.kept_bytes);
  visit("fusion.overlaps_memory", fusion.overlaps_memory);
  visit("fusion.joint_loops", fusion.joint_loops);
  visit("fusion.sibling_reductions", fusion.sibling_reductions);
  visit("fusion.reduced_as_written", fusion.reduced_as_written);
  visit("fusion.whole_rows", fusion.whole_rows);
  visit("fusion.whole_columns", fusion.whole_columns);
  visit("fusion.packed_bytes", fusion.packed_bytes);
  visit("fusion.batch_operand_bytes", fusion.batch_operand_bytes);
  visit("fusion.transposed_bytes", fusion.transposed_bytes);
  visit("fusion.stored_slices", fusion.stored_slices);
  visit("fusion.transform_bytes", fusion.transform_bytes);
  visit("fusion.matmul_tile_bytes", fusion.matmul_tile_bytes);
  visit("fusion.unaligned_rows", fusion.unaligned_rows);
  visit("fusion.convolution_channels", fusion.convolution_channels);
  visit("fusion.convolutions_on_vectors", fusion.convolutions_on_vectors);
  visit("fusion.multiplied_zeros", fusion.multiplied_zeros);
  visit("layout.row_major_arguments", layout.row_major_arguments);
  visit("layout.row_major_matmuls", layout.row_major_matmuls);
  visit("layout.matmul_operands_in_order", layout.matmul_operands_in_order);
  visit("layout.ordered_batches", layout.ordered_batches);
  visit("layout.row_major_stacks", layout.row_major_stacks);
  visit("layout.converted_stacks", layout.converted_stacks);
  visit("layout.symmetric_padding", layout.symmetric_padding);
  visit("layout.tile_rows", layout.tile_rows);
  visit("layout.tile_columns", layout.tile_columns);
  visit("buffers.tuples_of_convolutions", buffers.tuples_of_convolutions);
  visit("buffers.keeps_reduced", buffers.keeps_reduced);
  visit("buffers.lending_results", buffers.lending_results);
  visit("buffers.copies_gathered_arguments", buffers.copies_gathered_arguments);
  visit("buffers.window_indices", buffers.window_indices);
  visit("buffers.filled_stacks", buffers.filled_stacks);
  visit("schedule.hides_gathers", schedule.hides_gathers);
  visit("schedule.hides_sums", schedule.hides_sums);
  visit("schedule.hides_exchanges", schedule.hides_exchanges);
  visit("schedule.late_sums", schedule.late_sums);
  visit("schedule.late_local_gradients", schedule.late_local_gradients);
  visit("schedule.local_gradients_behind_loops", schedule.local_gradients_behind_loops);
  visit("schedule.late_batched_matmuls", schedule.late_batched_matmuls);
  visit("schedule.rings_in_order", schedule.rings_in_order);
  visit("schedule.memory_share", schedule.memory_share);
  visit("collectives.whole_slice_devices", collectives.whole_slice_devices);
  visit("collectives.whole_plane_bytes", collectives.whole_plane_bytes);
  visit("collectives.zero_fill_share", collectives.zero_fill_share);
  visit("collectives.reduced_slice_devices", collectives.reduced_slice_devices);
  visit("collectives.ring_devices", collectives.ring_devices);
  visit("collectives.ring_matmul_share", collectives.ring_matmul_share);
  visit("collectives.ring_slice_share", collectives.ring_slice_share);
  visit("collectives.ring_result_passes", collectives.ring_result_passes);
  visit("collectives.ring_operand_passes", collectives.ring_operand_passes);
  visit("collectives.joined_bytes", collectives.joined_bytes);
  visit("collectives.tuple_bytes", collectives.tuple_bytes);
  visit("collectives.alone_bytes", collectives.alone_bytes);
  visit("collectives.parts_in_turn", collectives.parts_in_turn);
  visit("collectives.exchanges_outermost", collectives.exchanges_outermost);
  visit("functions.division", functions.division);
  visit("functions.remainder", functions.remainder);
  visit("functions.root", functions.root);
  visit("functions.exponential", functions.exponential);
  visit("functions.logarithm", functions.logarithm);
  visit("functions.logistic", functions.logistic);
  visit("functions.tanh", functions.tanh);
  visit("functions.error", functions.error);
  visit("functions.error_complement", functions.error_complement);
  visit("functions.sine", functions.sine);
  visit("functions.power", functions.power);
  visit("functions.other", functions.other);
}

[[noreturn]] void fail(const std::string& name, double value, const std::string& wanted) {
  throw InvalidCompiler("compiler: " + name + " is " + std::to_string(value) + "; " + wanted);
}

/// Written so that NaN fails too.
void read(const std::string& name, double value, bool& field) {
  if (value != 0 && value != 1) fail(name, value, "1 for yes or 0 for no is needed");
  field = value == 1;
}

void read(const std::string& name, double value, double& field) {
  if (!(std::isfinite(value) && value >= 0)) fail(name, value, "0 or more is needed");
  field = value;
}

void read(const std::string& name, double value, std::int64_t& field) {
  const bool is_count = value >= 0 && value <= 1e9 && value == std::floor(value);
  if (!is_count) fail(name, value, "a whole number from 0 on is needed");
  field = static_cast<std::int64_t>(value);
}

void read(const std::string& name, double value, Expense& field) {
  const auto last = static_cast<double>(Expense::never);
  const bool is_expense = value >= 0 && value <= last && value == std::floor(value);
  if (!is_expense) fail(name, value, "an expense is needed");
  field = static_cast<Expense>(value);
}

}  // namespace

double Functions::operations(Function function) const {
  switch (function) {
    case Function::none:
      return 1;
    case Function::division:
      return division;
    case Function::remainder:
      return remainder;
    case Function::root:
      return root;
    case Function::exponential:
      return exponential;
    case Function::logarithm:
      return logarithm;
    case Function::logistic:
      return logistic;
    case Function::tanh:
      return tanh;
    case Function::error:
      return error;
    case Function::error_complement:
      return error_complement;
    case Function::sine:
      return sine;
    case Function::power:
      return power;
    case Function::other:
      return other;
  }
  return 1;
}

Compiler compiler_of(const std::map<std::string, double>& answers) {
  Compiler compiler;
  each_answer(compiler, [&](const char* name, auto& field) {
    const auto found = answers.find(name);
    if (found == answers.end()) return;
    read(name, found->second, field);
  });
  const std::map<std::string, double> names = answers_of(compiler);
  for (const auto& [name, value] : answers) {
    if (!names.contains(name)) fail(name, value, "no analysis asks for it");
  }
  if (!(compiler.collectives.zero_fill_share > 0)) {
    fail("collectives.zero_fill_share", compiler.collectives.zero_fill_share,
         "a share above 0 is needed");
  }
  return compiler;
}

std::map<std::string, double> answers_of(const Compiler& compiler) {
  std::map<std::string, double> answers;
  each_answer(compiler, [&](const char* name, const auto& field) {
    answers[name] = static_cast<double>(field);
  });
  return answers;
}

}  // namespace autoshard
