// Rules S1 to S7, S9 and S10 on a device of any kind. See report.hpp for `Make`.
#pragma once

#include <array>
#include <conformance/bytes.hpp>
#include <conformance/capture_suite.hpp>
#include <conformance/late_suite.hpp>
#include <conformance/report.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/detail/copy_between.hpp>
#include <memra/detail/platform.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace memra_conformance {

namespace detail {

/// Adds to every byte it is given; what a kernel of a test does.
struct AddBody {
  std::byte* data;
  std::size_t width;
  unsigned add;
  MEMRA_HD void operator()(const memra::Item& at) const noexcept {
    std::byte& b = data[(at.z * 2 + at.y) * width + at.x];
    b = static_cast<std::byte>(static_cast<unsigned>(b) + add);
  }
};

/// Random operations on two buffers and the same on host arrays, nothing read until the end.
template <class Dev>
void random_operations(Dev& dev, Report& r, std::uint64_t seed, std::size_t operations) {
  constexpr std::size_t n = 4096;
  Numbers random(seed);
  auto first = dev.zeros(n);
  auto second = dev.zeros(n);
  if (!r.that(first, "zeros") || !r.that(second, "zeros")) return;
  std::byte* const dst[2] = {first->data(), second->data()};
  Bytes want[2] = {Bytes(n), Bytes(n)};
  for (std::size_t i = 0; i < operations; ++i) {
    const std::size_t a = random.below(2);
    const std::size_t len = random.below(600);
    const std::size_t to = random.below(n - len);
    const std::size_t from = random.below(n - len);
    memra::Status s;
    switch (random.below(6)) {
      case 0: {
        const std::byte value = random.byte();
        s = dev.fill(dst[a] + to, value, len);
        std::fill_n(want[a].begin() + static_cast<std::ptrdiff_t>(to), len, value);
        break;
      }
      case 1:
        s = dev.copy(dst[a] + to, dst[1 - a] + from, len);
        std::memcpy(want[a].data() + to, want[1 - a].data() + from, len);
        break;
      case 2:
        s = dev.move(dst[a] + to, dst[a] + from, len);
        std::memmove(want[a].data() + to, want[a].data() + from, len);
        break;
      case 3: {
        const Bytes host = random.bytes(len);
        s = dev.upload(dst[a] + to, host.data(), len);
        if (len != 0) std::memcpy(want[a].data() + to, host.data(), len);
        break;
      }
      case 4: {
        const auto value = static_cast<std::int32_t>(random.below(1U << 30));
        const std::size_t slot = random.below(n / 4);
        s = dev.store_i32(reinterpret_cast<std::int32_t*>(dst[a]) + slot, &value, 1);
        std::memcpy(want[a].data() + slot * 4, &value, 4);
        break;
      }
      default:
        if constexpr (memra::LaunchDev<Dev>) {
          const auto add = static_cast<unsigned>(random.below(256));
          s = memra::launch(dev, "add", memra::Grid{n / 2, 2, 1}, AddBody{dst[a], n / 2, add});
          for (std::byte& b : want[a]) b = static_cast<std::byte>(static_cast<unsigned>(b) + add);
        }
    }
    if (!r.that(s, "operation " + std::to_string(i))) return;
  }
  for (const std::size_t a : {0U, 1U}) {
    r.that(read(dev, dst[a], n) == want[a], "buffer " + std::to_string(a) + " differs from the host array");
  }
}

}  // namespace detail

