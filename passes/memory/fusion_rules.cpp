#include "memory/fusion_rules.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "memory/fused_views.h"
#include "model/products.h"

namespace autoshard {
namespace {

/// A cheap value that more fusions read than this is stored: recomputing it everywhere would
/// cost more time than compilers accept.
constexpr double most_copies = 256;
/// A narrower value is computed from one wider one if everything that is read for it has at
/// most so many times the bytes of that one.
constexpr double most_over_widest = 1.25;

bool is_unary(const ProgramIndex& index, std::int32_t op) {
  const Op& o = index.op(op);
  return index.rule(op).work == Work::elementwise && o.operands.size() == 1 &&
         o.operands[0] != no_value;
}

bool is_cast_of_argument(const FusionInput& input, std::int32_t op) {
  const ProgramIndex& index = input.index;
  return is_unary(index, op) && index.is_argument(input.aliases.of(index.op(op).operands[0]));
}

/// Whether an op is a cast to a narrower type of what is computed from one value of the wider
/// type and little else, which is there anyway when the narrower one is read last: the
/// probabilities of a softmax, from its exponentials.
bool is_cast_of_one(const FusionInput& input, const Sources& sources, std::int32_t op) {
  const ProgramIndex& index = input.index;
  if (!is_unary(index, op)) return false;
  const std::int32_t result = index.op(op).results[0];
  const double wider = index.bytes[index.op(op).operands[0]];
  const auto [source, bytes] = sources.largest();
  const auto readers = in(input.uses.readers, result);
  return wider > index.bytes[result] && bytes >= wider &&
         sources.bytes() <= most_over_widest * wider && !readers.empty() &&
         in(input.uses.readers, source).back().op > readers.back().op;
}

/// Whether an op is a cast to a wider type.
bool is_widening(const ProgramIndex& index, std::int32_t op) {
  return is_unary(index, op) &&
         index.bytes[index.op(op).operands[0]] < index.bytes[index.op(op).results[0]];
}

/// Whether a value is the result of a batch of matmuls.
bool is_of_batch(const ProgramIndex& index, std::int32_t value) {
  const std::int32_t producer = index.producer[value];
  return producer != no_op && index.rule(producer).work == Work::matmul &&
         has_batch(index.rule(producer));
}

/// Whether an expression is computed from the result of one matmul and little else, in whose
/// kernel it is: scores with a bias and a mask.
bool is_of_one_matmul(const ProgramIndex& index, const Sources& sources) {
  const auto [largest, bytes] = sources.largest();
  if (largest == no_value || index.producer[largest] == no_op) return false;
  return index.rule(index.producer[largest]).work == Work::matmul &&
         sources.bytes() <= most_over_widest * bytes;
}

/// The operand of an elementwise op with as many elements as its result that is computed last,
/// or `no_value`.
std::int32_t whole_operand(const FusionInput& input, std::int32_t op) {
  const ProgramIndex& index = input.index;
  std::int32_t whole = no_value;
  for (std::int32_t v : index.op(op).operands) {
    if (v == no_value || index.is_free(v)) continue;
    const std::int32_t stored = input.aliases.of(v), producer = index.producer[stored];
    const bool is_repeated = producer != no_op && index.rule(producer).work == Work::view;
    if (is_repeated || index.elements(stored) != index.elements(index.op(op).results[0])) {
      continue;
    }
    if (whole == no_value || producer > index.producer[whole]) whole = stored;
  }
  return whole;
}

/// Whether a value has a byte for each element, as masks have.
bool is_mask(const ProgramIndex& index, std::int32_t value) {
  return index.program.types[index.program.values[value].type].element_bits <= 8;
}

/// Whether an op compares what is computed from one value and little else, and others read
/// that value, too, or something on the way: it is there anyway. Random numbers are not.
bool is_mask_of_one(const FusionInput& input, const Sources& sources, std::int32_t op) {
  const ProgramIndex& index = input.index;
  const std::int32_t mask = index.op(op).results[0];
  const bool compares =
      index.rule(op).work == Work::elementwise && !is_unary(index, op) && is_mask(index, mask);
  const auto [source, bytes] = sources.largest();
  if (!compares || bytes <= index.bytes[mask]) return false;
  if (sources.bytes() > most_over_widest * bytes) return false;
  for (std::int32_t value = mask; value != source;) {
    value = whole_operand(input, index.producer[value]);
    if (value == no_value) return false;
    if (in(input.uses.readers, value).size() > 1) return true;
    if (index.producer[value] == no_op) return false;
  }
  return false;
}

/// Whether a reduction reads what an op makes.
bool is_reduced(const FusionInput& input, std::int32_t op) {
  const auto readers = in(input.uses.readers, input.index.op(op).results[0]);
  return std::any_of(readers.begin(), readers.end(), [&](const Reader& reader) {
    return input.index.rule(reader.op).work == Work::reduce;
  });
}

/// The op that makes what a function is of where rows are reduced, or `no_op`: the scores of a
/// softmax, of which there are maxima.
std::int32_t rows_of(const FusionInput& input, std::int32_t op) {
  const ProgramIndex& index = input.index;
  do {
    const std::int32_t v = whole_operand(input, op);
    op = v == no_value ? no_op : index.producer[v];
    if (op == no_op || is_reduced(input, op)) return op;
  } while (index.rule(op).work == Work::elementwise);
  return no_op;
}

/// Whether a function is of rows that are nothing but narrower ones, cast: the compiler takes
/// the maxima of those.
bool is_of_narrow_rows(const FusionInput& input, std::int32_t op) {
  const std::int32_t rows = rows_of(input, op);
  return rows != no_op && is_widening(input.index, rows);
}

/// Whether a sum over a function stores it on the way, as a second output of the same kernel:
/// the exponentials of a softmax. A single matmul writes the maximum of each row beside its
/// result, and whoever reads the exponentials computes them from these two; so does who finds
/// scores in a narrower type.
bool is_stored_by_sum(const FusionInput& input, const Sources& sources, std::int32_t op) {
  const ProgramIndex& index = input.index;
  if (!input.rules.stores_summed || index.rule(op).is_cheap) return false;
  if (!is_reduced(input, op) || is_of_narrow_rows(input, op)) return false;
  return !input.rules.summed_of_batches ||
         sources.any([&](std::int32_t v) { return is_of_batch(index, v); });
}

/// The bytes, in those of a value, that each of several fusions may read to compute it if that
/// is to move no more than to write it once and to read it in each.
double most_to_save(double fusions) {
  return fusions > 1 ? (fusions + 1) / (fusions - 1) : std::numeric_limits<double>::infinity();
}

/// Whether the operand `value` of op `i` is part of the expression that `i` computes, and not
/// read from memory.
bool is_expression(const FusionInput& input, std::int32_t value, std::int32_t i) {
  const ProgramIndex& index = input.index;
  const std::int32_t producer = index.producer[value];
  return producer != no_op && may_be_fused(input, producer) &&
         index.rule(producer).work != Work::matmul &&
         index.loops.of_op(producer) == index.loops.of_op(i);
}

/// Whether an op is a scatter of one element to each row.
bool is_scatter(const ProgramIndex& index, std::int32_t op) {
  return index.rule(op).work == Work::elementwise && index.rule(op).in_place_operand >= 0;
}

/// Whether the result of a scatter is one of two operands of one elementwise op alone: the
/// compiler scatters into the other one.
bool is_added(const FusionInput& input, std::int32_t scatter) {
  const ProgramIndex& index = input.index;
  const auto readers = in(input.uses.readers, index.op(scatter).results[0]);
  if (readers.size() != 1) return false;
  const std::int32_t reader = readers.begin()->op;
  return index.rule(reader).work == Work::elementwise && !is_scatter(index, reader) &&
         index.op(reader).operands.size() == 2;
}

/// Whether an elementwise op adds what is scattered to something else, which the scatter then
/// writes over.
bool adds_scattered(const FusionInput& input, std::int32_t op) {
  const ProgramIndex& index = input.index;
  if (index.op(op).operands.size() != 2) return false;
  for (std::int32_t v : index.op(op).operands) {
    const std::int32_t producer = v == no_value ? no_op : index.producer[v];
    if (producer != no_op && is_scatter(index, producer) && is_added(input, producer)) {
      return true;
    }
  }
  return false;
}

/// How often all of a value is read, twice where that is more than once.
double times_read(const FusionInput& input, std::int32_t value) {
  double times = 0;
  for (const Reader& reader : in(input.uses.readers, value)) {
    times += share_read(input.index, reader.op, reader.operand);
  }
  return times > 1 ? 2 : times;
}

/// Whether an expression is stored, although it could be a part of each that reads it. One
/// cast to a wider type is a part of each that reads that, which then reads the narrower one.
bool is_stored(const FusionInput& input, const std::vector<Sources>& sources,
               std::int32_t value) {
  const std::int32_t producer = input.index.producer[value];
  if (is_too_much(input, sources[producer])) return true;
  auto readers = in(input.uses.readers, value);
  if (readers.size() == 1 && is_widening(input.index, readers.begin()->op)) {
    value = input.index.op(readers.begin()->op).results[0];
    readers = in(input.uses.readers, value);
  }
  if (readers.size() <= 1) return false;
  const bool needs_it = std::any_of(readers.begin(), readers.end(), [&](const Reader& r) {
    return input.rules.reads_what_is_stored && !takes_fused(input, r.op, r.operand);
  });
  return needs_it || !is_duplicated(input, sources, producer, times_read(input, value));
}

/// A division takes vector units as long as so many other operations: where 12 exponentials or
/// sums are computed in both of two batches of products, so are 2 beside a division
/// (`Fusion::most_operations` in docs/design/compilers.md says where that was seen).
constexpr double operations_of_division = 10;

/// The operations of vector units that an element of an op takes. Functions have an
/// instruction, and casts are a part of what reads or writes.
double operations_of(const ProgramIndex& index, std::int32_t op) {
  const Rule& rule = index.rule(op);
  const std::int32_t result = index.op(op).results[0];
  if (rule.work != Work::elementwise) return 0;
  if (is_unary(index, op) && rule.is_cheap &&
      index.bytes[index.op(op).operands[0]] != index.bytes[result]) {
    return 0;
  }
  const auto& operands = index.op(op).operands;
  const bool divides =
      rule.function == Function::division || rule.function == Function::remainder;
  const bool is_division = divides && operands[1] != no_value && !index.is_free(operands[1]);
  return is_division ? operations_of_division : 1;
}

bool is_matmul(const ProgramIndex& index, std::int32_t op) {
  return op != no_op && index.rule(op).work == Work::matmul;
}

/// The ops whose results are in memory in the place of a product, so that who reads them goes
/// on from there: what the kernel of the product makes of it (scores with a mask), and the
/// functions of narrow rows of which constants alone are made (the exponentials of scores,
/// which the kernel of their sum writes).
class InPlaceOfProducts {
 public:
  explicit InPlaceOfProducts(const FusionInput& input)
      : input_(input),
        is_constant_(input.index.num_ops, false),
        product_(input.index.num_ops, no_value) {}

