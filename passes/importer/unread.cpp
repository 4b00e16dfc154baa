#include "importer/unread.h"

#include <algorithm>
#include <cstddef>

namespace autoshard::importer {
namespace {

class Readers {
 public:
  explicit Readers(const Program& program)
      : program_(program), is_read_(program.values.size(), false) {
    sources_.resize(program.values.size());
    for (const Join& join : program.joins) sources_[join.target].push_back(join.source);
    for (const std::int32_t value : program.results) read(value);
    for (const Argument& argument : program.arguments) read(argument.value);
    for (const Loop& loop : program.loops) {
      for (const std::int32_t value : loop.carried) read(value);
      for (const std::int32_t value : loop.yielded) read(value);
    }
  }

  /// A value is read, and with it what flows into it.
  void read(std::int32_t value) {
    if (value == no_value || is_read_[value]) return;
    is_read_[value] = true;
    for (const std::int32_t source : sources_[value]) read(source);
  }

  bool is_read(std::int32_t value) const { return value != no_value && is_read_[value]; }

  bool is_needed(const Op& op) const {
    const Work work = program_.rules[op.rule].work;
    return work == Work::other || is_kernel(work) ||
           std::any_of(op.results.begin(), op.results.end(),
                       [&](std::int32_t value) { return is_read(value); });
  }

 private:
  const Program& program_;
  std::vector<bool> is_read_;
  /// By value: what flows into it.
  std::vector<std::vector<std::int32_t>> sources_;
};

}  // namespace

void leave_out_unread(Program& program, const std::vector<bool>& makes_scalars,
                      const std::vector<std::int32_t>& read_elsewhere) {
  Readers readers(program);
  for (const std::int32_t value : read_elsewhere) readers.read(value);
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    Op& op = program.ops[i];
    if (makes_scalars[i] || readers.is_needed(op)) {
      for (const std::int32_t value : op.operands) readers.read(value);
    } else {
      op.is_unread = true;
      op.trips = 0;
    }
  }
  std::erase_if(program.joins,
                [&](const Join& join) { return !readers.is_read(join.target); });
}

}  // namespace autoshard::importer
