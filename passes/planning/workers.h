/// Threads that work through a list together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace autoshard::planning {

/// As many threads as there are cores, the caller's included, at most `most`; fewer where the
/// system gives no more. What is done on them must not depend on which one does it.
class Workers {
 public:
  explicit Workers(unsigned most);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Calls `work(i)` for every i below `count`, in any order and side by side. Throws what the
  /// call of the smallest i threw, after all have ended.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  void run();
  void take_part();

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_{0};
  std::size_t busy_ = 0;
  std::uint64_t round_ = 0;
  bool stops_ = false;
  std::vector<std::exception_ptr> errors_;
};

}  // namespace autoshard::planning
