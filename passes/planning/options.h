/// The options of values and ops: every assignment of some mesh axes to dims and factors.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cost/reshard.h"
#include "model/program.h"

namespace autoshard::planning {

/// Axes in the order in which they cut a dim together. Axes that share a dim stand in mesh
/// order, except where the user gave another order; then that order is an option as well.
class AxisOrders {
 public:
  /// `pins` are searched for dims whose axes are not in mesh order. On meshes of at most
  /// two axes every order is an option.
  AxisOrders(const Mesh& mesh, const std::vector<Pin>& pins);

  /// Every order of the axes in `set`, mesh order first.
  const std::vector<AxisList>& of(AxisMask set) const;

 private:
  std::unordered_map<AxisMask, std::vector<AxisList>> user_orders_;
  mutable std::unordered_map<AxisMask, std::vector<AxisList>> cache_;
};

/// `sharding` without the axes in `removed`.
Sharding without(const Sharding& sharding, AxisMask removed);
FactorAxes without(const FactorAxes& factors, AxisMask removed);

/// All shardings of a tensor of shape `dims` that extend `base` by some of the axes in
/// `free`. Only even splits: every dim is divisible by its number of blocks.
std::vector<Sharding> extensions(const std::vector<std::int64_t>& dims, const Sharding& base,
                                 AxisMask free, const Mesh& mesh, const AxisOrders& orders);

/// All cuts of the factors of `rule` that extend `base` by some of the axes in `free`,
/// such that every tensor can express it: a minor factor of a dim is cut only where the
/// major ones before it are cut completely, and every dim is split evenly. `types` are the
/// program's.
std::vector<FactorAxes> extensions(const Rule& rule, const std::vector<TensorType>& types,
                                   const FactorAxes& base, AxisMask free, const Mesh& mesh,
                                   const AxisOrders& orders);

/// The sharding of `tensor` when the factors are cut as `axes`.
Sharding project(const RuleTensor& tensor, const FactorAxes& axes);

/// Whether an op whose partial sums are scattered is said to make the part that a device
/// keeps. Partitioners understand that where every reduction factor that is cut is in two
/// operands or more, as in dot_general: where it is in one, as in gather, they would rather
/// cut the other factors and reshard the operand. There the sum is said to be made, and cut
/// behind the op; compilers make a reduce-scatter of both. A plain sum of one element a device
/// (`adds_one_of_each_device`) is the collective alone.
bool is_made_scattered(const Rule& rule, const FactorAxes& axes, const Mesh& mesh);

/// What a device exchanges with its neighbours where a factor with a halo is cut.
struct Halo {
  /// Bytes of an operand's halo, once.
  double bytes;
  AxisMask axes;
};

/// The halos of all operands of an op whose factors are cut as `axes`.
std::vector<Halo> halos_of(const Rule& rule, const std::vector<TensorType>& types,
                           const FactorAxes& axes, const Mesh& mesh);

}  // namespace autoshard::planning