  /// Whether `op` is one of them; asked of each op in order.
  bool holds(std::int32_t op) {
    const ProgramIndex& index = input_.index;
    const auto& operands = index.op(op).operands;
    is_constant_[op] = std::all_of(operands.begin(), operands.end(),
                                   [&](std::int32_t v) { return is_constant(v); });
    if (index.rule(op).work != Work::elementwise) return false;
    for (std::int32_t v : operands) {
      if (v != no_value && is_made_by_product(input_.aliases.of(v))) product_[op] = v;
    }
    return product_[op] != no_value || is_function_of_product(op);
  }

 private:
  /// Whether compilers know all elements of a value: a mask that is made of ones alone.
  bool is_constant(std::int32_t value) const {
    if (value == no_value || input_.index.is_free(value)) return true;
    const std::int32_t producer = input_.index.producer[input_.aliases.of(value)];
    return producer != no_op && is_constant_[producer];
  }

  bool is_made_by_product(std::int32_t value) const {
    const std::int32_t producer = input_.index.producer[value];
    return producer != no_op && in(input_.uses.readers, value).size() == 1 &&
           (is_matmul(input_.index, producer) || product_[producer] != no_value);
  }

  bool is_function_of_product(std::int32_t op) const {
    const ProgramIndex& index = input_.index;
    if (index.rule(op).is_cheap) return false;
    std::int32_t rows = rows_of(input_, op);
    while (rows != no_op && product_[rows] != no_value) {
      const auto& operands = index.op(rows).operands;
      const bool is_of_constants =
          std::all_of(operands.begin(), operands.end(),
                      [&](std::int32_t v) { return v == product_[rows] || is_constant(v); });
      if (!is_of_constants || is_widening(index, rows)) return false;
      rows = index.producer[input_.aliases.of(product_[rows])];
    }
    return is_matmul(index, rows);
  }