/// S1: order.
template <class Make>
void order_properties(std::vector<Property>& out) {
  out.push_back({"S1 operations take effect in call order", [](Report& r) {
                   for (std::uint64_t seed = 1; seed <= 3; ++seed) {
                     Made<Make> made;
                     detail::random_operations(made.dev(), r, seed, 200);
                   }
                 }});
  out.push_back({"S1 download waits for everything before it", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   constexpr std::size_t n = 1U << 20;
                   auto a = dev.alloc(n);
                   auto b = dev.alloc(n);
                   if (!r.that(a, "alloc") || !r.that(b, "alloc")) return;
                   r.that(dev.fill(a->data(), std::byte{1}, n), "fill");
                   r.that(dev.copy(b->data(), a->data(), n), "copy");
                   r.that(dev.fill(a->data(), std::byte{2}, n), "fill");
                   r.that(all(read(dev, b->data(), n), n, std::byte{1}), "the copy did not see the bytes of its time");
                   r.that(all(read(dev, a->data(), n), n, std::byte{2}), "the later fill is missing");
                 }});
  out.push_back({"S1 events can be published, published again and waited for", [](Report& r) {
                   Made<Make> one;
                   Made<Make> two;
                   typename DevOf<Make>::Event e;
                   r.that(two.dev().wait(e), "waiting for an event that nobody published");
                   for (int i = 0; i < 3; ++i) {
                     r.that(one.dev().publish(e), "publish");
                     r.that(two.dev().wait(e), "wait on another device");
                     r.that(one.dev().wait(e), "wait on the device that published");
                   }
                   r.that(two.dev().synchronize(), "synchronize");
                   r.that(one.dev().synchronize(), "synchronize");
                 }});
}

/// S2 and S4: memory.
template <class Make>
void memory_properties(std::vector<Property>& out) {
  out.push_back({"S2 zeros is zero, also where dirty memory was freed", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   for (const std::size_t n : {1U, 255U, 256U, 4096U, 100000U}) {
                     {
                       auto dirty = dev.alloc(n);
                       if (!r.that(dirty, "alloc")) return;
                       r.that(dev.fill(dirty->data(), std::byte{0xff}, n), "fill");
                     }
                     auto clean = dev.zeros(n);
                     if (!r.that(clean, "zeros")) return;
                     r.that(all(read(dev, clean->data(), n), n, std::byte{0}), std::to_string(n) + " bytes: not zero");
                   }
                 }});
  out.push_back({"S2 buffers are aligned, as large as asked for, and apart", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   std::vector<typename DevOf<Make>::Buffer> held;
                   for (std::size_t i = 0; i < 40; ++i) {
                     const std::size_t n = 1 + i * 97;
                     auto b = i % 2 == 0 ? dev.alloc(n) : dev.zeros(n);
                     if (!r.that(b, "alloc")) return;
                     r.that(b->size() == n, "size() is not what was asked for");
                     r.that(reinterpret_cast<std::uintptr_t>(b->data()) % memra::plane_alignment == 0, "not aligned");
                     r.that(dev.fill(b->data(), static_cast<std::byte>(i), n), "fill");
                     held.push_back(*std::move(b));
                   }
                   for (std::size_t i = 0; i < held.size(); ++i) {
                     r.that(all(read(dev, held[i].data(), held[i].size()), held[i].size(), static_cast<std::byte>(i)),
                            "buffer " + std::to_string(i) + " was overwritten through another one");
                   }
                 }});
  out.push_back({"S2 freed memory is not used again before queued work is done", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   constexpr std::size_t n = 64 * 1024;
                   for (unsigned i = 0; i < 20; ++i) {
                     auto kept = dev.alloc(n);
                     if (!r.that(kept, "alloc")) return;
                     {
                       auto source = dev.alloc(n);
                       if (!r.that(source, "alloc")) return;
                       r.that(dev.fill(source->data(), static_cast<std::byte>(i), n), "fill");
                       r.that(dev.copy(kept->data(), source->data(), n), "copy");
                     }
                     auto next = dev.alloc(n);
                     if (!r.that(next, "alloc")) return;
                     r.that(dev.fill(next->data(), std::byte{0xee}, n), "fill");
                     r.that(all(read(dev, kept->data(), n), n, static_cast<std::byte>(i)),
                            "the copy read memory that had been given away");
                   }
                 }});
  out.push_back({"S2 a buffer may outlive its device", [](Report& r) {
                   typename DevOf<Make>::Buffer kept;
                   {
                     Made<Make> made;
                     auto b = made.dev().zeros(1000);
                     if (!r.that(b, "zeros")) return;
                     kept = *std::move(b);
                   }
                   r.that(kept.size() == 1000 && kept.data() != nullptr, "it changed when the device went");
                 }});
  out.push_back({"S2 a moved-from buffer is empty, and its memory is freed once", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   auto a = dev.zeros(300);
                   auto b = dev.zeros(500);
                   if (!r.that(a, "zeros") || !r.that(b, "zeros")) return;
                   typename DevOf<Make>::Buffer moved(*std::move(a));
                   r.that(a->data() == nullptr && a->size() == 0, "the source of a move construction is not empty");
                   moved = *std::move(b);
                   r.that(b->data() == nullptr && b->size() == 0, "the source of a move assignment is not empty");
                   r.that(all(read(dev, moved.data(), 500), 500, std::byte{0}), "the bytes did not move along");
                 }});
  out.push_back({"S2 a count of zero does nothing and is ok", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   auto none = dev.alloc(0);
                   r.that(none, "alloc of 0 bytes");
                   r.that(dev.zeros(0), "zeros of 0 bytes");
                   r.that(none && none->size() == 0, "0 bytes have another size");
                   r.that(dev.copy(nullptr, nullptr, 0), "copy");
                   r.that(dev.move(nullptr, nullptr, 0), "move");
                   r.that(dev.fill(nullptr, std::byte{1}, 0), "fill");
                   r.that(dev.upload(nullptr, nullptr, 0), "upload");
                   r.that(dev.download(nullptr, nullptr, 0), "download");
                   r.that(dev.store_i32(nullptr, nullptr, 0), "store_i32");
                   auto b = dev.zeros(8);
                   if (!r.that(b, "zeros")) return;
                   r.that(dev.copy(b->data(), b->data(), 0), "copy of 0 bytes onto itself");
                   if constexpr (memra::LaunchDev<DevOf<Make>>) {
                     for (const memra::Grid g : {memra::Grid{0, 1, 1}, memra::Grid{1, 0, 1}, memra::Grid{1, 1, 0}}) {
                       r.that(memra::launch(dev, "empty", g, detail::AddBody{b->data(), 1, 1}), "an empty grid");
                     }
                   }
                   r.that(all(read(dev, b->data(), 8), 8, std::byte{0}), "something was written");
                 }});
  out.push_back({"S4 addresses do not change", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   auto b = dev.zeros(1000);
                   if (!r.that(b, "zeros")) return;
                   std::byte* const at = b->data();
                   typename DevOf<Make>::Buffer moved(*std::move(b));
                   for (int i = 0; i < 50; ++i) {
                     auto other = dev.alloc(1000);
                     if (!r.that(other, "alloc")) return;
                     r.that(dev.copy(other->data(), at, 1000), "copy");
                   }
                   r.that(dev.synchronize(), "synchronize");
                   r.that(moved.data() == at, "data() changed");
                   r.that(all(read(dev, at, 1000), 1000, std::byte{0}), "the bytes are not there any more");
                 }});
}

