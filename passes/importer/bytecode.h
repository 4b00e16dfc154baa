/// What a module is made of, read from the bytecode that MLIR writes of it.
///
/// The format is documented (MLIR, "MLIR Bytecode Format") and numbered; this is version 6,
/// which every jaxlib that autoshard supports writes on demand. Only structure is read: ops,
/// values and blocks. Names, types and attributes stay numbers, equal for equal ones: who
/// wants to know what they are asks MLIR for one op of each class.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace autoshard::importer {

/// The bytecode is not as the format says.
struct InvalidBytecode : std::runtime_error {
  explicit InvalidBytecode(const std::string& why)
      : std::runtime_error("MLIR bytecode: " + why) {}
};

/// The first block of a region.
struct Block {
  /// Ops as `ModuleStructure` counts them; the last one is the terminator. (0, -1): none.
  std::int32_t first_op = 0, last_op = -1;
  /// A value; the other arguments follow it.
  std::int32_t first_argument = 0;
  std::int32_t num_arguments = 0;
};

/// One op, by ranges in the arrays of `ModuleStructure`.
struct OpStructure {
  /// Ops of one class are equal but for operands, regions and locations: equal name,
  /// attributes, properties, types of operands and results, and names of the ops in small
  /// regions.
  std::int32_t op_class;
  /// Equal for equal locations.
  std::int32_t location;
  /// The first op behind it and all it contains.
  std::int32_t end;
  std::int32_t first_operand, num_operands;
  /// A value; the other results follow it.
  std::int32_t first_result;
  std::int32_t num_results;
  std::int32_t first_region, num_regions;
};

/// Ops are in the order in which MLIR walks them: outer before inner, the module is the first
/// one. Every value, result or argument of a block, has a number of its own.
struct ModuleStructure {
  std::vector<OpStructure> ops;
  /// Values that ops read, op after op.
  std::vector<std::int32_t> operands;
  /// The first block of each region, op after op.
  std::vector<Block> regions;
  std::int32_t num_values = 0;
  std::int32_t num_classes = 0;
};

/// Throws `InvalidBytecode`.
ModuleStructure read_bytecode(std::string_view bytes);

}  // namespace autoshard::importer
