#include "solver/memory.h"

#include <algorithm>

namespace autoshard::solver {

std::vector<double> MemoryModel::profile(const std::vector<int>& choice) const {
  std::vector<double> result(room.size() + 1, 0.0);
  for (std::size_t i = 0; i + 1 < piece_offset.size(); ++i) {
    for (int p = piece_offset[i]; p < piece_offset[i + 1]; ++p) {
      const double taken = bytes[pieces[p].bytes + choice[i]];
      result[pieces[p].first] += taken;
      result[pieces[p].last] -= taken;
    }
  }
  double sum = 0;
  for (double& value : result) value = sum += value;
  result.pop_back();
  return result;
}

void MemoryModel::accumulate(const std::vector<double>& price, std::vector<double>& sums) {
  sums.resize(price.size() + 1);
  double sum = 0;
  for (std::size_t t = 0; t < price.size(); ++t) {
    sums[t] = sum;
    sum += price[t];
  }
  sums[price.size()] = sum;
}

void MemoryModel::add_priced(int node, int options, const std::vector<double>& sums,
                             double* out) const {
  for (int p = piece_offset[node]; p < piece_offset[node + 1]; ++p) {
    const double price = sums[pieces[p].last] - sums[pieces[p].first];
    if (price == 0) continue;
    const double* taken = bytes.data() + pieces[p].bytes;
    for (int s = 0; s < options; ++s) out[s] += price * taken[s];
  }
}

MemoryModel memory_of(const Network& network, const Reduction& reduction) {
  MemoryModel model;
  model.room.assign(reduction.room.begin(), reduction.room.end());
  model.piece_offset.push_back(0);
  std::vector<std::vector<std::int32_t>> live(model.room.size());
  for (int i = 0; i < network.nodes(); ++i) {
    for (const Reduction::Piece& piece : reduction.nodes[network.source[i]].memory) {
      model.pieces.push_back(
          {piece.first, piece.last, static_cast<std::int64_t>(model.bytes.size())});
      model.bytes.insert(model.bytes.end(), piece.bytes.begin(), piece.bytes.end());
      for (int t = piece.first; t < piece.last; ++t) {
        if (live[t].empty() || live[t].back() != i) live[t].push_back(i);
      }
    }
    model.piece_offset.push_back(static_cast<std::int32_t>(model.pieces.size()));
  }
  model.live_offset.push_back(0);
  for (const std::vector<std::int32_t>& nodes : live) {
    model.live.insert(model.live.end(), nodes.begin(), nodes.end());
    model.live_offset.push_back(static_cast<std::int32_t>(model.live.size()));
  }
  return model;
}

}  // namespace autoshard::solver
