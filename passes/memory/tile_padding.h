/// By how much tiles of memory make values larger.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compilers/compiler.h"
#include "memory/program_index.h"

namespace autoshard {

/// By how much the tiles of memory (`Layout::tile_rows`, `Layout::tile_columns`) make a matrix
/// of so many rows and columns larger, or its transpose where that is smaller. A matrix of
/// fewer rows than a tile has takes a tile of a power of two rows.
///
/// Example: 49 x 49 in tiles of 8 x 128: 56 * 128 / 49^2 = 2.99; 512 x 64: 1, as the columns
/// are 512.
double padding_of_matrix(double rows, double columns, const Layout& layout);

/// The same of one order of the two: the columns are those of the tiles.
double padding_of_columns(double rows, double columns, const Layout& layout);

/// By how much they make a value larger in the order of its dims that pads least.
///
/// Example: states of 32 heads of 64 x 64 elements: 2, as no dim fills 128 columns.
double least_padding(std::span<const double> dims, const Layout& layout);

struct TilePadding {
  /// By value: its bytes in memory over those of its elements, before any cut; 1 of all
  /// without tiles.
  std::vector<double> of_value;
  /// The same of what is stored, with that of stacks; see `stack_padding_of`.
  std::vector<double> of_stored;
  /// By value: a batch of products reads it as matrices, or writes it so.
  std::vector<bool> is_matrix;
  /// By op: a view between matrices of a batch of products, padded to twice their elements or
  /// more, and what a product without a batch reads or writes, which lies in another order of
  /// dims: it is a kernel that transposes.
  std::vector<bool> is_copy;
};

/// Matrices that a batch of products reads or writes lie in tiles, whatever the dims of the
/// batch. So does what elementwise ops and views compute from them, or make them of, as far as
/// both dims of the matrix are dims of that. Everything else lies in the order of dims that
/// fills its tiles: a product without a batch reads and writes any. Arguments are as they are
/// given, and products with vectors are sums.
///
/// What a convolution reads or writes lies in tiles of images and channels, and so does what
/// elementwise ops, views and poolings make of it or it is made of, as far as both are dims of
/// that. Images are those of one device, as if they were cut over all.
///
/// Example: 512 images on 8 devices, 64 channels: 64 x 128 in place of 64 x 64, twice their
/// elements.
///
/// Example: the scores of 3 heads over windows of 49 pixels, and their softmax: 2.99 times
/// their elements. The columns that they are made of, 49 x 288 without heads: 1; the view
/// that splits these into heads is a copy.
TilePadding tile_padding_of(const ProgramIndex& index, const Layout& layout);

}  // namespace autoshard