/// S3: copies.
template <class Make>
void copy_properties(std::vector<Property>& out) {
  out.push_back(
      {"S3 copy refuses ranges that overlap and changes nothing", [](Report& r) {
         Made<Make> made;
         auto& dev = made.dev();
         auto b = dev.alloc(1024);
         if (!r.that(b, "alloc")) return;
         const Bytes host = Numbers(4).bytes(1024);
         r.that(dev.upload(b->data(), host.data(), 1024), "upload");
         for (const auto& [to, from, n] :
              {std::array<std::size_t, 3>{0, 0, 1}, {0, 99, 100}, {99, 0, 100}, {0, 1, 1023}, {512, 256, 257}}) {
           const memra::Status s = dev.copy(b->data() + to, b->data() + from, n);
           r.that(s.kind() == memra::ErrorKind::bad_argument, "copy of " + std::to_string(n) + " bytes from " +
                                                                  std::to_string(from) + " to " + std::to_string(to) +
                                                                  ": " + s.message());
         }
         r.that(read(dev, b->data(), 1024) == host, "a refused copy changed bytes");
         r.that(dev.copy(b->data() + 100, b->data(), 100), "ranges that touch do not overlap");
         r.that(dev.copy(b->data(), b->data() + 100, 100), "ranges that touch do not overlap");
       }});
  out.push_back(
      {"S3 move allows overlap, upwards and downwards", [](Report& r) {
         Made<Make> made;
         auto& dev = made.dev();
         auto b = dev.alloc(3000);
         if (!r.that(b, "alloc")) return;
         for (const auto& [to, from, n] :
              {std::array<std::size_t, 3>{7, 0, 2900}, {0, 7, 2900}, {1, 0, 1}, {5, 5, 100}, {0, 1024, 1976}}) {
           Bytes want = Numbers(n).bytes(3000);
           r.that(dev.upload(b->data(), want.data(), 3000), "upload");
           r.that(dev.move(b->data() + to, b->data() + from, n), "move");
           std::memmove(want.data() + to, want.data() + from, n);
           r.that(read(dev, b->data(), 3000) == want, "move differs from memmove");
         }
       }});
  out.push_back({"S3 every size and alignment is copied to the byte", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   auto src = dev.alloc(600);
                   auto dst = dev.alloc(600);
                   if (!r.that(src, "alloc") || !r.that(dst, "alloc")) return;
                   const Bytes host = Numbers(5).bytes(600);
                   r.that(dev.upload(src->data(), host.data(), 600), "upload");
                   for (std::size_t n = 1; n < 70; n += 3) {
                     for (std::size_t at = 0; at < 9; ++at) {
                       r.that(dev.fill(dst->data(), std::byte{0}, 600), "fill");
                       r.that(dev.copy(dst->data() + at, src->data() + n, n), "copy");
                       Bytes want(600);
                       std::memcpy(want.data() + at, host.data() + n, n);
                       if (!r.that(read(dev, dst->data(), 600) == want, "copy of " + std::to_string(n) + " bytes"))
                         return;
                     }
                   }
                 }});
  out.push_back({"S3 offsets and counts are 64-bit", [](Report& r) {
                   if constexpr (holds_4_gib<Make>) {
                     if (under_address_sanitizer()) return r.not_checked("AddressSanitizer shadows every page");
                     Made<Make> made;
                     auto& dev = made.dev();
                     constexpr std::size_t far = (std::size_t{4} << 30) + 4096;
                     auto b = dev.alloc(far + 4096);
                     if (!r.that(b, "alloc of more than 4 GiB")) return;
                     const Bytes host = Numbers(6).bytes(64);
                     r.that(dev.fill(b->data() + 4096, std::byte{9}, 64), "fill");
                     r.that(dev.upload(b->data() + far, host.data(), 64), "upload beyond 4 GiB");
                     r.that(dev.copy(b->data() + far + 64, b->data() + far, 64), "copy beyond 4 GiB");
                     r.that(read(dev, b->data() + far + 64, 64) == host, "bytes beyond 4 GiB are wrong");
                     r.that(all(read(dev, b->data() + 4096, 64), 64, std::byte{9}), "an offset was cut to 32 bits");
                     r.that(dev.copy(b->data(), b->data() + 1, std::size_t{4} << 30).kind() ==
                                memra::ErrorKind::bad_argument,
                            "a count of 4 GiB was cut to 32 bits: overlap was not seen");
                   } else {
                     r.not_checked("no beyond_4_gib says that the device holds so much (see report.hpp)");
                   }
                 }});
  out.push_back({"S9 copy_batch copies every item and has read the list", [](Report& r) {
                   if constexpr (memra::BatchedCopyDev<DevOf<Make>>) {
                     Made<Make> made;
                     auto& dev = made.dev();
                     auto src = dev.alloc(1000);
                     auto dst = dev.zeros(1000);
                     if (!r.that(src, "alloc") || !r.that(dst, "zeros")) return;
                     const Bytes host = Numbers(7).bytes(1000);
                     r.that(dev.upload(src->data(), host.data(), 1000), "upload");
                     Bytes want(1000);
                     std::vector<memra::CopyItem> items;
                     for (std::size_t i = 0; i < 10; ++i) {
                       items.push_back({dst->data() + i * 100, src->data() + (9 - i) * 100, i * 10});
                       std::memcpy(want.data() + i * 100, host.data() + (9 - i) * 100, i * 10);
                     }
                     r.that(dev.copy_batch(items.data(), items.size()), "copy_batch");
                     for (auto& item : items) item = {};
                     r.that(dev.copy_batch(items.data(), 0), "copy_batch of nothing");
                     r.that(read(dev, dst->data(), 1000) == want, "copy_batch differs from its copies");
                     volatile std::size_t few = 5;  // else the compiler warns of the copy that is refused
                     const memra::CopyItem overlap{dst->data(), dst->data() + few, 10};
                     r.that(dev.copy_batch(&overlap, 1).kind() == memra::ErrorKind::bad_argument,
                            "overlap not refused");
                   } else {
                     r.not_checked("the device has no copy_batch");
                   }
                 }});
}

