/// What products of matrices there are.
#pragma once

#include <cstdint>

#include "model/program.h"

namespace autoshard {

/// Whether a tensor has a factor.
bool has(const RuleTensor& tensor, std::int32_t factor);

/// What a factor of an operand is to a product, in the order in which it reads them.
enum class Role : std::uint8_t { batch, kept, contracted };

Role role_of(const Rule& rule, std::int32_t factor);

/// Whether it is a batch of products: a factor is in both operands and in the result.
bool has_batch(const Rule& rule);

/// How many elements of each operand are multiplied and added up for one of the result.
std::int64_t contracted_size(const Rule& rule);

/// Whether an op multiplies matrices by vectors that have a dim of size 1: a product, or a
/// batch of products, of one row or one column, as attention of one query. Convolutions are
/// none.
bool is_vector_product(const Rule& rule);

/// Whether it is added up in parts (`Fusion::split_products`).
///
/// Example: 1,024 x 1,024 over 8,192 positions, the gradient of a weight.
bool is_split(const Rule& rule, std::int64_t split_products);

/// In how many parts a product of `made` elements is added up, each of them over `contracted`
/// ones; 1: it is not, or too little to matter. The largest power of 2 up to 128 with
///
///   contracted / parts >= 128,  4 * contracted / parts > sqrt(made),
///   parts * made <= split_products, but for 2 parts
///
/// Example: 512 x 1,024 elements over a vocabulary of 50,265, of 2,097,152: 4 parts.
///
/// Source: 21 products of 16 x 16 to 1,024 x 1,024 elements over 64 to 65,536, compiled for a
/// described H100 (jax-cuda12-pjrt 0.10.2, 2026-11-30); of those in float32 over few it makes
/// more.
std::int64_t parts_of_product(double made, double contracted, std::int64_t split_products);

/// Whether it is a multiplication and a sum (`Fusion::summed_products`): a product with a
/// vector, each of the batch of fewer multiplications than that.
///
/// Example: one query of 128 features by 4,096 keys, for each of 64 sequences and 32 heads.
bool is_summed(const Rule& rule, std::int64_t summed_products);

}  // namespace autoshard
