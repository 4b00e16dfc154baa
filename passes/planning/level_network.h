/// The cost network of a level, and what it charges for one choice without being built.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planning/classes.h"
#include "planning/costs.h"
#include "planning/level_options.h"
#include "planning/option_store.h"
#include "solver/problem.h"

namespace autoshard::planning {

/// Builds networks, and keeps their tables from level to level. Nodes are the sharding
/// classes, then the op classes; edges are uses and flows (see `Costs`).
class NetworkBuilder {
 public:
  /// All arguments must outlive the builder.
  NetworkBuilder(const Classes& classes, const Costs& costs, OptionStore& store);

  /// The network of a level. It has the tables of this object until `take_back`, which comes
  /// before the next network is built.
  const solver::Problem& build(const LevelOptions& level);
  void take_back();

  /// What the network of `level` charges for `choice`. Adds up in the same order as the
  /// solver, so that equal plans have equal costs to the last bit.
  double cost_of(const LevelOptions& level, const std::vector<std::int32_t>& choice);

 private:
  using Domain = OptionStore::Domain;
  using OpOptions = OptionStore::OpOptions;

  void add_nodes(const LevelOptions& level);
  /// What a table is of, and how many collectives of it run as one.
  using TableKey = std::pair<std::uint64_t, std::int32_t>;
  struct HashOfKey {
    std::size_t operator()(const TableKey& key) const {
      return std::hash<std::uint64_t>{}(key.first ^ (0x9e3779b97f4a7c15ull * key.second));
    }
  };

  template <typename Cost>
  std::int32_t table(const TableKey& key, const std::vector<std::int32_t>& rows,
                     std::size_t cols, const Cost& cost);
  std::int32_t use_table(const Use& use, const LevelOptions& level);
  std::int32_t parts_table(std::int32_t sum, const LevelOptions& level);
  std::int32_t transient_table(const Use& use, const LevelOptions& level);
  std::int32_t made_table(const Use& use, const LevelOptions& level);
  std::int32_t flow_table(std::int32_t source, std::int32_t target, std::int32_t together);
  std::int32_t copy_table(std::int32_t source, std::int32_t target);
  std::int32_t slice_table(std::int32_t source, std::int32_t target);
  std::int32_t index_in_network(std::int32_t table);

  const Classes& classes_;
  const Costs& costs_;
  OptionStore& store_;
  std::vector<solver::Table> tables_;
  std::unordered_map<TableKey, std::int32_t, HashOfKey> table_index_;
  solver::Problem network_;
  /// By table: its index in the network, or -1.
  std::vector<std::int32_t> index_in_network_;
  /// By index in the network: the table.
  std::vector<std::int32_t> tables_in_network_;
};

}  // namespace autoshard::planning