/// S5: failures.
template <class Make>
void failure_properties(std::vector<Property>& out) {
  out.push_back({"S5 a failed call names operation, bytes and reason, and harms nothing", [](Report& r) {
                   Made<Make> made;
                   auto& dev = made.dev();
                   auto b = dev.zeros(512);
                   if (!r.that(b, "zeros")) return;
                   const memra::Status s = dev.copy(b->data(), b->data() + 1, 511);
                   r.that(!s.ok(), "an overlapping copy was not refused");
                   r.that(std::string(s.operation()) == "copy", std::string("operation() is ") + s.operation());
                   r.that(s.bytes() == 511, "bytes() is " + std::to_string(s.bytes()));
                   r.that(std::strlen(s.text()) >= 10, "text() is no sentence");
                   r.that(dev.fill(b->data(), std::byte{3}, 512), "the next call");
                   r.that(all(read(dev, b->data(), 512), 512, std::byte{3}), "the device does not work any more");
                   r.that(dev.synchronize(), "synchronize after a refused call");
                 }});
  out.push_back({"S5 out of memory is told apart and can be survived", [](Report& r) {
                   if (under_address_sanitizer()) return r.not_checked("AddressSanitizer ends the program instead");
                   Made<Make> made;
                   auto& dev = made.dev();
                   for (const std::size_t n : {SIZE_MAX / 2, SIZE_MAX - 1000, SIZE_MAX}) {
                     const auto b = dev.alloc(n);
                     r.that(!b.ok() && b.status().kind() == memra::ErrorKind::out_of_memory,
                            "alloc(" + std::to_string(n) + "): " + b.status().message());
                     const auto z = dev.zeros(n);
                     r.that(!z.ok() && z.status().kind() == memra::ErrorKind::out_of_memory,
                            "zeros(" + std::to_string(n) + "): " + z.status().message());
                     r.that(b.status().bytes() == n, "the Status does not say how many bytes");
                   }
                   auto small = dev.zeros(100);
                   r.that(small, "a small zeros afterwards");
                   if (small) r.that(all(read(dev, small->data(), 100), 100, std::byte{0}), "it is not zero");
                 }});
  out.push_back({"S5 a work log goes on to another batch when the device was waited for", [](Report& r) {
                   if constexpr (memra::WorkLogDev<DevOf<Make>>) {
                     Made<Make> made;
                     auto& dev = made.dev();
                     const auto log = dev.work_log();
                     if (!log) return r.not_checked(no_work_log);
                     auto b = dev.zeros(64);
                     if (!r.that(b, "zeros")) return;
                     for (const bool download : std::array<bool, 2>{false, true}) {
                       const auto batch = log->batch;
                       r.that(dev.fill(b->data(), std::byte{1}, 64), "fill");
                       if (download) {
                         read(dev, b->data(), 64);
                       } else {
                         r.that(dev.synchronize(), "synchronize");
                       }
                       r.that(log->batch > batch, "the device was waited for, and the batch is the same");
                     }
                     r.that(log->failed.empty(), "it names a batch that failed");
                     r.that(dev.work_log() == log, "it is another log now");
                   } else {
                     r.not_checked(no_work_log);
                   }
                 }});
  out.push_back({"S5 a lost device says so in every later call", [](Report& r) {
                   if constexpr (can_lose<Make>) {
                     Made<Make> made;
                     auto& dev = made.dev();
                     auto b = dev.zeros(256);
                     if (!r.that(b, "zeros")) return;
                     const Bytes host(256);
                     r.that(dev.synchronize(), "synchronize");
                     made.make().lose();
                     static_cast<void>(dev.synchronize().ok());  // the first may still be the one that finds out
                     for (int i = 0; i < 2; ++i) {
                       for (const memra::Status& s :
                            {dev.alloc(1).status(), dev.zeros(1).status(), dev.copy(b->data(), b->data() + 128, 8),
                             dev.move(b->data(), b->data() + 128, 8), dev.fill(b->data(), std::byte{1}, 8),
                             dev.upload(b->data(), host.data(), 8), dev.synchronize()}) {
                         r.that(s.kind() == memra::ErrorKind::device_lost, "a call said: " + s.message());
                       }
                     }
                   } else {
                     r.not_checked("there is no lose() to kill the device with (see report.hpp)");
                   }
                 }});
}

