// BatchMembers: the caches that a batch stands for. Some may be gone by the time it is used.
#pragma once

#include <cstddef>
#include <memory>
#include <memra/detail/cache_core.hpp>
#include <memra/error.hpp>
#include <vector>

namespace memra::detail {

template <class Dev>
class BatchMembers {
  using Core = CacheCore<Dev>;

 public:
  void add(Core& core) { members_.push_back({&core, core.life}); }
  std::size_t size() const noexcept { return members_.size(); }
  /// nullptr: that cache is gone.
  Core* operator[](std::size_t i) const noexcept { return members_[i].life.expired() ? nullptr : members_[i].core; }

  /// Passes a failure on. One of earlier work may be any member's: a call of the batch is a call of all of them (C8).
  Status noted(const Status& s) const noexcept {
    for (std::size_t i = 0; i < size(); ++i) {
      if (Core* const c = (*this)[i]; c != nullptr) static_cast<void>(c->noted(s).ok());
    }
    return s;
  }

 private:
  struct Member {
    Core* core;
    std::weak_ptr<const bool> life;
  };
  std::vector<Member> members_;
};

}  // namespace memra::detail