  const FusionInput& input_;
  /// By op: all that it is made of are constants.
  std::vector<bool> is_constant_;
  /// By op that the kernel of a product computes: the operand that comes of the product.
  std::vector<std::int32_t> product_;
};

/// Whether several batches of products read what an op makes, and it takes more operations
/// than each of them computes.
bool is_stored_for_batches(const FusionInput& input, const Sources& sources, std::int32_t op) {
  const ProgramIndex& index = input.index;
  const double most = input.rules.most_operations;
  if (most == 0 || sources.operations() <= most) return false;
  const auto readers = in(input.uses.readers, index.op(op).results[0]);
  return std::count_if(readers.begin(), readers.end(), [&](const Reader& reader) {
           return is_matmul(index, reader.op) && has_batch(index.rule(reader.op));
         }) > 1;
}

/// Whether several ops read what an op makes, which takes more operations than compilers
/// repeat. What reads no array of its size is repeated however many it takes, and so are
/// masks: random bits of a dropout, and what they drop.
bool is_stored_for_operations(const FusionInput& input, const Sources& sources,
                              std::int32_t op) {
  const ProgramIndex& index = input.index;
  const double most = input.rules.repeated_operations;
  if (most == 0 || sources.operations() <= most) return false;
  const std::int32_t result = index.op(op).results[0];
  return in(input.uses.readers, result).size() > 1 && !is_mask(index, result) &&
         sources.reads_array();
}

/// Whether an op is a function, or a broadcast of what another kernel makes.
bool is_labour(const FusionInput& input, std::int32_t op) {
  const ProgramIndex& index = input.index;
  const Rule& rule = index.rule(op);
  if (rule.work == Work::elementwise) return rule.expense > Expense::cheap;
  const auto& operands = index.op(op).operands;
  return rule.work == Work::view && operands.size() == 1 && operands[0] != no_value &&
         index.bytes[operands[0]] < index.bytes[index.op(op).results[0]] &&
         !is_there_before(input, operands[0], op);
}

/// Whether an expression is stored beside a function of it that is stored: the kernel of the
/// function is busy computing.
bool is_stored_beside_function(const FusionInput& input, const Sources& sources,
                               std::int32_t op) {
  if (!input.rules.stores_arguments_of_functions || !sources.is_laborious()) return false;
  const auto readers = in(input.uses.readers, input.index.op(op).results[0]);
  return std::any_of(readers.begin(), readers.end(),
                     [&](const Reader& reader) { return is_expensive(input, reader.op); });
}

}  // namespace

bool is_there_before(const FusionInput& input, std::int32_t value, std::int32_t op) {
  const ProgramIndex& index = input.index;
  if (value == no_value || index.is_free(value)) return true;
  const std::int32_t v = input.aliases.of(value), producer = index.producer[v];
  if (producer == no_op) return index.is_argument(v) || index.is_carried(v);
  if (index.loops.of_op(producer) != index.loops.of_op(op)) return true;
  const auto& operands = index.op(producer).operands;
  return index.rule(producer).work == Work::view && operands.size() == 1 &&
         index.bytes[operands[0]] < index.bytes[v] && is_there_before(input, operands[0], op);
}

bool is_of_one(const ProgramIndex& index, std::int32_t op) {
  if (index.rule(op).work != Work::elementwise || !index.rule(op).is_cheap) return false;
  std::int32_t source = no_value;
  for (std::int32_t v : index.op(op).operands) {
    if (v == no_value || index.is_free(v)) continue;
    if (source != no_value && source != v) return false;
    source = v;
  }
  return source != no_value && index.bytes[source] <= index.bytes[index.op(op).results[0]];
}

bool is_scatter_to_maxima(const ProgramIndex& index, std::int32_t op) {
  const Rule& rule = index.rule(op);
  const auto& operands = index.op(op).operands;
  return rule.work == Work::indexed && rule.in_place_operand < 0 &&
         rule.operand_bytes.empty() && operands.size() >= 2 && operands[0] != no_value &&
         operands[1] != no_value && index.op(op).results[0] != no_value;
}

bool takes_fused(const FusionInput& input, std::int32_t op, std::int32_t operand) {
  const ProgramIndex& index = input.index;
  const Rule& rule = index.rule(op);
  switch (rule.work) {
    case Work::elementwise:
      return true;
    case Work::view:
      return takes_viewed(input, op, operand);
    case Work::reduce:
      return !rule.is_cheap || !input.rules.stores_gathered;
    case Work::matmul: {
      if (input.rules.matmul_operands || is_summed(rule, input.rules.summed_products)) {
        return true;
      }
      const std::int32_t producer = index.producer[index.op(op).operands[operand]];
      return input.rules.cheap_matmul_operands && !rule.has_workspace && producer != no_op &&
             is_of_one(index, producer);
    }
    case Work::indexed:
      if (is_scatter_to_maxima(index, op)) return operand == 0 && input.rules.window_operands;
      // A dynamic update slice computes what it writes.
      if (operand == 1) return !has_indices(rule) || input.rules.index_bytes > 0;
      return operand == 2 && input.rules.scattered_updates && rule.in_place_operand >= 0 &&
             has_indices(rule);
    case Work::attention:
    case Work::attention_gradient:
    case Work::other:
    case Work::kernel:
      return false;
  }
  return false;
}

bool may_be_fused(const FusionInput& input, std::int32_t op) {
  const Op& o = input.index.op(op);
  if (o.results.size() != 1 || o.results[0] == no_value ||
      input.uses.must_store[o.results[0]]) {
    return false;
  }
  const Rule& rule = input.index.rule(op);
  if (input.rules.stores_scattered && rule.work == Work::elementwise &&
      (is_scatter(input.index, op) ? !is_added(input, op) : adds_scattered(input, op))) {
    return false;
  }
  if (is_stored_pad(input, op)) return false;
  return rule.work == Work::elementwise || rule.work == Work::view ||
         (rule.work == Work::matmul &&
          (input.rules.matmul_results ||
           (input.rules.matmul_epilogues && !rule.has_workspace))) ||
         (rule.work == Work::indexed && rule.is_cheap) || input.is_row_reduction[op];
}

double share_read(const ProgramIndex& index, std::int32_t op, std::int32_t operand) {
  const auto& touched = index.rule(op).operand_bytes;
  if (operand != 0 || touched.empty() || touched[0] < 0) return 1;
  const double part = index.bytes[index.op(op).results[0]];
  return std::min(1.0, part / index.bytes[index.op(op).operands[0]]);
}

bool is_too_much(const FusionInput& input, const Sources& sources) {
  const auto most = static_cast<std::size_t>(input.rules.most_operands);
  return most > 0 && sources.count() >= most;
}

bool is_expensive(const FusionInput& input, std::int32_t op) {
  const Rule& rule = input.index.rule(op);
  return rule.work == Work::elementwise && rule.expense >= input.rules.stored_functions;
}

std::vector<std::int32_t> maxima_in_products(const FusionInput& input) {
  const ProgramIndex& index = input.index;
  std::vector<std::int32_t> found;
  if (input.rules.short_products == 0) return found;
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    const bool is_summed = index.rule(i).work == Work::elementwise &&
                           !index.rule(i).is_cheap && index.op(i).results.size() == 1 &&
                           is_reduced(input, i);
    const std::int32_t rows = is_summed ? rows_of(input, i) : no_op;
    if (rows == no_op || is_widening(index, rows)) continue;
    std::int32_t product = rows;
    while (product != no_op && index.rule(product).work == Work::elementwise) {
      const std::int32_t v = whole_operand(input, product);
      product = v == no_value ? no_op : index.producer[v];
    }
    const bool is_short = product != no_op && index.rule(product).work == Work::matmul &&
                          has_batch(index.rule(product)) &&
                          contracted_size(index.rule(product)) <= input.rules.short_products;
    if (!is_short) continue;
    for (const Reader& reader : in(input.uses.readers, index.op(rows).results[0])) {
      if (index.rule(reader.op).work == Work::reduce) found.push_back(reader.op);
    }
  }
  return found;
}

