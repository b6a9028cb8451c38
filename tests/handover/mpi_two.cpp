// usage: mpirun -n 2 mpi_two whole | refused | harmed | dies | silent
// Rank 0 prefills and sends, rank 1 receives and decodes on. Prints "as expected" if what must happen happened:
// mpirun's exit status says little when a process has died.
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <handover/prefilled.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/mpi/transport.hpp>
#include <string>
#include <support/stand_in.hpp>
#include <thread>
#include <vector>

namespace {

using namespace memra_test;
using namespace std::chrono_literals;
using memra::ErrorKind;
using memra::HostDev;

constexpr auto limit = 3s;

/// The real link, until so many bytes were sent; then what the mode says.
struct DoomedLink {
  memra::MpiTransport* link;
  std::size_t left;
  std::string mode;
  std::chrono::milliseconds limit() const noexcept { return link->limit(); }
  memra::Status send(const std::byte* data, std::size_t n) noexcept {
    if (n <= left) {
      left -= n;
      return link->send(data, n);
    }
    if (mode == "harmed") {
      left = static_cast<std::size_t>(-1);
      std::vector<std::byte> copy(data, data + n);
      copy[n / 2] ^= std::byte{0x40};
      return link->send(copy.data(), n);
    }
    static_cast<void>(link->flush().ok());
    if (mode == "dies") std::raise(SIGKILL);
    std::this_thread::sleep_for(60s);  // longer than anybody waits; the survivor ends us
    return {};
  }
  memra::Status receive(std::byte* data, std::size_t n) noexcept { return link->receive(data, n); }
  memra::Status flush() noexcept { return link->flush(); }
};

bool says(const memra::Status& s, ErrorKind kind, const char* words) {
  return s.kind() == kind && std::string(s.text()).find(words) != std::string::npos;
}
bool expect(bool holds, const char* what, const memra::Status& s = {}) {
  if (!holds) std::fprintf(stderr, "mpi_two: expected %s; got: %s\n", what, s.message().c_str());
  return holds;
}

/// Enough rows that the state is many chunks of the transport.
constexpr std::size_t rows = 3000;
memra::ModelConfig model() {
  memra::ModelConfig cfg = hybrid_model();
  for (int i = 0; i < 6; ++i) cfg.layers.push_back(memra::full_attention(attention_spec(memra::Format::f32)));
  return cfg;
}

bool sender(const std::string& mode, memra::MpiTransport& link) {
  HostDev dev;
  const auto cfg = model();
  Prefilled<HostDev> p({&dev}, {0, cfg.layers.size()}, cfg, rows, rows + 8);
  if (mode != "whole") {
    DoomedLink doomed{&link, std::size_t{3} << 20, mode};
    const bool other = mode == "refused";
    const memra::Status s = memra::send_state(doomed, p.cache, tag_of(other ? 2 : 1), &*p.tail);
    const char* words = other ? "the receiver refused: the stream is of a model with another" : "refused: piece ";
    if (!expect(says(s, other ? ErrorKind::bad_argument : ErrorKind::corrupt, words), "a refusal", s)) return false;
  }
  const memra::Status s = memra::send_state(link, p.cache, tag_of(), &*p.tail);  // the link outlives a refusal
  return expect(s.ok(), "the state to be taken", s);
}

bool receiver(const std::string& mode, memra::MpiTransport& link) {
  HostDev dev[2];
  const auto cfg = model();
  auto target = target_of<HostDev>({&dev[0], &dev[1]}, {0, 5, cfg.layers.size()}, cfg);
  target.max_ctx = rows + 20;
  const auto begin = std::chrono::steady_clock::now();
  auto got = memra::receive_state(link, target);
  if (mode == "dies" || mode == "silent") {
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("mpi_two: rank 1 after %.1f s: %s\n", waited, got.status().message().c_str());
    return expect(got.status().kind() == ErrorKind::link_failure, "a link_failure", got.status()) &&
           expect(memra::receive_state(link, target).status().kind() == ErrorKind::link_failure, "the link to be over");
  }
  if (mode != "whole") {
    const bool other = mode == "refused";
    if (!expect(says(got.status(), other ? ErrorKind::bad_argument : ErrorKind::corrupt,
                     other ? "fingerprint" : "arrived with other bytes"),
                "a refusal", got.status())) {
      return false;
    }
    got = memra::receive_state(link, target);
  }
  if (!expect(got.ok(), "a state", got.status())) return false;
  const auto tokens = stream(rows + 6);
  std::vector<float> logits(cfg.n_vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 0.25F * static_cast<float>(i) - 1;
  const std::string wrong = wrong_with(*got, cfg, tokens, logits, true, rows);
  if (!wrong.empty()) std::fprintf(stderr, "mpi_two: the received state is wrong: %s\n", wrong.c_str());
  return wrong.empty();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = -1;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::string mode = argc > 1 ? argv[1] : "";
  if (size != 2 || mode.empty()) {
    std::fprintf(stderr, "usage: mpirun -n 2 mpi_two whole|refused|harmed|dies|silent\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  bool well = false;
  {
    auto link = memra::check(memra::MpiTransport::create(MPI_COMM_WORLD, 1 - rank, limit));
    well = rank == 0 ? sender(mode, link) : receiver(mode, link);
  }
  if (rank == 1) std::printf("mpi_two %s: %s\n", mode.c_str(), well ? "as expected" : "FAILED");
  std::fflush(stdout);
  // MPI_Finalize would wait for a peer that is gone.
  if (!well || mode == "dies" || mode == "silent") MPI_Abort(MPI_COMM_WORLD, well ? 0 : 1);
  MPI_Finalize();
  return 0;
}
