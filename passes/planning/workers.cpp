#include "planning/workers.h"

#include <algorithm>
#include <system_error>

namespace autoshard::planning {

Workers::Workers(unsigned most) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 1; i < std::min(cores, most); ++i) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      // The process may have no more threads; those there are do all the work.
      break;
    }
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run() {
  std::uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return stops_ || round_ != seen; });
      if (stops_) return;
      seen = round_;
    }
    take_part();
    {
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) end_.notify_one();
    }
  }
}

void Workers::take_part() {
  for (std::size_t i = next_++; i < count_; i = next_++) {
    try {
      (*work_)(i);
    } catch (...) {
      errors_[i] = std::current_exception();
    }
  }
}

void Workers::for_each(std::size_t count, const std::function<void(std::size_t)>& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    errors_.assign(count, nullptr);
    busy_ = threads_.size();
    ++round_;
  }
  begin_.notify_all();
  take_part();
  {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [&] { return busy_ == 0; });
  }
  for (const std::exception_ptr& error : errors_) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace autoshard::planning
