// Hand-over between two processes, one GPU each, over NCCL; and how fast it is. A program of its own: it forks before
// it touches a GPU. usage: nccl_two [MODE...]; modes below. Exit status 0 if all went as it must, 77 without two GPUs.
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memra/cuda/ops.cuh>
#include <memra/dflash_kv.hpp>
#include <memra/handover.hpp>
#include <memra/nccl/transport.hpp>
#include <string>
#include <support/kernel_model.hpp>
#include <support/stand_in.hpp>
#include <thread>
#include <vector>

namespace nccl_two {

using namespace memra_test;
using namespace std::chrono_literals;
using memra::CudaDev;
using memra::ErrorKind;
using memra::NcclTransport;
using Cache = memra::Cache<CudaDev>;
using Clock = std::chrono::steady_clock;

inline bool expect(bool holds, const char* what, const memra::Status& s = {}) {
  if (!holds) std::printf("FAILED: expected %s; got: %s\n", what, s.message().c_str());
  return holds;
}
inline double ms_since(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}
inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
inline memra::HandoverTag tag(unsigned seed = 1) {
  memra::HandoverTag t;
  t.fingerprint[3] = static_cast<std::byte>(seed);
  return t;
}
inline CudaDev gpu(int ordinal) {
  CudaDev::Options o;
  o.ordinal = ordinal;
  return memra::check(CudaDev::create(o));
}

struct HarmBody {
  std::uint8_t* byte;
  MEMRA_HD void operator()(const memra::Item&) const { *byte = static_cast<std::uint8_t>(*byte ^ 0x40U); }
};

/// The real link, until so many bytes were sent; then what the mode says.
struct DoomedLink {
  NcclTransport* link;
  std::size_t left;
  std::string mode;
  std::chrono::milliseconds limit() const noexcept { return link->limit(); }
  CudaDev& device() const noexcept { return link->device(); }
  memra::Status send(const std::byte* data, std::size_t n) noexcept {
    if (n <= left) {
      left -= n;
      return link->send(data, n);
    }
    if (mode == "harmed") {
      left = static_cast<std::size_t>(-1);
      auto* byte = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(data)) + n / 2;
      memra::check(memra::launch(device(), "harm", {1, 1, 1}, HarmBody{byte}));
      return link->send(data, n);
    }
    (void)link->flush().ok();
    if (mode == "dies") std::raise(SIGKILL);
    std::this_thread::sleep_for(60s);
    return {};
  }
  memra::Status receive(std::byte* data, std::size_t n) noexcept { return link->receive(data, n); }
  memra::Status flush() noexcept { return link->flush(); }
};

// --- a small state, continued ---

constexpr std::size_t rows = 40;

inline memra::DflashCfg drafter() {
  memra::DflashCfg d;
  d.n_layer = 2;
  d.n_kv = 2;
  d.head_dim = 32;
  d.block_size = 8;
  d.sliding_window = 16;
  return d;
}
inline std::vector<float> draft_rows() {
  std::vector<float> x(rows * 64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1013) * 0.125F - 60;
  return x;
}

inline bool send_small(const std::string& mode, CudaDev& dev, NcclTransport& link) {
  KernelModel<CudaDev> m(dev, 96, memra::Layout::split);
  for (std::size_t i = 0; i < rows; i += 8) memra::check(m.feed(8));
  auto kv = memra::check(memra::DflashKv<CudaDev>::create(dev, drafter(), 96));
  memra::check(kv.begin_rows(rows).status());
  const std::vector<float> x = draft_rows();
  for (std::size_t l = 0; l < 2; ++l) {
    for (const float* p : std::vector<const float*>{kv.k(l), kv.v(l)}) {
      memra::check(dev.upload(reinterpret_cast<std::byte*>(const_cast<float*>(p)),
                              reinterpret_cast<const std::byte*>(x.data()), x.size() * 4));
    }
  }
  memra::check(kv.commit());
  const auto tail = kv.export_tail(rows);
  if (mode == "refused") {
    const memra::Status s = memra::send_state(link, m.cache, tag(2), &*tail);
    if (!expect(s.kind() == ErrorKind::bad_argument && std::strstr(s.text(), "fingerprint"), "a refusal", s))
      return false;
  } else if (mode != "whole") {
    DoomedLink doomed{&link, 20000, mode};
    const memra::Status s = memra::send_state(doomed, m.cache, tag(), &*tail);
    if (!expect(s.kind() == ErrorKind::corrupt && std::strstr(s.text(), "other bytes"), "a refusal", s)) return false;
    return true;  // the byte is harmed here, too
  }
  const memra::Status s = memra::send_state(link, m.cache, tag(), &*tail, 4096);
  return expect(s.ok(), "the state to be taken", s);
}