std::vector<Sources> sources_of(const FusionInput& input) {
  const ProgramIndex& index = input.index;
  std::vector<Sources> sources(index.num_ops);
  // The same, if what is cast to a wider type on the way is stored.
  std::vector<Sources> narrow(index.num_ops);
  InPlaceOfProducts in_place_of_products(input);
  const auto take_narrow = [&](std::int32_t i) {
    if (narrow[i].bytes() < index.bytes[index.op(i).results[0]] &&
        !is_duplicated(input, sources, i, times_read(input, index.op(i).results[0]))) {
      sources[i] = narrow[i];
    }
  };
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (input.aliases.is_bitcast[i] || !may_be_fused(input, i) ||
        index.rule(i).work == Work::matmul) {
      continue;
    }
    Sources* const both[] = {&sources[i], &narrow[i]};
    const auto is_whole = [&](std::int32_t v) {
      return index.elements(v) == index.elements(index.op(i).results[0]);
    };
    for (std::int32_t operand : index.op(i).operands) {
      if (operand == no_value) continue;
      const std::int32_t v = input.aliases.of(operand);
      if (index.is_free(v)) continue;
      const std::int32_t producer = index.producer[v];
      const bool is_computed = is_expression(input, v, i);
      const auto read = [&](Sources& each, double bytes) {
        if (is_whole(v)) each.take_array();
        if (!index.is_argument(v) || !input.rules.ignores_arguments) each.add(v, bytes);
      };
      if (is_computed && !is_stored(input, sources, v)) {
        sources[i].add(sources[producer]);
        if (is_whole(v)) sources[i].take_operations(sources[producer].operations());
        const bool writes_wider =
            input.rules.matmul_results && is_of_one_matmul(index, sources[producer]);
        if (is_widening(index, i) && !writes_wider) {
          read(narrow[i], index.bytes[v]);
        } else {
          narrow[i].add(narrow[producer]);
          if (is_whole(v)) narrow[i].take_operations(narrow[producer].operations());
        }
        continue;
      }
      // A gradient reads an expensive function beside its argument: it is there anyway.
      const bool is_there =
          input.rules.ignores_stored_functions && is_computed && is_expensive(input, producer);
      for (auto* each : both) read(*each, is_there ? 0 : index.bytes[v]);
    }
    if (input.rules.most_operations > 0 || input.rules.repeated_operations > 0) {
      const bool starts_anew = in_place_of_products.holds(i);
      for (auto* each : both) {
        each->take_operations(starts_anew ? -each->operations() : operations_of(index, i));
      }
    }
    const bool takes_labour = is_labour(input, i), is_slice = share_read(index, i, 0) < 1;
    for (auto* each : both) {
      if (takes_labour) each->take_labour();
      if (is_slice) each->limit(index.bytes[index.op(i).results[0]]);
    }
    if (in(input.uses.readers, index.op(i).results[0]).size() > 1) take_narrow(i);
  }
  for (std::int32_t i = 0; i < index.num_ops; ++i) {
    if (sources[i].bytes() > 0) take_narrow(i);
  }
  return sources;
}

bool is_duplicated(const FusionInput& input, const std::vector<Sources>& sources,
                   std::int32_t op, double fusions, std::optional<double> most_reread) {
  const ProgramIndex& index = input.index;
  const std::int32_t result = index.op(op).results[0];
  if (fusions > most_copies || is_too_much(input, sources[op])) return false;
  if (is_stored_by_sum(input, sources[op], op) || is_expensive(input, op)) return false;
  if (is_stored_beside_function(input, sources[op], op)) return false;
  if (is_stored_for_batches(input, sources[op], op)) return false;
  if (is_stored_for_operations(input, sources[op], op)) return false;
  if (input.rules.casts_of_arguments && is_cast_of_argument(input, op)) {
    return index.bytes[index.op(op).operands[0]] <=
           most_to_save(fusions) * index.bytes[result];
  }
  if (input.rules.casts && is_cast_of_one(input, sources[op], op)) return true;
  if (input.rules.masks && is_mask_of_one(input, sources[op], op)) return true;
  // Nobody reads more to save memory that is read once.
  const double limit = most_reread.value_or(input.rules.most_reread);
  return sources[op].bytes() <=
         (limit > 0 ? limit : most_to_save(fusions)) * index.bytes[result];
}

}  // namespace autoshard
