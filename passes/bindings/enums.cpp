#include "bindings/bindings.h"
#include "cost/collectives.h"
#include "cost/reshard_query.h"
#include "cost/symbolic.h"
#include "model/cluster.h"
#include "model/program.h"
#include "planning/plan.h"
#include "solver/problem.h"

namespace nb = nanobind;

namespace autoshard {

/// Enums whose members are written in files and reports have that text as their value; where
/// Python needs the number they are integers.
void bind_enums(nb::module_& module) {
  using Place = planning::PlannedReshard::Place;
  using solver::StopReason;

  module.attr("NO_VALUE") = no_value;
  module.attr("NO_TYPE") = no_type;
  module.attr("MAX_MESH_AXES") = max_mesh_axes;
  module.attr("MAX_PARTS") = max_parts;
  module.attr("MAX_MOVING_AXES") = max_moving;
  module.attr("REPLICATE_BELOW") = replicate_below;

  nb::enum_<LinkKind>(module, "LinkKind", nb::is_str(),
                      "How devices along a dim reach each other.")
      .str_value("RING", LinkKind::ring, "ring", "Neighbours, and the ends are joined.")
      .str_value("LINE", LinkKind::line, "line", "Neighbours.")
      .str_value("SWITCHED", LinkKind::switched, "switched",
                 "Each reaches all others of its group at full rate: NVLink, HCCS.")
      .str_value("NETWORK", LinkKind::network, "network",
                 "Between nodes or slices, each device with its share of the host's network "
                 "cards.");

  nb::enum_<CollectiveKind>(module, "CollectiveKind", nb::is_str(),
                            "What the devices of a group do with each other.")
      .str_value("ALL_GATHER", CollectiveKind::all_gather, "all-gather")
      .str_value("REDUCE_SCATTER", CollectiveKind::reduce_scatter, "reduce-scatter")
      .str_value("ALL_REDUCE", CollectiveKind::all_reduce, "all-reduce")
      .str_value("ALL_TO_ALL", CollectiveKind::all_to_all, "all-to-all")
      .str_value("PERMUTE", CollectiveKind::permute, "collective-permute");

  nb::enum_<FactorKind>(module, "FactorKind",
                        "What cutting a factor means for the op that has it.")
      .value("PASS_THROUGH", FactorKind::pass_through,
             "Operands and results are cut alike; nothing to communicate.")
      .value("REDUCTION", FactorKind::reduction,
             "Results become partial sums over the axes that cut it.")
      .value("NEED_REPLICATION", FactorKind::need_replication, "It may not be cut.")
      .value(
          "PERMUTATION", FactorKind::permutation,
          "Cut as one that passes through, but neighbours exchange a part of their blocks.");

  nb::enum_<Work>(module, "Work",
                  "What an op does with its elements, and so which formula gives its time.")
      .value("ELEMENTWISE", Work::elementwise,
             "One result element from one element of each operand; fuses.")
      .value("VIEW", Work::view, "Moves elements, and fuses.")
      .value("REDUCE", Work::reduce, "Takes fused operands; its result is stored.")
      .value("MATMUL", Work::matmul, "Dot and convolution, on the matrix units.")
      .value("INDEXED", Work::indexed, "Moves what it touches: gather, scatter, slices.")
      .value("OTHER", Work::other, "Reads and writes memory once.")
      .value("KERNEL", Work::kernel, "As other, with operations on the matrix units.")
      .value("ATTENTION", Work::attention, "As kernel, of a library.")
      .value("ATTENTION_GRADIENT", Work::attention_gradient, "As attention, backwards.");

  nb::enum_<Arithmetic>(module, "Arithmetic", nb::is_arithmetic(),
                        "Which peak rate of a chip an op's arithmetic runs at.")
      .value("F64", Arithmetic::f64)
      .value("F32", Arithmetic::f32)
      .value("F16", Arithmetic::f16)
      .value("F8", Arithmetic::f8)
      .value("I8", Arithmetic::i8);

  nb::enum_<Expense>(module, "Expense", nb::is_arithmetic(),
                     "What an element of an elementwise op's result costs to compute.")
      .value("CHEAP", Expense::cheap, "At most an ordinary instruction or two.")
      .value("EXPONENTIAL", Expense::exponential, "An exponential or a logarithm.")
      .value("POLYNOMIAL", Expense::polynomial, "A long polynomial: tanh, sine, powers.")
      .value("POLYNOMIALS", Expense::polynomials, "Several of them: erfc.")
      .value("NEVER", Expense::never, "As a limit: nothing is so expensive.");

  nb::enum_<Function>(module, "Function",
                      "A function that takes several operations; see passes/model/program.h.")
      .value("NONE", Function::none)
      .value("DIVISION", Function::division)
      .value("REMAINDER", Function::remainder)
      .value("ROOT", Function::root)
      .value("EXPONENTIAL", Function::exponential)
      .value("LOGARITHM", Function::logarithm)
      .value("LOGISTIC", Function::logistic)
      .value("TANH", Function::tanh)
      .value("ERROR", Function::error)
      .value("ERROR_COMPLEMENT", Function::error_complement)
      .value("SINE", Function::sine)
      .value("POWER", Function::power)
      .value("OTHER", Function::other);

  nb::enum_<Place>(module, "Place", "Where a reshard of a plan is.")
      .value("OPERAND", Place::operand)
      .value("RESULT", Place::result)
      .value("JOIN", Place::join)
      .value("HALO", Place::halo);

  nb::enum_<MatMulCut>(
      module, "MatMulCut", nb::is_str(),
      "What a level can cut of a matmul, in the order in which ties are decided.")
      .str_value("BATCH", MatMulCut::batch, "Batch")
      .str_value("EXPERT", MatMulCut::expert, "Expert")
      .str_value("I", MatMulCut::i, "I")
      .str_value("J", MatMulCut::j, "J")
      .str_value("K", MatMulCut::k, "K")
      .str_value("NONE", MatMulCut::none, "none");

  nb::enum_<StopReason>(module, "StopReason", nb::is_str(),
                        "Why a search of the solver ended.")
      .str_value("OPTIMAL", StopReason::kOptimal, to_string(StopReason::kOptimal),
                 "The bound met the cost: nothing better exists.")
      .str_value("CONVERGED", StopReason::kConverged, to_string(StopReason::kConverged),
                 "Without time limit: the search stopped improving.")
      .str_value("TIME_LIMIT", StopReason::kTimeLimit, to_string(StopReason::kTimeLimit))
      .str_value("ITERATION_LIMIT", StopReason::kIterationLimit,
                 to_string(StopReason::kIterationLimit))
      .str_value("INTERRUPTED", StopReason::kInterrupted, to_string(StopReason::kInterrupted))
      .str_value("INFEASIBLE", StopReason::kInfeasible, to_string(StopReason::kInfeasible),
                 "Proven: no choice is allowed, or none fits the memory.");
}

}  // namespace autoshard