/// An engine's allocator, as a device adopts one. Its memory comes from another device of the same kind.
template <class Make>
struct EngineAllocator {
  template <class Stream>
  void* allocate(Stream, std::size_t bytes, std::size_t align) noexcept {
    auto b = source.dev().alloc(bytes);
    if (!b || align != memra::plane_alignment) return nullptr;
    // The memory is from another stream: it must be there before this one uses it.
    if (!source.dev().synchronize()) return nullptr;
    held.push_back(*std::move(b));
    asked += bytes;
    return held.back().data();
  }
  template <class Stream>
  void deallocate(Stream, void* p, std::size_t bytes, std::size_t) noexcept {
    for (auto& b : held) {
      if (b.data() != p || b.size() != bytes) continue;
      std::swap(b, held.back());
      held.pop_back();
      return;
    }
    strangers = true;
  }
  Made<Make> source;
  std::vector<typename DevOf<Make>::Buffer> held;
  std::size_t asked = 0;
  bool strangers = false;  ///< something came back that was never given out
};

template <class Make>
constexpr bool can_adopt = requires(EngineAllocator<Make>& engine) {
  DevOf<Make>::adopt(engine);
};

/// `adopt` gives a device, or a Result where making one can fail.
template <class D>
D adopted(D&& dev) {
  return std::move(dev);
}
template <class D>
D adopted(memra::Result<D>&& dev) {
  return memra::check(std::move(dev));
}

