// spec_decode: a hybrid model decodes a prompt speculatively and plainly on memra's state, and both outputs must agree.
#if defined(MEMRA_SPEC_DECODE_HIP)  // the program spec_decode_hip: this file, read by a HIP compiler
// First: what comes before it takes std::memcpy for the host's alone, and knows no threads.
#include <memra/hip/ops.hip.hpp>
#endif

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/round_types.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <tiny_engine/ids.hpp>
#include <tiny_engine/job.hpp>
#include <tiny_engine/model.hpp>
#include <vector>
#if defined(MEMRA_SPEC_DECODE_CUDA)  // the program spec_decode_cuda: this file, read by nvcc
#include <memra/cuda/ops.cuh>
#endif

namespace {

/// Flags as text; what they mean is checked below, each refusal in one sentence.
struct Flags {
  std::string prompt = "Ps23:1 The LORD is my";
  std::string tokens = "200";
  std::string kv = "q8_0/q5_1";
  std::string draft = "on";
  std::string strategy = "automatic";
  std::string device = "host";
  std::string model = MEMRA_DEFAULT_MODEL;
  std::string stages = "1";
  std::string ctx = "0";
  std::string ids;
  std::string logits;
  bool ignore_eos = false;
  bool draft_ring = false;
};

[[noreturn]] void refuse(const std::string& sentence) {
  throw std::invalid_argument(sentence);
}

std::size_t number(const char* flag, const std::string& text, std::size_t lo, std::size_t hi) {
  std::size_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < lo || n > hi) {
    refuse(std::string(flag) + " is " + tiny::in_quotes(text) + "; expected a whole number from " + std::to_string(lo) +
           " to " + std::to_string(hi));
  }
  return n;
}

/// "q8_0/q5_1" -> K and V.
void read_kv(const std::string& text, tiny::Job& job) {
  const std::size_t slash = text.find('/');
  const auto k = memra::parse_format(std::string_view(text).substr(0, slash));
  const auto v = memra::parse_format(slash == std::string::npos ? text : std::string_view(text).substr(slash + 1));
  if (!k || !v) {
    std::string names;
    for (const memra::Format f : memra::all_formats) names += " " + std::string(memra::to_string(f));
    refuse("--kv is " + tiny::in_quotes(text) + "; expected K/V of" + names);
  }
  job.k = *k;
  job.v = *v;
}

std::vector<memra::Strategy> read_strategies(const std::string& text) {
  using memra::Strategy;
  if (text == "all") return {Strategy::replay, Strategy::planes, Strategy::stash};
  for (const Strategy s : {Strategy::automatic, Strategy::replay, Strategy::planes, Strategy::stash}) {
    if (text == memra::to_string(s)) return {s};
  }
  refuse("--strategy is " + tiny::in_quotes(text) + "; expected automatic, replay, planes, stash or all");
}

/// The token ids in a file.
std::vector<std::int32_t> read_ids(const std::string& path, std::size_t n_vocab) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse("--ids: cannot read " + path);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) refuse("--ids: cannot read all of " + path);
  auto ids = tiny::parse_ids(text, n_vocab);
  if (!ids) refuse(ids.status().text());
  return *std::move(ids);
}

/// What this run reads is mapped into memory: writing over it would take it away while it is used.
void refuse_to_overwrite(const Flags& f) {
  namespace fs = std::filesystem;
  const auto is = [&](const fs::path& read) {
    std::error_code e;
    return fs::equivalent(read, f.logits, e);
  };
  if (!f.ids.empty() && is(f.ids)) refuse("--logits is the file of --ids; expected another one");
  std::error_code e;
  for (fs::recursive_directory_iterator at(f.model, e), end; !e && at != end; at.increment(e)) {
    if (is(at->path())) refuse("--logits is a file of the model, " + f.logits + "; expected another one");
  }
}

tiny::Job make_job(const Flags& f, const CLI::App& app, const tiny::ModelFiles& files) {
  constexpr std::size_t most = std::size_t{1} << 30;
  tiny::Job job;
  job.tokens = number("--tokens", f.tokens, 0, most);
  if (app.count("--ctx") != 0) job.ctx = number("--ctx", f.ctx, 1, most);
  read_kv(f.kv, job);
  if (f.draft != "on" && f.draft != "off") refuse("--draft is " + tiny::in_quotes(f.draft) + "; expected on or off");
  job.draft = f.draft == "on";
  job.draft_ring = f.draft_ring;
  job.strategies = read_strategies(f.strategy);
  job.ignore_eos = f.ignore_eos;
  if (!f.logits.empty()) refuse_to_overwrite(f);
  job.logits_file = f.logits;
  if (app.count("--ids") != 0) {
    if (app.count("--prompt") != 0) refuse("--ids and --prompt were both given; expected one of them");
    job.prompt = read_ids(f.ids, files.config.n_vocab);
    job.print_ids = true;
  } else if (!tiny::has_byte_vocabulary(files.config)) {
    refuse("this model's vocabulary of " + std::to_string(files.config.n_vocab) +
           " is not bytes; give the prompt's token ids with --ids");
  } else {
    for (const char c : f.prompt) job.prompt.push_back(static_cast<unsigned char>(c));
  }
  return job;
}

