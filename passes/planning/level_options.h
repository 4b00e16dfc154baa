/// The options that every class has at one level, as far as pins allow them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/program.h"
#include "planning/classes.h"
#include "planning/interned_assignment.h"
#include "planning/option_store.h"

namespace autoshard::planning {

/// Pins that no plan satisfies.
struct Contradiction : std::runtime_error {
  Contradiction(const std::string& what, std::int32_t op, std::int32_t value)
      : std::runtime_error(what), op(op), value(value) {}
  /// The op whose kept operands do not fit together, or -1.
  std::int32_t op;
  /// The value whose pins allow no common sharding, or -1.
  std::int32_t value;
};

/// What a level chooses from, by indices into an `OptionStore`.
struct LevelOptions {
  /// By sharding class: its domain.
  std::vector<std::int32_t> domains;
  /// By op class: its options.
  std::vector<std::int32_t> ops;

  std::size_t num_nodes() const { return domains.size() + ops.size(); }
};

/// Equal for equal options and the same `seed`.
std::uint64_t hash_of(const LevelOptions& options, std::uint64_t seed);

/// By node of a level's network, sharding classes first, then op classes: which of its options
/// `assignment` takes. Empty if it takes one that the level does not have.
std::vector<std::int32_t> choice_of(const InternedAssignment& assignment,
                                    const LevelOptions& options, const OptionStore& store);

/// The assignment that takes the options in `choice`.
InternedAssignment chosen(const std::vector<std::int32_t>& choice, const LevelOptions& options,
                          const OptionStore& store);

/// Finds the options of levels.
class OptionFinder {
 public:
  /// All arguments must outlive the finder.
  OptionFinder(const Program& program, const Mesh& mesh, const Classes& classes,
               OptionStore& store);

  /// The options of a level that decides the axes in `free`, those in `decided` being as
  /// `assignment` has them; any other axis cuts nothing. Throws `Contradiction`.
  LevelOptions find(const InternedAssignment& assignment, AxisMask decided, AxisMask free);

 private:
  std::int32_t pinned_domain(std::int32_t domain, const std::vector<std::int32_t>& pins,
                             AxisMask known);
  void keep_operands(std::int32_t op_class, LevelOptions& options);

  const Program& program_;
  const Mesh& mesh_;
  const Classes& classes_;
  OptionStore& store_;
  /// By sharding class: indices of its pins.
  std::vector<std::vector<std::int32_t>> pins_of_;
  /// By op class, as indices of uses: operands that it takes as they are, and results that
  /// some op takes as they are.
  std::vector<std::vector<std::int32_t>> kept_operands_, kept_results_;
};

}  // namespace autoshard::planning
