#include "importer/bytecode.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "model/hash_index.h"

namespace autoshard::importer {
namespace {

constexpr std::uint64_t supported_version = 6;
constexpr int ir_section = 4;

/// Bits of the byte that says what is written of an op.
enum Parts : std::uint8_t {
  has_attributes = 1,
  has_results = 2,
  has_operands = 4,
  has_successors = 8,
  has_regions = 16,
  has_use_lists = 32,
  has_properties = 64,
};

/// Reads [position, end) of the bytes of a whole module.
class Reader {
 public:
  Reader(std::string_view bytes, std::size_t position, std::size_t end)
      : bytes_(bytes), position_(position), end_(end) {}

  bool at_end() const { return position_ == end_; }

  std::uint8_t byte() {
    if (position_ >= end_) throw InvalidBytecode("it ends early");
    return static_cast<std::uint8_t>(bytes_[position_++]);
  }

  /// The zeros below the lowest bit that is set count the bytes that follow; little endian.
  std::uint64_t number() {
    const std::uint8_t first = byte();
    if (first & 1) return first >> 1;
    int more = 8;
    if (first != 0) {
      for (more = 1; !(first >> more & 1);) ++more;
    }
    std::uint64_t value = 0;
    for (int k = 0; k < more; ++k) value |= std::uint64_t{byte()} << (8 * k);
    return first == 0 ? value : value << (7 - more) | first >> (more + 1);
  }

  /// A number of things of which each takes a byte at least.
  std::int32_t count() { return checked(number()); }

  /// A number, and a flag in its lowest bit.
  std::uint64_t flagged_number(bool& flag) {
    const std::uint64_t value = number();
    flag = value & 1;
    return value >> 1;
  }

  /// A count, and a flag in its lowest bit.
  std::int32_t flagged_count(bool& flag) { return checked(flagged_number(flag)); }

  /// What is in the next section, and its id.
  Reader section(int& id) {
    const std::uint8_t head = byte();
    id = head & 0x7f;
    const std::uint64_t length = number();
    if (head & 0x80) {
      const std::uint64_t alignment = number();
      if (alignment == 0) throw InvalidBytecode("a section is aligned to 0");
      while (position_ % alignment) byte();
    }
    if (length > end_ - position_) throw InvalidBytecode("a section is cut off");
    const std::size_t start = position_;
    position_ += length;
    return {bytes_, start, position_};
  }

 private:
  std::int32_t checked(std::uint64_t value) const {
    if (value > end_ - position_) throw InvalidBytecode("it ends early");
    return static_cast<std::int32_t>(value);
  }

  std::string_view bytes_;
  std::size_t position_, end_;
};

class ModuleReader {
 public:
  explicit ModuleReader(std::string_view bytes) {
    Reader reader = sections_of(bytes);
    while (!reader.at_end()) {
      int id = 0;
      Reader section = reader.section(id);
      if (id != ir_section) continue;
      std::vector<std::int32_t> scope;
      Block block;
      read_block(section, scope, 0, block);
    }
    if (module_.ops.empty()) throw InvalidBytecode("it has no ops");
    find_classes();
  }

  ModuleStructure take() { return std::move(module_); }

 private:
  /// What makes a class, but for the types of operands, which may be known later.
  struct Head {
    std::uint64_t name, attributes, properties;
  };

  static Reader sections_of(std::string_view bytes) {
    constexpr std::string_view magic = "ML\xefR";
    if (!bytes.starts_with(magic)) throw InvalidBytecode("it does not start as bytecode does");
    Reader reader(bytes, magic.size(), bytes.size());
    const std::uint64_t version = reader.number();
    if (version != supported_version) {
      throw InvalidBytecode("version " + std::to_string(version) + " of the format, not " +
                            std::to_string(supported_version));
    }
    while (reader.byte() != 0) {  // the name of the producer
    }
    return reader;
  }

  /// `scope`: the values that ops may read, by their numbers in the bytecode; those of a
  /// region are known from its start on. `next`: the number of the block's first value there.
  std::size_t read_block(Reader& reader, std::vector<std::int32_t>& scope, std::size_t next,
                         Block& block) {
    bool has_arguments = false;
    const std::int32_t num_ops = reader.flagged_count(has_arguments);
    if (has_arguments) {
      block.num_arguments = reader.count();
      for (std::int32_t k = 0; k < block.num_arguments; ++k) {
        bool has_location = false;
        const std::int32_t value = define(scope, next++, reader.flagged_number(has_location));
        if (k == 0) block.first_argument = value;
        if (has_location) reader.number();
      }
      if (reader.byte() != 0) skip_use_lists(reader, block.num_arguments);
    }
    for (std::int32_t k = 0; k < num_ops; ++k) {
      block.last_op = static_cast<std::int32_t>(module_.ops.size());
      if (k == 0) block.first_op = block.last_op;
      next = read_op(reader, scope, next);
    }
    return next;
  }

