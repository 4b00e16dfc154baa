/// Partial sums of a plan that only updates read, and what else is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "memory/loop_nest.h"
#include "planning/assignment.h"
#include "planning/sum_schedule.h"

namespace autoshard::planning {

/// What a class of ops sends.
struct Sent {
  /// What runs before it and behind it, once.
  double seconds = 0;
  /// Some of it is gathered for its operands.
  bool is_gathered = false;
  /// By result, if the compiler may run its sum late: the steps of that.
  std::vector<std::vector<Step>> sums;
};

/// A plan's sums that may run late, and what is known of the ops around them.
struct GradientSums {
  /// In the order of their program points.
  std::vector<DelayedSum> sums;
  /// Matmuls for gradients that no device sends, which the compiler may run late: when they
  /// run is all that is known of them.
  std::vector<DelayedSum> unsent;
  /// By class of ops.
  std::vector<Sent> sent;
  /// By op: seconds of copies that are made before it, for itself and for others.
  std::vector<double> copied;
  /// By value: `leading_to_matmuls`. By op: it is one of `sums`, or of `unsent` with
  /// `Schedule::late_local_gradients`: it does not run in order.
  std::vector<bool> leads_on, is_delayed;
  LoopNest loops;
  /// Loops, and `no_loop`, in which something is sent, if the compiler schedules these from
  /// their ends.
  std::set<std::int32_t> loops_that_send;
};

/// Finds them. Empty `sums` if the compiler delays none.
///
/// Example: data parallel, w -= dot(x, dy): the matmul makes partial sums, and nothing but the
/// update of w is computed from their sum.
GradientSums gradient_sums_of(const ProgramOnMesh& on, const Assignment& assignment);

/// What one run of an op takes, in seconds.
double seconds_of_op(const ProgramOnMesh& on, const Assignment& assignment, std::size_t op);

/// Whether an op is a matmul.
bool is_matmul(const Program& program, std::size_t op);

}  // namespace autoshard::planning
