#include "pipeline/min_cut.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

namespace autoshard::pipeline {
namespace {

constexpr double not_cut = std::numeric_limits<double>::infinity();

/// A flow network, solved by Dinic's algorithm: shortest augmenting paths, all of one length
/// at a time.
class Flow {
 public:
  static constexpr std::int32_t source = 0, sink = 1;

  std::int32_t add_node() { return count_++; }
  void add(std::int32_t from, std::int32_t to, double capacity, double back = 0) {
    if (from != to) arcs_.push_back({from, to, capacity, back});
  }
  /// By node: whether it reaches the sink no more when nothing more flows.
  std::vector<char> sides();

 private:
  struct Arc {
    std::int32_t from, to;
    double capacity, back;
  };

  void build();
  bool layer();
  void push();

  std::int32_t count_ = 2;
  std::vector<Arc> arcs_;
  std::vector<std::int32_t> first_, head_, twin_, depth_, next_;
  std::vector<double> left_;
};

void Flow::build() {
  first_.assign(count_ + 1, 0);
  for (const Arc& arc : arcs_) ++first_[arc.from + 1], ++first_[arc.to + 1];
  for (std::int32_t n = 0; n < count_; ++n) first_[n + 1] += first_[n];
  std::vector<std::int32_t> at(first_.begin(), first_.end() - 1);
  head_.resize(2 * arcs_.size());
  twin_.resize(2 * arcs_.size());
  left_.resize(2 * arcs_.size());
  for (const Arc& arc : arcs_) {
    const std::int32_t there = at[arc.from]++, back = at[arc.to]++;
    head_[there] = arc.to, head_[back] = arc.from;
    twin_[there] = back, twin_[back] = there;
    left_[there] = arc.capacity, left_[back] = arc.back;
  }
}

bool Flow::layer() {
  depth_.assign(count_, -1);
  std::vector<std::int32_t> queue{source};
  depth_[source] = 0;
  for (std::size_t k = 0; k < queue.size(); ++k) {
    const std::int32_t node = queue[k];
    if (depth_[sink] >= 0 && depth_[node] >= depth_[sink]) break;
    for (std::int32_t arc = first_[node]; arc < first_[node + 1]; ++arc) {
      if (left_[arc] > 0 && depth_[head_[arc]] < 0) {
        depth_[head_[arc]] = depth_[node] + 1;
        queue.push_back(head_[arc]);
      }
    }
  }
  return depth_[sink] >= 0;
}

void Flow::push() {
  next_.assign(first_.begin(), first_.end() - 1);
  std::vector<std::int32_t> path;  // arcs
  std::int32_t node = source;
  for (;;) {
    if (node == sink) {
      double most = not_cut;
      for (const std::int32_t arc : path) most = std::min(most, left_[arc]);
      std::size_t cut = path.size();
      for (std::size_t k = path.size(); k-- > 0;) {
        left_[path[k]] -= most;
        left_[twin_[path[k]]] += most;
        if (left_[path[k]] <= 0) cut = k;
      }
      node = head_[twin_[path[cut]]];
      path.resize(cut);
      continue;
    }
    std::int32_t& arc = next_[node];
    while (arc < first_[node + 1] &&
           !(left_[arc] > 0 && depth_[head_[arc]] == depth_[node] + 1)) {
      ++arc;
    }
    if (arc < first_[node + 1]) {
      path.push_back(arc);
      node = head_[arc];
    } else if (path.empty()) {
      return;
    } else {
      node = head_[twin_[path.back()]];
      path.pop_back();
      ++next_[node];
    }
  }
}

std::vector<char> Flow::sides() {
  build();
  while (layer()) push();
  std::vector<char> is_source(count_, 1);
  is_source[sink] = 0;
  std::vector<std::int32_t> queue{sink};
  while (!queue.empty()) {
    const std::int32_t node = queue.back();
    queue.pop_back();
    for (std::int32_t arc = first_[node]; arc < first_[node + 1]; ++arc) {
      if (left_[twin_[arc]] <= 0 || !is_source[head_[arc]]) continue;
      is_source[head_[arc]] = 0;
      queue.push_back(head_[arc]);
    }
  }
  return is_source;
}

}  // namespace

std::vector<char> open_sides(const Line& line, const std::vector<std::int32_t>& open,
                             const std::function<Side(std::int32_t)>& side) {
  Flow flow;
  std::unordered_map<std::int32_t, std::int32_t> numbers;  // of open nodes
  numbers.reserve(open.size());
  std::vector<std::int32_t> values;  // that open nodes make or read
  for (const std::int32_t node : open) {
    numbers.emplace(node, flow.add_node());
    values.insert(values.end(), line.makes[node].begin(), line.makes[node].end());
    values.insert(values.end(), line.reads[node].begin(), line.reads[node].end());
  }
  const auto number_of = [&](std::int32_t node) {
    if (const auto own = numbers.find(node); own != numbers.end()) return own->second;
    return side(node) == Side::behind ? Flow::source : Flow::sink;
  };
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::vector<std::int32_t> readers;  // of a value, as nodes of the network
  for (const std::int32_t v : values) {
    const Value& value = line.values[v];
    if (value.readers.empty()) continue;
    const std::int32_t maker = value.maker < 0 ? -1 : number_of(value.maker);
    readers.clear();
    for (const std::int32_t reader : value.readers) readers.push_back(number_of(reader));
    for (std::size_t r = 0; r < readers.size() && maker >= 0; ++r) {
      const std::int32_t reader = value.readers[r];
      if (line.is_forward[value.maker] != line.is_forward[reader]) continue;
      if (line.is_forward[reader]) {
        flow.add(maker, readers[r], not_cut);  // the reader is not before its operand
      } else {
        flow.add(readers[r], maker, not_cut);
      }
    }
    if (maker >= 0 && readers.size() == 1) {
      flow.add(maker, readers[0], value.bytes, value.bytes);
      continue;
    }
    // One node is behind if any member is, the other one if all are.
    const std::int32_t any = flow.add_node(), all = flow.add_node();
    const auto join = [&](std::int32_t member) {
      flow.add(member, any, not_cut);
      flow.add(all, member, not_cut);
    };
    if (maker >= 0) join(maker);
    for (const std::int32_t reader : readers) join(reader);
    flow.add(any, all, value.bytes);
  }
  const std::vector<char> is_source = flow.sides();
  std::vector<char> is_behind;
  for (const std::int32_t node : open) is_behind.push_back(is_source[numbers.at(node)]);
  return is_behind;
}

}  // namespace autoshard::pipeline
