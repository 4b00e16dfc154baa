#include "planning/dependences.h"

#include <algorithm>
#include <cstddef>

namespace autoshard::planning {
namespace {

/// Calls `visit(source, target)` for everything that flows inside of one step.
template <typename Visit>
void each_join(const Program& program, const Visit& visit) {
  std::vector<bool> is_argument(program.values.size(), false);
  for (const Argument& argument : program.arguments) {
    if (argument.value != no_value) is_argument[argument.value] = true;
  }
  for (const Join& join : program.joins) {
    if (!is_argument[join.target]) visit(join.source, join.target);
  }
}

}  // namespace

std::vector<bool> leading_to_matmuls(const Program& program,
                                     const std::vector<bool>& is_left_out) {
  std::vector<bool> leads(program.values.size(), false);
  for (bool changes = true; changes;) {
    changes = false;
    const auto mark = [&](std::int32_t value) {
      if (value == no_value || leads[value]) return;
      leads[value] = changes = true;
    };
    each_join(program, [&](std::int32_t source, std::int32_t target) {
      if (leads[target]) mark(source);
    });
    for (std::size_t i = program.ops.size(); i-- > 0;) {
      const Op& op = program.ops[i];
      const Work work = program.rules[op.rule].work;
      bool does =
          (work == Work::matmul && !is_left_out[i]) || work == Work::other || is_kernel(work);
      does = does && !op.is_unread;
      for (std::int32_t v : op.results) does = does || (v != no_value && leads[v]);
      if (!does) continue;
      for (std::int32_t v : op.operands) mark(v);
    }
  }
  return leads;
}

std::vector<bool> made_of_arguments(const Program& program) {
  std::vector<bool> is_late(program.values.size(), false);
  for (bool changes = true; changes;) {
    changes = false;
    const auto mark = [&](std::int32_t value) {
      if (value == no_value || is_late[value]) return;
      is_late[value] = changes = true;
    };
    for (const Op& op : program.ops) {
      const Work work = program.rules[op.rule].work;
      bool does = work == Work::matmul || work == Work::reduce || work == Work::other ||
                  is_kernel(work);
      for (std::int32_t v : op.operands) does = does || (v != no_value && is_late[v]);
      if (!does) continue;
      for (std::int32_t v : op.results) mark(v);
    }
    each_join(program, [&](std::int32_t source, std::int32_t target) {
      if (is_late[source]) mark(target);
    });
  }
  is_late.flip();
  return is_late;
}

std::vector<std::int32_t> there_after(const Program& program) {
  std::vector<std::int32_t> after(program.values.size(), -1);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const Work work = program.rules[op.rule].work;
    auto last = static_cast<std::int32_t>(i);
    if (work == Work::elementwise || work == Work::view) {
      last = op.after;
      for (std::int32_t v : op.operands) {
        if (v != no_value) last = std::max(last, after[v]);
      }
    }
    for (std::int32_t v : op.results) {
      if (v != no_value) after[v] = last;
    }
  }
  return after;
}

std::vector<std::int32_t> waited_for(const Program& program) {
  std::vector<std::int32_t> until(program.ops.size(), -1), of_value(program.values.size(), -1);
  const auto earlier = [](std::int32_t a, std::int32_t b) {
    return a < 0 || b < 0 ? std::max(a, b) : std::min(a, b);
  };
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    until[i] = op.until;
    for (std::int32_t v : op.results) {
      if (v != no_value) until[i] = earlier(until[i], of_value[v]);
    }
    for (std::int32_t v : op.operands) {
      if (v != no_value) of_value[v] = earlier(of_value[v], until[i]);
    }
  }
  return until;
}

bool is_batched(const Rule& rule) {
  const auto has = [](const RuleTensor& tensor, std::int32_t factor) {
    return std::any_of(tensor.dims.begin(), tensor.dims.end(), [&](const auto& factors) {
      return std::find(factors.begin(), factors.end(), factor) != factors.end();
    });
  };
  if (rule.work != Work::matmul || rule.operands.size() < 2 || rule.results.empty())
    return false;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const auto factor = static_cast<std::int32_t>(f);
    if (has(rule.operands[0], factor) && has(rule.operands[1], factor) &&
        has(rule.results[0], factor)) {
      return true;
    }
  }
  return false;
}

}  // namespace autoshard::planning
