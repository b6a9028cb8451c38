// Weights on a device: matrices as stored, small vectors as f32.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/ops.hpp>
#include <optional>
#include <string>
#include <tiny_engine/matmul.hpp>
#include <tiny_engine/safetensors.hpp>
#include <tiny_engine/strict_fp.hpp>
#include <utility>
#include <vector>

namespace tiny {

/// f32 on a device.
template <class Dev>
struct Floats {
  std::optional<typename Dev::Buffer> buffer;

  float* data() const noexcept { return buffer ? reinterpret_cast<float*>(buffer->data()) : nullptr; }

  static memra::Result<Floats> alloc(Dev& dev, std::size_t n) {
    auto made = dev.alloc(n * sizeof(float));
    if (!made) return made.status();
    return Floats{*std::move(made)};
  }
  static memra::Result<Floats> upload(Dev& dev, const std::vector<float>& values) {
    auto made = alloc(dev, values.size());
    if (!made) return made;
    const auto* source = reinterpret_cast<const std::byte*>(values.data());
    if (memra::Status s = dev.upload(made->buffer->data(), source, values.size() * sizeof(float)); !s) return s;
    return made;
  }
};

/// A matrix on a device.
template <class Dev>
struct Matrix {
  std::optional<typename Dev::Buffer> buffer;
  MatrixView view;

  /// The same bytes as a table of rows: an embedding.
  memra::TableView table() const noexcept {
    const memra::Format format = view.type == WeightType::f32   ? memra::Format::f32
                                 : view.type == WeightType::f16 ? memra::Format::f16
                                                                : memra::Format::bf16;
    return {view.data, format, view.n_out, view.n_in};
  }
};

namespace internal {

inline float element(const Tensor& t, std::size_t i) noexcept {
  Lanes lanes;
  std::byte raw[lane_count * 4] = {};
  const std::size_t bytes = t.dtype == DType::f32 ? 4 : 2;
  std::memcpy(raw, t.data.data() + i * bytes, bytes);
  if (t.dtype == DType::f32) {
    load_f32(lanes, raw);
  } else if (t.dtype == DType::f16) {
    load_f16(lanes, raw);
  } else {
    load_bf16(lanes, raw);
  }
  float first;
  std::memcpy(&first, &lanes, sizeof first);
  return first;
}

}  // namespace internal

/// Takes tensors of one file to one device, checking name, shape and type; keeps the first refusal. Without a device it
/// only checks: what a config claims is compared with what the file holds before anything is allocated for it.
template <class Dev>
class WeightReader {
 public:
  /// @param prefix  put before every name
  WeightReader(Dev& dev, const SafeTensors& file, std::string prefix)
      : dev_(&dev), file_(&file), prefix_(std::move(prefix)) {}
  WeightReader(const SafeTensors& file, std::string prefix) : file_(&file), prefix_(std::move(prefix)) {}

  const memra::Status& status() const noexcept { return status_; }

  /// [n_out][n_in], kept as stored.
  Matrix<Dev> matrix(const std::string& name, std::size_t n_out, std::size_t n_in) {
    Matrix<Dev> m;
    const Tensor* t = get(name, {n_out, n_in});
    if (t == nullptr || dev_ == nullptr) return m;
    auto made = dev_->alloc(t->data.size());
    if (!keep(made.status())) return m;
    if (!keep(dev_->upload(made->data(), t->data.data(), t->data.size()))) return m;
    const WeightType type = t->dtype == DType::f32   ? WeightType::f32
                            : t->dtype == DType::f16 ? WeightType::f16
                                                     : WeightType::bf16;
    m.view = {made->data(), type, n_out, n_in};
    m.buffer.emplace(*std::move(made));
    return m;
  }

  /// f(stored value) for every element of a tensor of this shape.
  template <class F>
  Floats<Dev> floats(const std::string& name, const std::vector<std::size_t>& shape, F f) {
    const Tensor* t = get(name, shape);
    if (t == nullptr || dev_ == nullptr) return {};
    std::vector<float> values(t->elems());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = f(internal::element(*t, i));
    auto made = Floats<Dev>::upload(*dev_, values);
    if (!keep(made.status())) return {};
    return *std::move(made);
  }
  Floats<Dev> floats(const std::string& name, const std::vector<std::size_t>& shape) {
    return floats(name, shape, [](float x) { return x; });
  }
  /// A norm's weights, as the factor to multiply with.
  Floats<Dev> norm(const std::string& name, std::size_t n, bool stored_minus_one) {
    return floats(name, {n}, [=](float w) { return stored_minus_one ? 1.0F + w : w; });
  }

 private:
  /// Remembers the first failure. @return whether s is ok
  bool keep(const memra::Status& s) {
    if (status_.ok()) status_ = s;
    return s.ok();
  }
  const Tensor* get(const std::string& name, const std::vector<std::size_t>& shape) {
    if (!status_.ok()) return nullptr;
    const std::string full = prefix_ + name;
    const Tensor* t = file_->find(full);
    if (t == nullptr) {
      keep(refuse("weights", "tensor " + full + " is missing"));
      return nullptr;
    }
    if (t->shape != shape) {
      keep(refuse("weights",
                  "tensor " + full + " has shape " + shown(t->shape) + "; this config needs " + shown(shape)));
      return nullptr;
    }
    if (t->dtype != DType::f32 && t->dtype != DType::f16 && t->dtype != DType::bf16) {
      keep(refuse("weights", "tensor " + full + " is not of dtype F32, F16 or BF16"));
      return nullptr;
    }
    return t;
  }
  static std::string shown(const std::vector<std::size_t>& shape) {
    std::string s = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) s += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return s + "]";
  }

  Dev* dev_ = nullptr;
  const SafeTensors* file_;
  std::string prefix_;
  memra::Status status_;
};

/// cos and sin of positions [0, positions), in the rounding of the reference: f32 inverse frequencies, f32 angles.
inline std::vector<float> rope_table(std::size_t positions, std::size_t rot_dim, double theta) {
  const std::size_t half = rot_dim / 2;
  std::vector<float> inverse(half);
  for (std::size_t i = 0; i < half; ++i) {
    inverse[i] = static_cast<float>(1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(rot_dim)));
  }
  std::vector<float> table(positions * rot_dim);
  for (std::size_t p = 0; p < positions; ++p) {
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(static_cast<float>(p) * inverse[i]);
      table[p * rot_dim + i] = static_cast<float>(std::cos(angle));
      table[p * rot_dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace tiny