/// The job on as many device objects as there are stages: `make(s, n)` gives that of stage s of n.
template <class Dev, class Make>
int run_on(const Flags& f, const CLI::App& app, const Make& make) {
  const tiny::ModelFiles files = memra::check(tiny::load_model(f.model));
  const tiny::Job job = make_job(f, app, files);
  // Every stage is a device of its own, as it would be with real ones.
  const std::size_t n = number("--stages", f.stages, 1, files.config.n_layers());
  std::vector<std::unique_ptr<Dev>> devs;
  std::vector<Dev*> stages;
  for (std::size_t s = 0; s < n; ++s) {
    devs.push_back(std::make_unique<Dev>(make(s, n)));
    stages.push_back(devs.back().get());
  }
  return tiny::run_job<Dev>(job, files, stages);
}

#if defined(MEMRA_SPEC_DECODE_CUDA)
/// Consecutive stages on consecutive GPUs; they share GPUs where there are fewer. Says which is where.
int run_on_gpus(const Flags& f, const CLI::App& app) {
  int here = 0;
  if (cudaGetDeviceCount(&here) != cudaSuccess || here < 1) here = 1;  // creating a device says what is wrong
  const auto gpus = static_cast<std::size_t>(here);
  std::string places;
  const int verdict = run_on<memra::CudaDev>(f, app, [&](std::size_t s, std::size_t n) {
    memra::CudaDev::Options options;
    options.ordinal = static_cast<int>(n < gpus ? s : s * gpus / n);
    places += (s == 0 ? "stage " : ", stage ") + std::to_string(s) + " on GPU " + std::to_string(options.ordinal);
    return memra::check(memra::CudaDev::create(options));
  });
  std::printf("%-12s %s; GPUs here: %zu\n", "devices", places.c_str(), gpus);
  return verdict;
}
#endif

int run(const Flags& f, const CLI::App& app) {
  if (f.device == "host") {
    return run_on<memra::HostDev>(f, app, [](std::size_t, std::size_t) { return memra::HostDev(); });
  }
#if defined(MEMRA_SPEC_DECODE_CUDA)
  if (f.device == "cuda") return run_on_gpus(f, app);
  refuse("--device is " + tiny::in_quotes(f.device) + "; expected host or cuda");
#elif defined(MEMRA_SPEC_DECODE_HIP)
  if (f.device == "hip") {
    return run_on<memra::HipDev>(f, app,
                                 [](std::size_t, std::size_t) { return memra::check(memra::HipDev::create()); });
  }
  refuse("--device is " + tiny::in_quotes(f.device) + "; expected host or hip");
#else
  refuse("--device is " + tiny::in_quotes(f.device) + "; this program was built with host only");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  Flags f;
  CLI::App app{"Decodes a prompt speculatively and plainly on memra's state; exit status 1 if the outputs differ."};
  app.add_option("--prompt", f.prompt, "text to continue")->capture_default_str();
  app.add_option("--tokens", f.tokens, "tokens to generate; 0 only primes")->capture_default_str();
  app.add_option("--kv", f.kv, "formats of K and V: f32 f16 bf16 q8_0 q5_1 q4_0 fp8")->capture_default_str();
  app.add_option("--draft", f.draft, "on or off")->capture_default_str();
  app.add_flag("--draft-ring", f.draft_ring, "the drafter keeps rows for its window only, however long the text");
  app.add_option("--strategy", f.strategy,
                 "how drafts are taken back: automatic, replay, planes, stash, or all in turn")
      ->capture_default_str();
  app.add_option("--device", f.device, "host")->capture_default_str();
  app.add_option("--model", f.model, "folder with config.json, model.safetensors and, for drafting, draft/")
      ->capture_default_str();
  app.add_option("--stages", f.stages, "pipeline stages, each a device of its own")->capture_default_str();
  app.add_option("--ctx", f.ctx, "rows of context; default: what the run needs");
  app.add_option("--ids", f.ids, "file of token ids instead of a prompt; ids are printed then");
  app.add_option("--logits", f.logits, "file for the prompt's logits: little-endian f32 [positions][vocabulary]");
  app.add_flag("--ignore-eos", f.ignore_eos, "go on after the end of the text");
  try {
    app.parse(argc, argv);
    const int verdict = run(f, app);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) refuse("could not write all of the standard output");
    return verdict;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    std::fflush(stdout);
    std::fprintf(stderr, "spec_decode: %s\n", e.what());
  } catch (const memra::Error& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "spec_decode: %s\n", e.what());
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "spec_decode: %s\n", e.what());
  }
  return 2;
}