/// S9: independence. Alone, so that a race detector can watch it without the rest of the suite.
template <class Make>
void independence_properties(std::vector<Property>& out) {
  out.push_back({"S9 different device objects are independent, also on two threads", [](Report& r) {
                   Report reports[2];
                   {
                     std::thread other([&] {
                       Made<Make> made;
                       detail::random_operations(made.dev(), reports[1], 11, 200);
                     });
                     Made<Make> made;
                     detail::random_operations(made.dev(), reports[0], 12, 200);
                     other.join();
                   }
                   for (const Report& one : reports) r.that(one.ok(), one.text());
                 }});
}

/// S6, S7, S9 and S10.
template <class Make>
void boundary_properties(std::vector<Property>& out) {
  out.push_back({"S6 a device on the engine's allocator takes all its memory there and gives it back", [](Report& r) {
                   if constexpr (can_adopt<Make>) {
                     EngineAllocator<Make> engine;
                     {
                       auto dev = adopted(DevOf<Make>::adopt(engine));
                       auto a = dev.alloc(1000);
                       auto z = dev.zeros(500);
                       if (!r.that(a, "alloc") || !r.that(z, "zeros")) return;
                       r.that(engine.asked == 1500 && engine.held.size() == 2, "not from the allocator, or more");
                       r.that(dev.fill(a->data(), std::byte{1}, 1000), "fill");
                       r.that(all(read(dev, a->data(), 1000), 1000, std::byte{1}), "the memory does not work");
                       r.that(all(read(dev, z->data(), 500), 500, std::byte{0}), "zeros is not zero");
                     }
                     r.that(engine.held.empty() && !engine.strangers, "not all of it, and only it, was given back");
                   } else {
                     r.not_checked("the device has no static adopt(allocator)");
                   }
                 }});
  out.push_back({"S7 bytes go from one device object to another, in the order of both", [](Report& r) {
                   for (const std::size_t n : {std::size_t{1}, std::size_t{5000}, memra::detail::staging_bytes + 3}) {
                     Made<Make> from;
                     Made<Make> to;
                     auto dst = to.dev().zeros(n + 2);
                     if (!r.that(dst, "zeros")) return;
                     const Bytes host = Numbers(n).bytes(n);
                     {
                       auto src = from.dev().alloc(n);
                       if (!r.that(src, "alloc")) return;
                       r.that(from.dev().upload(src->data(), host.data(), n), "upload");
                       r.that(memra::detail::copy_between(to.dev(), dst->data() + 1, from.dev(), src->data(), n),
                              "copy");
                       r.that(from.dev().fill(src->data(), std::byte{0xdd}, n), "fill of the source afterwards");
                     }
                     Bytes want(n + 2);
                     std::memcpy(want.data() + 1, host.data(), n);
                     r.that(read(to.dev(), dst->data(), n + 2) == want, std::to_string(n) + " bytes arrived wrong");
                   }
                 }});
  out.push_back(
      {"S9 upload and store_i32 have read their source when they return", [](Report& r) {
         Made<Make> made;
         auto& dev = made.dev();
         constexpr std::size_t n = 100000;
         auto b = dev.zeros(n);
         auto ints = dev.zeros(400);
         if (!r.that(b, "zeros") || !r.that(ints, "zeros")) return;
         const Bytes want = Numbers(8).bytes(n);
         auto host = std::make_unique<Bytes>(want);
         r.that(dev.upload(b->data(), host->data(), n), "upload");
         std::fill(host->begin(), host->end(), std::byte{0xaa});
         host.reset();
         auto values = std::make_unique<std::vector<std::int32_t>>(100, -77);
         r.that(dev.store_i32(reinterpret_cast<std::int32_t*>(ints->data()), values->data(), 100), "store_i32");
         values->assign(100, 1);
         values.reset();
         r.that(read(dev, b->data(), n) == want, "upload read its source after it had returned");
         std::vector<std::int32_t> back(100);
         r.that(dev.download(reinterpret_cast<std::byte*>(back.data()), ints->data(), 400), "download");
         r.that(back == std::vector<std::int32_t>(100, -77), "store_i32 read its source after it had returned");
       }});
  out.push_back(
      {"S10 launch runs every item once, in order, with the body it was given", [](Report& r) {
         if constexpr (memra::LaunchDev<DevOf<Make>>) {
           Made<Make> made;
           auto& dev = made.dev();
           constexpr std::size_t width = 257;
           auto b = dev.zeros(6 * width);
           if (!r.that(b, "zeros")) return;
           auto body = std::make_unique<detail::AddBody>(detail::AddBody{b->data(), width, 1});
           r.that(memra::launch(dev, "add", memra::Grid{width, 2, 3}, *body), "launch");
           body->add = 100;
           body.reset();
           r.that(all(read(dev, b->data(), 6 * width), 6 * width, std::byte{1}), "not every item ran once");
           r.that(dev.fill(b->data(), std::byte{10}, 6 * width), "fill");
           r.that(memra::launch(dev, "add", memra::Grid{width, 2, 3}, detail::AddBody{b->data(), width, 5}), "launch");
           r.that(dev.move(b->data(), b->data() + 1, width), "move");
           r.that(all(read(dev, b->data(), 6 * width), 6 * width, std::byte{15}), "launch lost its place");
         } else {
           r.not_checked("the device has no launch");
         }
       }});
}

/// Every rule that needs nothing but a device.
template <class Make>
std::vector<Property> device_properties() {
  std::vector<Property> all;
  order_properties<Make>(all);
  memory_properties<Make>(all);
  copy_properties<Make>(all);
  failure_properties<Make>(all);
  late_properties<Make>(all);
  capture_properties<Make>(all);
  boundary_properties<Make>(all);
  independence_properties<Make>(all);
  return all;
}

}  // namespace memra_conformance
