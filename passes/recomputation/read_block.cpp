#include "recomputation/read_block.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace autoshard::recomputation {
namespace {

using importer::ModuleStructure;
using importer::OpStructure;

const OpStructure& op_of(const PlannedModule& module, std::int32_t op) {
  return module.read.structure.ops[op];
}

const OpKind& kind_of(const PlannedModule& module, std::int32_t op) {
  return module.kinds[op_of(module, op).op_class];
}

const importer::Block& body_of(const PlannedModule& module, const BlockOfModule& block) {
  return module.read.structure.regions[op_of(module, block.op).first_region + block.region];
}

/// Ops of a block, without those within them.
std::vector<std::int32_t> ops_of(const PlannedModule& module, const importer::Block& block) {
  std::vector<std::int32_t> found;
  for (std::int32_t op = block.first_op; op <= block.last_op; op = op_of(module, op).end) {
    found.push_back(op);
  }
  return found;
}

std::span<const std::int32_t> operands_of(const PlannedModule& module, std::int32_t op) {
  const OpStructure& read = op_of(module, op);
  return std::span(module.read.structure.operands)
      .subspan(read.first_operand, read.num_operands);
}

/// First and last op of the program within an op of the module; none: -1.
std::pair<std::int32_t, std::int32_t> within(const PlannedModule& module, std::int32_t op) {
  std::int32_t first = -1, last = -1;
  for (std::int32_t inner = op + 1; inner < op_of(module, op).end; ++inner) {
    const std::int32_t number = module.read.op_of[inner];
    if (number < 0) continue;
    first = first < 0 ? number : std::min(first, number);
    last = std::max(last, number);
  }
  return {first, last};
}

/// Values of a block's arguments that are parameters: of a loop those that it does not change.
std::vector<std::int32_t> parameters_of(const PlannedModule& module,
                                        const std::vector<BlockOfModule>& blocks,
                                        std::size_t number) {
  const importer::Block& body = body_of(module, blocks[number]);
  std::vector<std::int32_t> found;
  if (number == 0) {
    for (const std::int32_t at : module.parameters) found.push_back(body.first_argument + at);
    return found;
  }
  const auto outside = parameters_of(module, blocks, blocks[number].outside);
  const auto given = operands_of(module, blocks[number].op);
  const auto yielded = operands_of(module, body.last_op);
  for (std::int32_t at = 0; at < body.num_arguments; ++at) {
    const std::int32_t argument = body.first_argument + at;
    const bool is_parameter =
        std::find(outside.begin(), outside.end(), given[at]) != outside.end();
    if (is_parameter && yielded[at] == argument) found.push_back(argument);
  }
  return found;
}

class Reader {
 public:
  Reader(const PlannedModule& module, const importer::Block& body)
      : module_(module),
        body_(body),
        in_module_(ops_of(module, body)),
        number_of_(module.read.structure.num_values, -1),
        is_index_(number_of_.size()),
        is_returned_(number_of_.size()) {
    for (const OpStructure& op : module.read.structure.ops) {
      if (module.kinds[op.op_class].makes_index) is_index_[op.first_result] = true;
    }
    for (const std::int32_t value : operands_of(module, body.last_op)) {
      is_returned_[value] = true;
    }
  }

  Block read(bool is_main, std::span<const std::int32_t> parameters,
             std::span<const std::int32_t> index_arguments);

 private:
  void set_points(bool is_main);
  void read_op(std::int32_t position);
  std::int32_t number(std::int32_t in_module);
  std::int32_t add(std::int32_t in_module, std::int32_t maker, Storage storage);
  Storage storage_of(std::int32_t in_program, bool is_free) const;
  void store_behind(std::int32_t position);
  void set_demanders();
  void set_ready();
  void set_parameters(std::span<const std::int32_t> parameters);