  std::size_t read_op(Reader& reader, std::vector<std::int32_t>& scope, std::size_t next) {
    const std::size_t number = module_.ops.size();
    module_.ops.push_back({});
    OpStructure op{};
    Head head{reader.number(), 0, 0};
    const std::uint8_t parts = reader.byte();
    op.location = static_cast<std::int32_t>(reader.number());
    if (parts & has_attributes) head.attributes = reader.number() + 1;
    if (parts & has_properties) head.properties = reader.number() + 1;
    if (parts & has_results) {
      op.num_results = reader.count();
      for (std::int32_t k = 0; k < op.num_results; ++k) {
        const std::int32_t value = define(scope, next++, reader.number());
        if (k == 0) op.first_result = value;
      }
    }
    op.first_operand = static_cast<std::int32_t>(module_.operands.size());
    if (parts & has_operands) {
      op.num_operands = reader.count();
      for (std::int32_t k = 0; k < op.num_operands; ++k) {
        const std::uint64_t value = reader.number();
        if (value >= scope.size()) throw InvalidBytecode("an op reads an unknown value");
        module_.operands.push_back(scope[value]);
      }
    }
    if (parts & has_successors) {
      for (std::int32_t k = reader.count(); k > 0; --k) reader.number();
    }
    if (parts & has_use_lists) skip_use_lists(reader, op.num_results);
    op.first_region = static_cast<std::int32_t>(module_.regions.size());
    if (parts & has_regions) {
      bool is_isolated = false;
      op.num_regions = reader.flagged_count(is_isolated);
      module_.regions.resize(module_.regions.size() + op.num_regions);
      if (is_isolated) {
        int id = 0;
        Reader section = reader.section(id);
        if (id != ir_section) throw InvalidBytecode("regions are not where they should be");
        std::vector<std::int32_t> inner;
        read_regions(section, inner, op);
      } else {
        read_regions(reader, scope, op);
      }
    }
    op.end = static_cast<std::int32_t>(module_.ops.size());
    module_.ops[number] = op;
    heads_.resize(module_.ops.size());
    heads_[number] = head;
    return next;
  }

  void read_regions(Reader& reader, std::vector<std::int32_t>& scope, const OpStructure& op) {
    for (std::int32_t region = op.first_region; region < op.first_region + op.num_regions;
         ++region) {
      const std::int32_t num_blocks = reader.count();
      if (num_blocks == 0) continue;
      const std::size_t before = scope.size();
      const std::int32_t num_values = reader.count();
      for (std::int32_t k = 0; k < num_values; ++k) scope.push_back(module_.num_values++);
      types_.resize(module_.num_values);
      std::size_t next = before;
      for (std::int32_t k = 0; k < num_blocks; ++k) {
        Block block;
        next = read_block(reader, scope, next, block);
        if (k == 0) module_.regions[region] = block;
      }
      scope.resize(before);
    }
  }

  std::int32_t define(const std::vector<std::int32_t>& scope, std::size_t next,
                      std::uint64_t type) {
    if (next >= scope.size()) throw InvalidBytecode("a region has more values than it says");
    types_[scope[next]] = type;
    return scope[next];
  }

  /// In which order values have their readers, where that is not the usual one.
  static void skip_use_lists(Reader& reader, std::int32_t num_values) {
    const std::int32_t num_lists = num_values > 1 ? reader.count() : 1;
    for (std::int32_t list = 0; list < num_lists; ++list) {
      if (num_values > 1) reader.number();
      bool are_pairs = false;
      for (std::int32_t k = reader.flagged_count(are_pairs); k > 0; --k) reader.number();
    }
  }

  void find_classes() {
    HashIndex index(1024);
    std::vector<std::uint64_t> keys, key;
    std::vector<std::size_t> key_offset{0};
    for (std::size_t number = 0; number < module_.ops.size(); ++number) {
      OpStructure& op = module_.ops[number];
      const Head& head = heads_[number];
      key.assign({head.name, head.attributes, head.properties,
                  static_cast<std::uint64_t>(op.num_results)});
      for (std::int32_t k = 0; k < op.num_results; ++k) {
        key.push_back(types_[op.first_result + k]);
      }
      for (std::int32_t k = 0; k < op.num_operands; ++k) {
        key.push_back(types_[module_.operands[op.first_operand + k]]);
      }
      for (std::int32_t k = 0; k < op.num_regions; ++k) {
        add_names(module_.regions[op.first_region + k], key);
      }
      const auto is_wanted = [&](int at) {
        return std::equal(key.begin(), key.end(), keys.begin() + key_offset[at],
                          keys.begin() + key_offset[at + 1]);
      };
      op.op_class = index.find_or_insert(hash_of(key), is_wanted, [&] {
        keys.insert(keys.end(), key.begin(), key.end());
        key_offset.push_back(keys.size());
        return module_.num_classes++;
      });
    }
  }

  /// What a small region does: a reducer that adds is another op than one that compares.
  void add_names(const Block& block, std::vector<std::uint64_t>& key) const {
    const std::int32_t num_ops = block.last_op - block.first_op + 1;
    key.push_back(static_cast<std::uint64_t>(num_ops));
    if (num_ops > most_ops_of_a_reducer) return;
    for (std::int32_t op = block.first_op; op <= block.last_op; ++op) {
      key.push_back(heads_[op].name);
    }
  }

  static constexpr std::int32_t most_ops_of_a_reducer = 8;
  ModuleStructure module_;
  std::vector<Head> heads_;
  /// Number of every value's type.
  std::vector<std::uint64_t> types_;
};

}  // namespace

ModuleStructure read_bytecode(std::string_view bytes) { return ModuleReader(bytes).take(); }

}  // namespace autoshard::importer