inline bool receive_small(const std::string& mode, CudaDev& dev, NcclTransport& link) {
  memra::HandoverTarget<CudaDev> target;
  target.stages = {&dev};
  target.config = kernel_config(memra::Layout::split);
  target.max_ctx = 96;
  target.tag = tag();
  target.draft = drafter();
  if (mode == "refused") {
    const auto first = memra::receive_state(link, target);
    if (!expect(first.status().kind() == ErrorKind::bad_argument, "a refusal", first.status())) return false;
  }
  const auto begin = Clock::now();
  auto got = memra::receive_state(link, target);
  if (mode == "dies" || mode == "silent") {
    std::printf("after %.1f s: %s\n", ms_since(begin) / 1000, got.status().message().c_str());
    return expect(got.status().kind() == ErrorKind::link_failure, "a link_failure", got.status()) &&
           expect(memra::receive_state(link, target).status().kind() == ErrorKind::link_failure,
                  "the link to be over") &&
           expect(dev.zeros(1 << 20).ok() && dev.synchronize().ok(), "the device to be well");
  }
  if (mode == "harmed") return expect(got.status().kind() == ErrorKind::corrupt, "corrupt", got.status());
  if (!expect(got.ok(), "a state", got.status())) return false;
  KernelModel<CudaDev> plain(dev, 96, memra::Layout::split);
  for (std::size_t i = 0; i < rows; ++i) memra::check(plain.feed(1));
  bool same = expect(image(got->cache) == image(plain.cache), "the bits of a plain run");
  KernelModel<CudaDev> on(dev, std::move(got->cache));
  for (const std::size_t n : std::vector<std::size_t>{3, 8, 1}) {
    memra::check(on.feed(n));
    memra::check(plain.feed(n));
  }
  same = expect(image(on.cache) == image(plain.cache), "the bits of a plain run after going on") && same;
  auto kv = memra::DflashKv<CudaDev>::from_tail(dev, drafter(), 96, *got->tail);
  if (!expect(kv.has_value() && kv->len() == rows, "the drafter's tail")) return false;
  const std::vector<float> want = draft_rows();
  std::vector<float> x(want.size());
  for (std::size_t l = 0; l < 2; ++l) {
    memra::check(dev.download(reinterpret_cast<std::byte*>(x.data()), reinterpret_cast<const std::byte*>(kv->v(l)),
                              x.size() * 4));
    const std::size_t first = got->tail->base * 64;
    same = expect(std::equal(x.begin() + static_cast<std::ptrdiff_t>(first), x.end(),
                             want.begin() + static_cast<std::ptrdiff_t>(first)),
                  "the tail's rows") &&
           same;
  }
  return same;
}

// --- speed ---

constexpr std::size_t long_ctx = 32768;

/// 64 layers, every fourth of full attention: 4 kv heads of 256, q8_0/q5_1; the others of 48 value heads of 128.
inline memra::ModelConfig big_model() {
  memra::AttentionSpec a;
  a.n_heads = 24;
  a.n_kv_heads = 4;
  a.head_dim_k = a.head_dim_v = 256;
  memra::RecurrentSpec r;
  r.n_k_heads = 16;
  r.n_v_heads = 48;
  r.d_k = r.d_v = 128;
  r.d_conv = 4;
  memra::ModelConfig cfg;
  for (int i = 0; i < 64; ++i) cfg.layers.push_back(i % 4 == 3 ? memra::full_attention(a) : memra::recurrent(r));
  return cfg;
}

struct NoiseBody {
  std::uint64_t* words;
  std::uint64_t seed;
  MEMRA_HD void operator()(const memra::Item& item) const { words[item.x] = memra::detail::mix_word(seed, item.x); }
};
struct DifferBody {
  const std::uint64_t* a;
  const std::uint64_t* b;
  std::uint64_t* found;
  MEMRA_HD void operator()(const memra::Item& item) const {
    if (a[item.x] != b[item.x]) *found = item.x + 1;
  }
};

/// Calls f(address, bytes) for every K, V, conv and ssm as far as committed.
template <class F>
void each_run(Cache& c, const F& f) {
  std::uint64_t i = 0;
  for (std::size_t il = 0; il < c.n_layer(); ++il) {
    if (const auto kv = c.kv(il)) {
      for (const auto* plane : std::vector<const memra::ConstPlaneView*>{&kv->k, &kv->v}) {
        const memra::Segments runs = memra::segments(plane->shape, 0, long_ctx);
        for (std::size_t r = 0; r < runs.count; ++r) f(plane->data + runs[r].offset, runs[r].bytes, ++i);
      }
    } else {
      const auto r = *c.recur(il);
      f(reinterpret_cast<const std::byte*>(r.conv), r.conv_elems() * 4, ++i);
      f(reinterpret_cast<const std::byte*>(r.ssm), r.ssm_elems() * 4, ++i);
    }
  }
}

