/// What a compiler does with a program: answers that every analysis asks for.
///
/// One field is one behaviour that was observed. An analysis asks for the behaviour, never for
/// the compiler's name, a chip, or what kind of links there are. Python chooses the answers by
/// compiler, release and chip (python/autoshard/compilers/, where every answer has its
/// source); docs/design/compilers.md is the table of all of them. The defaults are what is
/// taken of a compiler of which nothing is known.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

#include "model/program.h"

namespace autoshard {

/// What is computed in one kernel, and so takes no memory.
struct Fusion {
  /// Elementwise operands of a matmul are computed in its kernel.
  bool matmul_operands = false;
  /// Cheap work on one operand that has no more bytes, such as a relu, is.
  bool cheap_matmul_operands = false;
  /// Elementwise work on the result of a matmul is done before the result is stored.
  bool matmul_results = false;
  /// It is done in the matmul's kernel though others read the product, and both are stored.
  bool matmul_side_results = false;
  /// It is if one op after the other reads nothing else but arguments.
  bool matmul_epilogues = false;
  /// A product of fewer elements than this is added up in parts, if more are contracted than
  /// the root of that; 0: none is.
  std::int64_t split_products = 0;
  /// Products with a vector of fewer multiplications are a multiplication and a sum, which
  /// take fused operands; 0: none is.
  std::int64_t summed_products = 0;
  /// A cast to a narrower type is computed in every matmul that reads it, from the wider value
  /// that is in memory anyway.
  bool casts = false;
  /// A mask of one value is computed wherever it is read, if others read that value, too.
  bool masks = false;
  /// A cast of an argument is computed wherever it is read, if that moves no more.
  bool casts_of_arguments = false;
  /// From this expense on a function is stored where several fusions read it;
  /// `Expense::never`: none is.
  Expense stored_functions = Expense::never;
  /// What such a function is of is stored as well, if that reads broadcasts of what is
  /// computed or a function, and others read it.
  bool stores_arguments_of_functions = false;
  /// What several fusions read is computed in each if that reads at most so many times its
  /// bytes; 0: if that moves no more than to store it and to read it.
  double most_reread = 0;
  /// What several batches of products read is stored if an element takes more operations than
  /// this; 0: any number is computed in each.
  double most_operations = 0;
  /// What several ops read is stored if an element takes more operations than this, but for
  /// masks and what reads no array of its size; 0: any number is repeated.
  double repeated_operations = 0;
  /// Arguments do not count among what is read for that.
  bool ignores_arguments = false;
  /// Nor does a function that is stored for its own sake.
  bool ignores_stored_functions = false;
  /// What is computed from so many values is stored: a kernel reads no more; 0: any number.
  std::int64_t most_operands = 0;
  /// What one reader needs stored is read from memory by all others as well.
  bool reads_what_is_stored = false;
  /// One kernel writes two elementwise results of one size that share what they are made of.
  bool two_results = false;
  /// A batch of products that contracts so many elements, the maxima of its rows and a
  /// function of both that is summed are one kernel; 0: never.
  std::int64_t short_products = 0;
  /// One kernel writes all elementwise results of one size that share what would be stored.
  bool several_results = false;
  /// A sum over a transcendental function stores it on the way.
  bool stores_summed = true;
  /// Only a function that is computed from a batch of matmuls is stored so.
  bool summed_of_batches = false;
  /// Reductions of rows of at most so many elements are computed in the kernels that read
  /// them beside the rows; 0: none is.
  std::int64_t row_reductions = 0;
  /// A kernel of whole rows of several tensors, in which a reduction waits for another, reads
  /// these so many times.
  std::int64_t nested_reductions = 1;
  /// What a gather takes one element of each row from is stored.
  bool stores_gathered = false;
  /// The result of a scatter of one element to each row is stored, or the sum of it and
  /// another tensor.
  bool stores_scattered = false;
  /// A scatter computes what it writes; without, that is stored.
  bool scattered_updates = false;
  /// The kernel that finds maxima over windows for their gradient computes what it reads.
  bool window_operands = false;
  /// A pad that puts zeros between elements is a kernel of its own, which reads its operand
  /// from memory.
  bool stored_pads = false;
  /// What a concatenation joins is stored where it is computed, and where it is a slice of no
  /// multiple of so many elements; 0: it is a part of the kernel of the concatenation.
  std::int64_t joined_columns = 0;
  /// A gather of rows is a kernel that computes at most elementwise work on what it reads;
  /// without, each kernel gathers what it reads.
  bool gather_kernels = false;
  /// Indices of gathers and scatters are computed for each of them, and each index takes as
  /// long as so many bytes of memory; 0: they are read.
  double index_bytes = 0;
  /// A broadcast of which a view joins a dim into another one is a kernel of its own, and each
  /// element in tiles of all rows takes as long as so many bytes of memory; 0: it is a part of
  /// those that read it.
  double repeated_bytes = 0;
  /// What several fusions compute is read from memory in each of them.
  bool reads_in_each = false;
  /// But of a tensor that has no more bytes on a device than this, only the first of these
  /// reads takes time; 0: all do.
  double kept_bytes = 0;
  /// A kernel that has no product takes the longer of what all of its ops compute and what
  /// they move; else each of them takes the longer of both.
  bool overlaps_memory = false;
  /// An elementwise kernel and one of as many elements that reads what it stores, or something
  /// else with it, are one kernel.
  bool joint_loops = false;
  /// Reductions of equal shapes that do not wait for each other are one kernel.
  bool sibling_reductions = false;
  /// What an elementwise kernel stores is reduced in it.
  bool reduced_as_written = false;
  /// Reductions of longer rows than this are two kernels, one for parts of rows; 0: none is.
  std::int64_t whole_rows = 0;
  /// Those of longer columns are.
  std::int64_t whole_columns = 0;
  /// Each element that a kernel reduces, or writes narrower than 32 bits, takes as long as so
  /// many bytes of memory more, once in each kernel.
  double packed_bytes = 0;
  /// Each element of the operands of a batch of products does.
  double batch_operand_bytes = 0;
  /// Each element that a kernel brings from rows into columns of tiles takes as long as so
  /// many bytes of memory, if that is longer than it is read and written; 0: it is packed.
  double transposed_bytes = 0;
  /// What a loop slices by its counter and a kernel of more elements reads is stored.
  bool stored_slices = false;
  /// Each point takes as long as so many bytes of memory in a product that transforms a dim;
  /// 0: Fourier transforms are kernels of a library.
  double transform_bytes = 0;
  /// Bytes on the chip that a product computes a tile of its result in; 0: as many as it takes
  /// to read each operand once.
  double matmul_tile_bytes = 0;
  /// What a product of 16-bit numbers with rows of odd length reaches of one whose rows begin
  /// at multiples of 16 bytes.
  double unaligned_rows = 1;
  /// A convolution computes multiples of so many input channels for each place of its window.
  std::int64_t convolution_channels = 1;
  /// What convolutions of few channels, which run as multiply and add, reach of the peak.
  double convolutions_on_vectors = 1;
  /// Convolutions multiply the zeros that stand between the elements of dilated operands where
  /// their library does not know the dilation (`Rule::dilation`).
  bool multiplied_zeros = false;
};

/// In which order values lie in memory.
struct Layout {
  /// An argument that a loop takes transposed is written once more.
  bool row_major_arguments = false;
  /// Matmuls write row by row: an elementwise op that reads values in different orders has the
  /// younger one copied.
  bool row_major_matmuls = false;
  /// Matmuls read operands whose batch lies in front and whose rows and columns lie in one
  /// piece each: others are written once more.
  bool matmul_operands_in_order = false;
  /// A batch of products writes its result in an order of its own, in which elementwise ops
  /// keep it. What leaves the program so, or comes in row by row and is read beside it, is
  /// copied.
  bool ordered_batches = false;
  /// Loops take stacks row by row: one that another loop left otherwise is written once more.
  bool row_major_stacks = false;
  /// A stack that a loop only converts to a narrower type is converted before the loop.
  bool converted_stacks = false;
  /// Convolutions pad both sides alike; a padded copy is made for others.
  bool symmetric_padding = false;
  /// Memory holds matrices in tiles of so many rows and columns, and pads them to these; 0
  /// columns: it has no tiles.
  std::int64_t tile_rows = 1;
  std::int64_t tile_columns = 0;
};

/// Which values share a buffer.
struct Buffers {
  /// Convolutions return a tuple with a workspace: nothing is written over their results.
  bool tuples_of_convolutions = false;
  /// Nothing is written over what a kernel also reduces alone, as a softmax does.
  bool keeps_reduced = false;
  /// A result of the program has its buffer from the start, and values that are free again
  /// before it is made use that.
  bool lending_results = false;
  /// A donated argument of which a collective gathers the next value is copied before it is
  /// read first; the next value is copied into its buffer at the end.
  bool copies_gathered_arguments = false;
  /// The gradient of maxima over windows is scattered over zeros to where these are; numbers
  /// that say where, and the zeros, are made while scattered sums of gradients are waited for.
  bool window_indices = false;
  /// What a loop carries, and begins as a constant, is written before the loop; all of one
  /// type is before the first loop, or scatter, of a body that begins so.
  bool filled_stacks = false;
};

/// In which order ops and collectives run.
struct Schedule {
  /// Other ops run while values are gathered; without, they wait.
  bool hides_gathers = false;
  /// Other ops run while sums are reduced or scattered.
  bool hides_sums = false;
  /// Other ops run during all-to-alls and permutes.
  bool hides_exchanges = false;
  /// Gradient reduction is delayed: sums that only updates read are reduced behind the
  /// backward pass, while the matmuls that make others run.
  bool late_sums = false;
  /// Matmuls for gradients that no device sends run at the end of a loop that sends something.
  bool late_local_gradients = false;
  /// They run behind the loops that come after them.
  bool local_gradients_behind_loops = false;
  /// A batched matmul whose readers come later runs behind what the next one reads.
  bool late_batched_matmuls = false;
  /// Rings of matmuls whose sums only updates read run at the end, all but so many;
  /// 0: all run where they are.
  std::int64_t rings_in_order = 0;
  /// Part of the memory that this may fill; beyond, the order that takes least is kept.
  double memory_share = 0;
};

/// How collectives are written, and what they cost besides the links.
struct Collectives {
  /// From so many devices on all-gathers and reduce-scatters over a whole slice of a torus
  /// become all-reduces; 0: never.
  std::int64_t whole_slice_devices = 0;
  /// On slices of two dims larger results are gathered as they are. Bytes.
  double whole_plane_bytes = 0;
  /// Share of the memory's bandwidth at which the zeros for that are filled.
  double zero_fill_share = 1;
  /// From so many devices on what no matmul scatters is reduced over a whole slice;
  /// 0: never.
  std::int64_t reduced_slice_devices = 0;
  /// From so many devices on a matmul scatters its partial sums while it runs, in a ring;
  /// 0: never.
  std::int64_t ring_devices = 0;
  /// How many times as long as the transfer along one ring the matmul must take for it.
  double ring_matmul_share = 0;
  /// Where all devices of a slice take part: as the transfer of one block, its part of the
  /// sum.
  double ring_slice_share = 0;
  /// How often such a loop reads or writes the whole result, two bytes an element, besides
  /// the matmul, and, in bytes at the memory's rate, the operand that it transposes.
  double ring_result_passes = 0, ring_operand_passes = 0;
  /// All-reduces up to so many bytes are joined in one buffer; 0: none is.
  double joined_bytes = 0;
  /// Those that do not wait for each other run as one, of several tensors together up to so
  /// many bytes and without a buffer; 0: none does.
  double tuple_bytes = 0;
  /// Those up to so many bytes are alone.
  double alone_bytes = 0;
  /// One device's part lies behind another's: what is gathered, scattered or exchanged in
  /// another dim is transposed.
  bool parts_in_turn = false;
  /// What is exchanged leaves from the outermost dim and arrives there: of another dim, all
  /// that a device holds is transposed before, or after.
  bool exchanges_outermost = false;
};

/// Operations of the vector units that an element of each `Function` takes; the defaults are
/// those of a reciprocal with a Newton step, and of polynomials of so many multiply-adds.
struct Functions {
  double division = 4;
  double remainder = 4;
  double root = 4;
  double exponential = 10;
  double logarithm = 10;
  double logistic = 10;
  double tanh = 20;
  double error = 10;
  double error_complement = 60;
  double sine = 20;
  double power = 20;
  double other = 20;

  /// The number for an element; 1 where it is no function.
  double operations(Function function) const;
};

struct Compiler {
  Fusion fusion;
  Layout layout;
  Buffers buffers;
  Schedule schedule;
  Collectives collectives;
  Functions functions;
};

/// Answers that are no answers: an unknown name, a missing one, a number out of its range.
struct InvalidCompiler : std::logic_error {
  using std::logic_error::logic_error;
};

/// The compiler of these answers, by their names `fusion.casts`; yes and no are 1 and 0, an
/// expense its number. A name that is missing has its default. Throws `InvalidCompiler`.
Compiler compiler_of(const std::map<std::string, double>& answers);

/// All answers by name.
std::map<std::string, double> answers_of(const Compiler& compiler);

}  // namespace autoshard