  const PlannedModule& module_;
  const importer::Block& body_;
  const std::vector<std::int32_t> in_module_;
  // By value of the module
  std::vector<std::int32_t> number_of_;  ///< in the block; -1: it is not met yet
  std::vector<bool> is_index_;           ///< is it one integer?
  std::vector<bool> is_returned_;
  Block block_;
};

Block Reader::read(bool is_main, std::span<const std::int32_t> parameters,
                   std::span<const std::int32_t> index_arguments) {
  block_.num_points = module_.numbers.num_points;
  block_.num_arguments = body_.num_arguments;
  for (const std::int32_t at : index_arguments) is_index_[body_.first_argument + at] = true;
  set_points(is_main);
  for (std::int32_t at = 0; at < body_.num_arguments; ++at) {
    add(body_.first_argument + at, -1, Storage::kept);
  }
  for (std::size_t at = 0; at < in_module_.size(); ++at) {
    read_op(static_cast<std::int32_t>(at));
  }
  if (module_.stores_behind_matmuls) {
    for (std::size_t at = 0; at < in_module_.size(); ++at) {
      store_behind(static_cast<std::int32_t>(at));
    }
  }
  set_demanders();
  set_ready();
  set_parameters(parameters);
  for (std::size_t number = 0; number < block_.values.size(); ++number) {
    block_.sources.set(static_cast<std::int32_t>(number), {});
  }
  for (std::size_t at = 0; at < in_module_.size(); ++at) {
    set_sources(block_, static_cast<std::int32_t>(at));
  }
  return std::move(block_);
}

/// Ops that the program does not have run with the one before, a loop with its last op.
void Reader::set_points(bool is_main) {
  const PlanNumbers& numbers = module_.numbers;
  std::int32_t last = 0;
  const auto is_known = [&](std::int32_t op) { return module_.read.op_of[op] >= 0; };
  const auto known = std::find_if(in_module_.begin(), in_module_.end(), is_known);
  if (!is_main && known != in_module_.end()) last = numbers.points[module_.read.op_of[*known]];
  for (const std::int32_t op : in_module_) {
    Op made{.in_module = op, .in_program = module_.read.op_of[op]};
    if (made.in_program >= 0) {
      last = numbers.points[made.in_program];
      made.seconds = numbers.seconds[made.in_program];
      made.sends = numbers.sends[made.in_program];
    } else if (kind_of(module_, op).runs_regions) {
      std::int32_t inside = -1;
      for (std::int32_t inner = op + 1; inner < op_of(module_, op).end; ++inner) {
        const std::int32_t number = module_.read.op_of[inner];
        if (number >= 0) inside = std::max(inside, numbers.points[number]);
      }
      if (inside >= 0) last = inside;
    }
    made.point = last;
    block_.ops.push_back(made);
  }
}

void Reader::read_op(std::int32_t position) {
  const std::int32_t op = in_module_[position];
  const OpStructure& structure = op_of(module_, op);
  const OpKind& kind = kind_of(module_, op);
  std::vector<std::int32_t> operands, results;
  for (const std::int32_t operand : operands_of(module_, op)) {
    operands.push_back(number(operand));
  }
  for (std::int32_t inner = op + 1; inner < structure.end; ++inner) {
    for (const std::int32_t operand : operands_of(module_, inner)) {
      if (number_of_[operand] >= 0) operands.push_back(number_of_[operand]);
    }
  }
  for (const std::int32_t operand : operands) {
    auto& readers = block_.readers[operand];
    if (readers.empty() || readers.back() != position) readers.push_back(position);
  }
  for (std::int32_t at = 0; at < structure.num_results; ++at) {
    const std::int32_t result = structure.first_result + at;
    const bool is_kept = kind.is_held || is_returned_[result];
    results.push_back(add(
        result, position,
        is_kept ? Storage::kept : storage_of(module_.read.value_of[result], kind.is_free)));
  }
  block_.operands.set(position, operands);
  block_.results.set(position, results);
}

/// The number of an operand; one that is made outside of the block is kept there.
std::int32_t Reader::number(std::int32_t in_module) {
  const std::int32_t known = number_of_[in_module];
  return known >= 0 ? known : add(in_module, -1, Storage::kept);
}

std::int32_t Reader::add(std::int32_t in_module, std::int32_t maker, Storage storage) {
  const std::int32_t in_program = module_.read.value_of[in_module];
  Value value{.maker = maker, .storage = storage};
  value.in_module = in_module;
  value.in_program = in_program;
  if (in_program != no_value) {
    value.is_counted = true;
    value.end = module_.numbers.live[in_program].last;
    value.bytes = module_.numbers.bytes[in_program];
  }
  number_of_[in_module] = static_cast<std::int32_t>(block_.values.size());
  block_.values.push_back(value);
  block_.readers.emplace_back();
  return number_of_[in_module];
}

/// Where a value of the program is that may be computed again.
Storage Reader::storage_of(std::int32_t in_program, bool is_free) const {
  if (is_free) return Storage::free;
  if (in_program == no_value) return Storage::kept;
  if (module_.program.values[in_program].is_free) return Storage::free;
  return module_.numbers.live[in_program].is_empty() ? Storage::fused : Storage::stored;
}

/// What is stored of a matmul is what the compiler computes of it before it is written: its
/// bias and the like, as far as nobody reads what is in between. A copy that read the bare
/// product would have it stored as well.
void Reader::store_behind(std::int32_t position) {
  if (!kind_of(module_, in_module_[position]).is_matmul || block_.ops[position].sends) return;
  std::int32_t at = block_.results[position][0];
  while (block_.values[at].storage == Storage::stored && block_.readers[at].size() == 1) {
    Value& value = block_.values[at];
    const std::int32_t reader = block_.readers[at].front();
    if (!kind_of(module_, in_module_[reader]).is_elementwise) return;
    const std::int32_t next = block_.results[reader][0];
    Value& behind = block_.values[next];
    if (behind.storage != Storage::fused || behind.bytes != value.bytes) return;
    value.storage = Storage::fused;
    behind.storage = Storage::stored;
    std::swap(value.end, behind.end);
    behind.matmul = position;
    block_.ops[reader].point = block_.ops[value.maker].point;
    at = next;
  }
}

void Reader::set_demanders() {
  std::vector<std::vector<std::int32_t>> found(block_.values.size());
  for (std::size_t at = block_.values.size(); at-- > 0;) {
    std::vector<std::int32_t>& positions = found[at];
    positions = block_.readers[at];
    for (const std::int32_t reader : block_.readers[at]) {
      for (const std::int32_t result : block_.results[reader]) {
        if (block_.values[result].storage != Storage::fused) continue;
        positions.insert(positions.end(), found[result].begin(), found[result].end());
      }
    }
    std::sort(positions.begin(), positions.end());
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  }
  for (std::size_t at = 0; at < found.size(); ++at) {
    block_.demanders.set(static_cast<std::int32_t>(at), found[at]);
  }
}

void Reader::set_ready() {
  for (std::size_t at = 0; at < block_.ops.size(); ++at) {
    Op& op = block_.ops[at];
    for (const std::int32_t number : block_.operands[static_cast<std::int32_t>(at)]) {
      const Value& value = block_.values[number];
      if (value.maker < 0 || value.storage == Storage::free) continue;
      const Op& maker = block_.ops[value.maker];
      op.ready =
          std::max(op.ready, value.storage == Storage::fused ? maker.ready : maker.point);
    }
  }
}

/// What depends on parameters alone, and what is sent of it.
void Reader::set_parameters(std::span<const std::int32_t> parameters) {
  for (const std::int32_t value : parameters) {
    block_.values[number_of_[value]].is_parameter = true;
  }
  const auto& sent = module_.numbers.sent_operands;
  for (std::size_t at = 0; at < block_.ops.size(); ++at) {
    const auto position = static_cast<std::int32_t>(at);
    bool is_made = false, is_parameter = true;
    for (const std::int32_t number : block_.operands[position]) {
      const Value& value = block_.values[number];
      if (value.storage == Storage::free || is_index_[value.in_module]) continue;
      is_made = true;
      is_parameter &= value.is_parameter;
    }
    for (const std::int32_t number : block_.results[position]) {
      block_.values[number].is_parameter |= is_made && is_parameter;
    }
    Op& op = block_.ops[at];
    if (op.in_program < 0) continue;
    const auto operands = block_.operands[position];
    auto row = std::lower_bound(sent.begin(), sent.end(), std::pair(op.in_program, 0));
    for (; row != sent.end() && row->first == op.in_program; ++row) {
      if (row->second >= static_cast<std::int32_t>(operands.size())) continue;
      op.gathers |= block_.values[operands[row->second]].is_parameter;
    }
  }
}

}  // namespace

