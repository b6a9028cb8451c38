// Workspace: scratch for ops, owned by the caller, one per stream, never grown or moved.
#pragma once

#include <cstddef>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/ops.hpp>
#include <utility>

namespace memra {

/// Device memory that ops may scribble on. Its address is fixed for its life, so captured graphs may hold it.
template <class Dev>
class Workspace {
  static_assert(check_kv_dev<Dev>());

 public:
  /// @param bytes  plan.workspace_bytes(rows, batch), or DflashKv::workspace_bytes(); contents undefined
  static Result<Workspace> create(Dev& dev, std::size_t bytes) noexcept {
    auto buffer = dev.alloc(bytes);
    if (!buffer) return buffer.status();
    return Workspace(*std::move(buffer));
  }

  WorkspaceView view() const noexcept { return {buffer_.data(), buffer_.size()}; }
  std::size_t bytes() const noexcept { return buffer_.size(); }

 private:
  explicit Workspace(typename Dev::Buffer buffer) noexcept : buffer_(std::move(buffer)) {}

  typename Dev::Buffer buffer_;
};

}  // namespace memra
