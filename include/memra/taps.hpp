// DflashTapSink: where a trunk leaves the residual stream after the layers a drafter listens to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memra/detail/checked_math.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace memra {

template <class Dev>
class Cache;
template <class Dev>
class Step;
template <class Dev>
class Round;
template <class Dev>
class Speculation;
namespace detail {
template <class Dev>
struct CacheCore;

/// Refuses layers that a trunk of `n_layers` does not have.
inline Status check_tapped(const char* call, const std::vector<std::size_t>& layer_ids, std::size_t n_layers) {
  for (const std::size_t il : layer_ids) {
    if (il < n_layers) continue;
    return Status::failure(ErrorKind::bad_argument, call, 0, 0,
                           "the sink taps layer %zu of %zu; its rows would never be written", il, n_layers);
  }
  return {};
}
}  // namespace detail

/// Destination of one tapped layer in one step: row i of the step goes to `data + i * row_stride`, `hidden` floats.
/// Valid while the sink is armed: who takes it, or puts another in its place, ends the views, too.
struct TapView {
  float* data = nullptr;
  std::size_t row_stride = 0;  ///< floats between rows: n_taps * hidden
  std::size_t hidden = 0;
  std::size_t rows = 0;
};

/// Tap rows [cap_rows][n_taps * hidden] f32, the drafter's fc input layout: slot s of a row is the residual stream
/// after layer layer_ids[s].
///
/// Arm it on a cache (Cache::arm_taps) before the forwards to be tapped, take it after (Cache::take_taps). Row r
/// belongs to token origin + r; `rows` of them are committed: a rollback gives up the rows of the tokens it gives up
/// and keeps those of the accepted ones, so they can be ingested without being computed again.
template <class Dev>
class DflashTapSink {
  static_assert(check_kv_dev<Dev>());

 public:
  DflashTapSink(DflashTapSink&&) noexcept = default;
  /// By way of a temporary: a vector assigned to itself is emptied.
  DflashTapSink& operator=(DflashTapSink&& other) noexcept {
    DflashTapSink taken(std::move(other));
    std::swap(dev_, taken.dev_);
    std::swap(buffer_, taken.buffer_);
    layer_ids_.swap(taken.layer_ids_);
    id_.swap(taken.id_);
    hidden_ = taken.hidden_;
    cap_rows_ = taken.cap_rows_;
    origin_ = taken.origin_;
    rows_ = taken.rows_;
    return *this;
  }

  /// @param layer_ids  trunk layers in the drafter's fc slot order, at least one
  /// @param hidden     elements of the residual stream
  /// @param cap_rows   rows the buffer holds; contents undefined
  ///
  /// Memory of `dev`, freed in the order of its stream: if kernels of another device write there, order `dev` behind
  /// them (publish, wait) before the sink goes.
  static Result<DflashTapSink> create(Dev& dev, std::vector<std::size_t> layer_ids, std::size_t hidden,
                                      std::size_t cap_rows) {
    const detail::CheckedSize bytes = detail::CheckedSize(cap_rows) * layer_ids.size() * hidden * sizeof(float);
    if (layer_ids.empty() || hidden == 0 || cap_rows == 0 || !bytes.valid()) {
      return Status::failure(ErrorKind::bad_argument, "DflashTapSink::create", 0, 0,
                             "%zu layers of %zu elements, %zu rows; expected at least one of each and a size that fits",
                             layer_ids.size(), hidden, cap_rows);
    }
    for (std::size_t s = 1; s < layer_ids.size(); ++s) {
      if (std::find(layer_ids.begin(), layer_ids.begin() + static_cast<std::ptrdiff_t>(s), layer_ids[s]) !=
          layer_ids.begin() + static_cast<std::ptrdiff_t>(s)) {
        return Status::failure(ErrorKind::bad_argument, "DflashTapSink::create", 0, 0,
                               "layer %zu is named twice; expected each tapped layer once", layer_ids[s]);
      }
    }
    auto buffer = dev.alloc(bytes.value());
    if (!buffer) return buffer.status();
    return DflashTapSink(dev, *std::move(buffer), std::move(layer_ids), hidden, cap_rows);
  }

  const std::vector<std::size_t>& layer_ids() const noexcept { return layer_ids_; }
  std::size_t hidden() const noexcept { return hidden_; }
  std::size_t n_taps() const noexcept { return layer_ids_.size(); }
  std::size_t cap_rows() const noexcept { return cap_rows_; }
  std::size_t row_floats() const noexcept { return layer_ids_.size() * hidden_; }

  /// Position of the token that row 0 belongs to.
  std::size_t origin() const noexcept { return origin_; }
  /// Committed rows: tokens [origin, origin + rows).
  std::size_t rows() const noexcept { return rows_; }
  /// [cap_rows][n_taps * hidden] on device(); the address never changes.
  float* data() const noexcept { return reinterpret_cast<float*>(buffer_.data()); }
  Dev& device() const noexcept { return *dev_; }

 private:
  friend class Cache<Dev>;
  friend class Step<Dev>;
  friend class Speculation<Dev>;
  friend struct detail::CacheCore<Dev>;
  DflashTapSink(Dev& dev, typename Dev::Buffer buffer, std::vector<std::size_t> layer_ids, std::size_t hidden,
                std::size_t cap_rows)
      : dev_(&dev),
        buffer_(std::move(buffer)),
        layer_ids_(std::move(layer_ids)),
        hidden_(hidden),
        cap_rows_(cap_rows) {}

  void arm(std::size_t pos) noexcept {
    origin_ = pos;
    rows_ = 0;
  }
  /// Whether rows for tokens [pos, pos + t) have a place.
  bool holds(std::size_t pos, std::size_t t) const noexcept {
    return pos >= origin_ && t <= cap_rows_ && pos - origin_ <= cap_rows_ - t;
  }
  /// Whether the next row, that of token `pos`, follows on the rows held or replaces one of them.
  bool reaches(std::size_t pos) const noexcept { return pos >= origin_ && pos - origin_ <= rows_; }
  void commit(std::size_t end) noexcept { rows_ = std::max(rows_, end - origin_); }
  void cut(std::size_t end) noexcept { rows_ = std::min(rows_, end - std::min(end, origin_)); }

  std::optional<TapView> view(std::size_t layer, std::size_t pos, std::size_t t) const noexcept {
    const auto slot = std::find(layer_ids_.begin(), layer_ids_.end(), layer);
    if (slot == layer_ids_.end()) return std::nullopt;
    const auto index = static_cast<std::size_t>(slot - layer_ids_.begin());
    return TapView{data() + (pos - origin_) * row_floats() + index * hidden_, row_floats(), hidden_, t};
  }

  Dev* dev_;
  typename Dev::Buffer buffer_;
  std::vector<std::size_t> layer_ids_;
  std::shared_ptr<const bool> id_ = std::make_shared<const bool>(true);  // which sink it is: memory comes back
  std::size_t hidden_;
  std::size_t cap_rows_;
  std::size_t origin_ = 0;
  std::size_t rows_ = 0;
};

}  // namespace memra