/// A cache at 32,768 tokens whose bytes are noise, the same wherever it is made.
inline Cache noisy(CudaDev& dev, std::size_t* bytes) {
  Cache c = memra::check(Cache::create(dev, big_model(), long_ctx + 256));
  auto step = memra::check(c.begin_step(long_ctx));
  for (std::size_t il = 0; il < 64; ++il) {
    if (il % 4 == 3) {
      memra::check(step.kv_write(il).status());
    } else {
      memra::check(step.recur(il).status());
    }
  }
  *bytes = 0;
  each_run(c, [&](const std::byte* at, std::size_t n, std::uint64_t seed) {
    auto* words = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(at));
    memra::check(memra::launch(dev, "noise", {n / 8, 1, 1}, NoiseBody{words, seed}));
    *bytes += n;
  });
  memra::check(c.advance());
  memra::check(dev.synchronize());
  return c;
}

inline bool same_noise(CudaDev& dev, Cache& got) {
  std::size_t bytes = 0;
  Cache want = noisy(dev, &bytes);
  std::vector<const std::byte*> ours;
  each_run(got, [&](const std::byte* at, std::size_t, std::uint64_t) { ours.push_back(at); });
  auto found = memra::check(dev.zeros(8));
  each_run(want, [&](const std::byte* at, std::size_t n, std::uint64_t i) {
    const DifferBody body{reinterpret_cast<const std::uint64_t*>(at),
                          reinterpret_cast<const std::uint64_t*>(ours[i - 1]),
                          reinterpret_cast<std::uint64_t*>(found.data())};
    memra::check(memra::launch(dev, "differ", {n / 8, 1, 1}, body));
  });
  std::uint64_t at = 1;
  memra::check(dev.download(reinterpret_cast<std::byte*>(&at), found.data(), 8));
  return got.pos() == long_ctx && at == 0;
}

constexpr int reps = 9;

inline bool bench(int rank, CudaDev& dev, NcclTransport& link) {
  auto word = memra::check(dev.zeros(256));
  const auto meet = [&] {  // both here
    memra::check(rank == 0 ? link.send(word.data(), 8) : link.receive(word.data(), 8));
    memra::check(link.flush());
    memra::check(rank == 1 ? link.send(word.data(), 8) : link.receive(word.data(), 8));
    memra::check(link.flush());
  };
  memra::HandoverTarget<CudaDev> target;
  target.stages = {&dev};
  target.config = big_model();
  target.max_ctx = long_ctx + 256;
  target.tag = tag();
  std::size_t bytes = 0;
  std::vector<double> whole;
  if (rank == 0) {
    Cache c = noisy(dev, &bytes);
    for (int i = 0; i < reps; ++i) {
      meet();
      const auto t = Clock::now();
      memra::check(memra::send_state(link, c, tag()));
      whole.push_back(ms_since(t));
    }
    std::printf("state: %zu tokens, %zu bytes\nhand-over, first: %.2f ms\n", c.pos(), bytes, whole[0]);
    whole.erase(whole.begin());
  } else {
    for (int i = 0; i < reps; ++i) {
      meet();
      auto got = memra::check(memra::receive_state(link, target));
      if (i == 0 && !expect(same_noise(dev, got.cache), "the received bytes to be the sender's")) return false;
    }
    Cache again = noisy(dev, &bytes);
  }
  std::vector<double> one;
  {
    auto buffer = memra::check(dev.alloc(bytes));
    memra::check(
        memra::launch(dev, "noise", {bytes / 8, 1, 1}, NoiseBody{reinterpret_cast<std::uint64_t*>(buffer.data()), 7}));
    for (int i = 0; i < reps; ++i) {
      meet();
      const auto t = Clock::now();
      memra::check(rank == 0 ? link.send(buffer.data(), bytes) : link.receive(buffer.data(), bytes));
      memra::check(link.flush());
      one.push_back(ms_since(t));
    }
    std::vector<double> sums;
    for (int i = 0; i < reps; ++i) {
      const std::vector<memra::detail::PlacedPiece<CudaDev>> piece = {{&dev, buffer.data(), bytes, 0, "x"}};
      const auto t = Clock::now();
      memra::check(
          memra::detail::checksums<CudaDev>(std::span<const memra::detail::PlacedPiece<CudaDev>>(piece)).status());
      sums.push_back(ms_since(t));
    }
    if (rank == 0) {
      const double gb = static_cast<double>(bytes) / 1e6;
      std::printf("hand-over over NCCL, median of %zu: %.2f ms, %.1f GB/s, checked on both sides\n", whole.size(),
                  median(whole), gb / median(whole));
      std::printf("NCCL send and receive of one buffer of as many bytes: %.2f ms, %.1f GB/s; ratio %.3f\n", median(one),
                  gb / median(one), median(one) / median(whole));
      std::printf("checksum of as many bytes: %.2f ms, %.1f GB/s\n", median(sums), gb / median(sums));
    }
  }
  return true;
}