std::vector<BlockOfModule> blocks_of(const PlannedModule& module) {
  std::vector<BlockOfModule> found = {{module.main_op, 0, 0}};
  for (std::size_t at = 0; at < found.size(); ++at) {
    for (const std::int32_t op : ops_of(module, body_of(module, found[at]))) {
      if (kind_of(module, op).is_while) {
        found.push_back({op, 1, static_cast<std::int32_t>(at)});
      }
    }
  }
  return found;
}

Block read_block(const PlannedModule& module, const std::vector<BlockOfModule>& blocks,
                 std::size_t number, const std::vector<std::int32_t>& index_arguments) {
  const auto parameters = parameters_of(module, blocks, number);
  return Reader(module, body_of(module, blocks[number]))
      .read(number == 0, parameters, index_arguments);
}

std::vector<std::int32_t> ops_at(const PlannedModule& module, const Block& block,
                                 bool is_main) {
  auto behind = static_cast<std::int32_t>(module.program.ops.size());
  if (!is_main) {
    std::int32_t last = -1;
    for (const Op& op : block.ops) {
      last = std::max(last, op.in_program);
      if (kind_of(module, op.in_module).runs_regions) {
        last = std::max(last, within(module, op.in_module).second);
      }
    }
    behind = last < 0 ? behind : last + 1;
  }
  std::vector<std::int32_t> found(block.ops.size() + 1, behind);
  for (std::size_t at = block.ops.size(); at-- > 0;) {
    const Op& op = block.ops[at];
    std::int32_t number = op.in_program;
    if (number < 0 && kind_of(module, op.in_module).runs_regions) {
      number = within(module, op.in_module).first;
    }
    found[at] = number >= 0 ? number : found[at + 1];
  }
  return found;
}

}  // namespace autoshard::recomputation
