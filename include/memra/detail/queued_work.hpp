// QueuedWork: what a copy was queued with, so that it can say whether it may be believed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memra/kv_dev.hpp>
#include <utility>
#include <vector>

namespace memra::detail {

/// Empty, and never failed, on devices that do not say (WorkBatchDev).
class QueuedWork {
 public:
  void reserve(std::size_t devices) { batches_.reserve(devices); }
  void clear() noexcept { batches_.clear(); }
  /// What is queued on `dev` by now and was not waited for.
  template <class Dev>
  void add(Dev& dev) {
    if (auto batch = work_batch_of(dev)) batches_.push_back(std::move(batch));
  }
  bool failed() const noexcept {
    return std::any_of(batches_.begin(), batches_.end(), [](const auto& b) { return b->failed; });
  }

 private:
  std::vector<std::shared_ptr<const WorkBatch>> batches_;
};

}  // namespace memra::detail
