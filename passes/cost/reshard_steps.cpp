#include "cost/reshard_steps.h"

#include <algorithm>
#include <utility>

namespace autoshard {

std::size_t common_prefix(const AxisList& a, const AxisList& b) {
  std::size_t length = 0;
  while (length < std::min(a.size(), b.size()) && a[length] == b[length]) ++length;
  return length;
}

void sort_gathers(std::vector<Step>& steps) {
  const auto is_gather = [](const Step& step) {
    return step.kind == CollectiveKind::all_gather;
  };
  for (auto first = steps.begin(); first != steps.end();) {
    first = std::find_if(first, steps.end(), is_gather);
    const auto last = std::find_if_not(first, steps.end(), is_gather);
    if (last - first < 2) {
      first = last;
      continue;
    }
    double held = first->held_bytes;
    std::stable_sort(first, last, [](const Step& one, const Step& other) {
      return std::pair(one.participants, __builtin_ctz(one.axes)) <
             std::pair(other.participants, __builtin_ctz(other.axes));
    });
    for (; first != last; ++first) {
      first->held_bytes = held;
      held *= static_cast<double>(first->participants);
    }
  }
}

}  // namespace autoshard
