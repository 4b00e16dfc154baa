/// Seconds that one device computes for an op.
#pragma once

#include <vector>

#include "model/cluster.h"
#include "model/kernel_part.h"
#include "model/program.h"
#include "model/sharding.h"

namespace autoshard {

/// What one device does for an op, once.
struct Compute {
  /// Operations; on the matrix unit after padding to its tiles.
  double flops = 0;
  /// Bytes read from and written to memory.
  double bytes = 0;
  /// Bytes that would take as long as packing narrow results, summing, and reading rows that
  /// no vector divides.
  double packed_bytes = 0;
  /// max(flops / rate, (bytes + packed_bytes) / bandwidth) + launch, less what ops in the
  /// kernel of a matmul do meanwhile.
  double seconds = 0;
  /// Padded multiplications of a matmul alone, at the rate that they reach.
  double multiplying_seconds = 0;
};

/// What accesses to rows of `count` elements of `bits` reach of those to rows that begin at
/// multiples of 16 bytes: all where they do, `worst` where at those of 2, in equal ratios
/// between. Rows that are no whole number of bytes count as if they did.
double aligned_share(double count, double bits, double worst);

/// Axes over which the results of an op are partial sums when its factors are cut as `axes`.
AxisMask partial_axes(const Rule& rule, const FactorAxes& axes);

/// Whether an op is a plain sum of which each device has one element along every factor that
/// is added up, so that nothing is left to do but the collective. `autoshard-reduce-once`
/// writes such sums.
bool adds_one_of_each_device(const Rule& rule, const FactorAxes& axes, const Mesh& mesh);

/// `part`: what of the op's kernel is read and written here. An axis that cuts no factor does
/// not make the op faster: every device along it computes the same. Products of matrices take
/// the matrix unit, or the vector unit where that is faster; everything else takes the vector
/// unit. Formulas: docs/design/cost_model.md.
///
/// The others in the kernel of a matmul have costs of their own, and what they do while the
/// matrix unit is busy is taken off here. Work on the result is not done there if the product
/// is a partial sum.
///
/// Example: 512x1024 by 1024x256 in bf16, 2 * 512*1024*256 operations, at 100 Tflop/s and 1
/// TB/s: 2.7 us for the operations, 1.8 us for the 1.8 MB.
Compute compute(const Rule& rule, const FactorAxes& axes, const KernelPart& part,
                const std::vector<TensorType>& types, const Mesh& mesh,
                const Cluster& cluster);

}  // namespace autoshard
