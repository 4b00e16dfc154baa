/// What the cost network of a level charges.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/program.h"
#include "planning/classes.h"

namespace autoshard::planning {

/// What a level minimises:
///
///   sum over op classes    trips * op
///   + sum over uses, flows trips * reshard
///   + sum over flows       stored * stored_slice * bytes of a slice
///   + sum over sharding classes  held
///   + sum over sums of loops  parts
///   + sum over uses        transient * bytes that an op has otherwise than they are held
///   + sum over results     made * bytes that a collective makes of them
class Costs {
 public:
  virtual ~Costs() = default;
  /// Once, to go from one sharding to another; see cost/reshard.h.
  virtual double reshard(const TensorType& type, const Sharding& from, const Sharding& to,
                         AxisMask partial) const = 0;
  /// Part of it that is not taken since `together` such run as one.
  virtual double shared(const TensorType&, const Sharding&, const Sharding&, AxisMask,
                        std::int32_t) const {
    return 0;
  }
  /// One run of an op whose factors are cut as `axes`; `base` is what other levels decided.
  virtual double op(const OpSignature& signature, const FactorAxes& base,
                    const FactorAxes& axes) const = 0;
  /// What one run of an op takes more if the partial sums of its result, which it makes as
  /// `made`, are scattered to `held`.
  virtual double scattering(const OpSignature&, const FactorAxes&, const Sharding&,
                            const Sharding&) const {
    return 0;
  }
  /// What one run of an op takes at least to reduce the parts of its only result.
  virtual double least_reduced(const OpSignature&, const FactorAxes&) const { return 0; }
  /// Whether the parts that ops of `Classes::sums[sum]` make are reduced behind the loop where
  /// that takes at least `reduced` in a trip, and a part has `bytes` of which a device may
  /// hold as little as `held_bytes` otherwise.
  virtual bool is_once(std::int32_t /*sum*/, double /*reduced*/, double /*bytes*/,
                       double /*held_bytes*/) const {
    return false;
  }
  /// What it costs then that devices hold `more_bytes` more of each result.
  virtual double parts(std::int32_t /*sum*/, double /*more_bytes*/) const { return 0; }
  /// What it costs in itself to hold all members of a sharding class as `sharding`.
  virtual double held(std::int32_t sharding_class, const Sharding& sharding) const = 0;
  /// What a byte costs that an op class has otherwise than it is held.
  virtual double transient(const Use&) const { return 0; }
  /// What a byte costs of what a collective makes of a result.
  virtual double made(const Use&) const { return 0; }
  /// What a byte costs of copies that a flow makes, by its number, and that are more than
  /// slices.
  virtual double copy(std::size_t) const { return 0; }
  /// What a byte costs of a slice that a loop begins with.
  virtual double stored_slice() const { return 0; }
  /// Differs where any of the prices of memory differ.
  virtual std::uint64_t prices_id() const { return 0; }
};

}  // namespace autoshard::planning
