/// A list for each of many indices, all in one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace autoshard {

/// Lists of `T`, one after the other in one array. Items keep their order.
template <typename T>
class Lists {
 public:
  Lists() = default;
  Lists(std::size_t count, std::vector<std::pair<std::int32_t, T>> items)
      : offsets_(count + 1, 0) {
    for (const auto& [index, item] : items) ++offsets_[index + 1];
    for (std::size_t i = 0; i < count; ++i) offsets_[i + 1] += offsets_[i];
    items_.resize(items.size());
    std::vector<std::int32_t> next(offsets_.begin(), offsets_.end() - 1);
    for (auto& [index, item] : items) items_[next[index]++] = item;
  }
  const T* begin(std::int32_t index) const { return items_.data() + offsets_[index]; }
  const T* end(std::int32_t index) const { return items_.data() + offsets_[index + 1]; }

 private:
  std::vector<std::int32_t> offsets_;
  std::vector<T> items_;
};

/// One of the lists.
template <typename T>
struct Range {
  const T *first, *last;
  const T* begin() const { return first; }
  const T* end() const { return last; }
  std::size_t size() const { return static_cast<std::size_t>(last - first); }
  bool empty() const { return first == last; }
  const T& back() const { return last[-1]; }
};

/// The list of `index`.
template <typename T>
Range<T> in(const Lists<T>& lists, std::int32_t index) {
  return {lists.begin(index), lists.end(index)};
}

}  // namespace autoshard