/// One process with both GPUs: the link's own copy rate, and a prefix that goes over.
inline bool peer() {
  CudaDev a = gpu(0);
  CudaDev b = gpu(1);
  std::size_t bytes = 0;
  Cache c = noisy(a, &bytes);
  auto snap = memra::check(c.snapshot());
  auto prefix = memra::check(c.export_prefix(snap));
  std::vector<double> moved;
  for (int i = 0; i < reps; ++i) {
    memra::check(a.synchronize());
    memra::check(b.synchronize());
    const auto t = Clock::now();
    Cache there = memra::check(Cache::from_prefix(b, big_model(), long_ctx + 256, prefix));
    memra::check(b.synchronize());
    if (i != 0) moved.push_back(ms_since(t));
    if (i == 0 && !expect(same_noise(b, there), "the moved bytes to be the prefix's")) return false;
  }
  auto x = memra::check(a.alloc(bytes));
  auto z = memra::check(b.alloc(bytes));
  memra::check(b.copy_peer(z.data(), a, x.data(), bytes));  // opens the pools
  memra::check(b.synchronize());
  std::vector<double> raw;
  for (int i = 0; i < reps; ++i) {
    const auto t = Clock::now();
    if (cudaMemcpyPeerAsync(z.data(), 1, x.data(), 0, bytes, b.stream()) != cudaSuccess) return false;
    memra::check(b.synchronize());
    raw.push_back(ms_since(t));
  }
  const double gb = static_cast<double>(bytes) / 1e6;
  std::printf("cudaMemcpyPeerAsync of one buffer of as many bytes: %.2f ms, %.1f GB/s\n", median(raw),
              gb / median(raw));
  std::printf("from_prefix of the other GPU's prefix, one process: %.2f ms, %.1f GB/s; ratio %.3f\n", median(moved),
              gb / median(moved), median(raw) / median(moved));
  return true;
}

inline bool run(const std::string& mode, int rank, int id_pipe) {
  if (mode == "peer") return rank == 1 || peer();
  CudaDev dev = gpu(rank);
  ncclUniqueId id;
  if (rank == 0) {
    if (ncclGetUniqueId(&id) != ncclSuccess) return expect(false, "an id from NCCL");
    if (write(id_pipe, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) return false;
  } else if (read(id_pipe, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) {
    return false;
  }
  const bool ends = mode == "dies" || mode == "silent";
  // The first connection takes NCCL seconds.
  auto link = NcclTransport::connect(dev, id, rank, ends ? 8s : 30s);
  if (!expect(link.ok(), "a connection", link.status())) return false;
  if (mode == "bench") return bench(rank, dev, *link);
  return rank == 0 ? send_small(mode, dev, *link) : receive_small(mode, dev, *link);
}

/// Two processes; true if both (or the survivor) did as they must.
inline bool both(const std::string& mode) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  pid_t pids[2];
  for (int rank = 0; rank < 2; ++rank) {
    pids[rank] = fork();
    if (pids[rank] != 0) continue;
    const bool well = run(mode, rank, ends[rank == 0 ? 1 : 0]);
    std::fflush(stdout);
    _exit(well ? 0 : 1);
  }
  close(ends[0]);
  close(ends[1]);
  int status[2] = {};
  waitpid(pids[1], &status[1], 0);
  if (mode == "silent") kill(pids[0], SIGKILL);
  waitpid(pids[0], &status[0], 0);
  const bool alone = mode == "dies" || mode == "silent";
  const bool first = alone ? WIFSIGNALED(status[0]) && WTERMSIG(status[0]) == SIGKILL : status[0] == 0;
  const bool well = first && status[1] == 0;
  std::printf("nccl_two %s: %s\n", mode.c_str(), well ? "as expected" : "FAILED");
  std::fflush(stdout);
  return well;
}

inline int gpus() {
  const pid_t pid = fork();  // this process must not touch a GPU
  if (pid == 0) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
    _exit(n);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace nccl_two

int main(int argc, char** argv) {
  const int gpus = nccl_two::gpus();
  if (gpus < 2) {
    std::printf("SKIPPED HERE: the hand-over over NCCL: it needs two GPUs, this machine has %d\n", gpus);
    return 77;
  }
  std::vector<std::string> modes(argv + 1, argv + argc);
  if (modes.empty()) modes = {"whole", "refused", "harmed", "bench", "peer", "dies", "silent"};
  bool well = true;
  for (const std::string& mode : modes) well = nccl_two::both(mode) && well;
  return well ? 0 : 1;
}
