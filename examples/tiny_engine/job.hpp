// The main job: decode a prompt speculatively and plainly over memra's state, show the text, compare the outputs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <memra/plan.hpp>
#include <memra/round_types.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tiny_engine/decoder.hpp>
#include <tiny_engine/drafter.hpp>
#include <tiny_engine/model.hpp>
#include <tiny_engine/report.hpp>
#include <tiny_engine/state_bytes.hpp>
#include <tiny_engine/trunk.hpp>
#include <vector>

namespace tiny {

struct Job {
  std::vector<std::int32_t> prompt;
  std::size_t tokens = 200;
  memra::Format k = memra::Format::q8_0;
  memra::Format v = memra::Format::q5_1;
  bool draft = true;
  bool draft_ring = false;  ///< the draft KV keeps what its window needs, whatever the context
  std::size_t ctx = 0;      ///< 0: what the run needs, at most max_position_embeddings
  bool ignore_eos = false;
  /// How drafts are taken back, one run each; the first streams its text.
  std::vector<memra::Strategy> strategies = {memra::Strategy::automatic};
  bool print_ids = false;   ///< ids instead of bytes
  std::string logits_file;  ///< empty: none
};

/// Vocabularies whose first 256 ids are bytes: what this engine can turn into text without a tokenizer.
inline bool has_byte_vocabulary(const TrunkConfig& c) {
  return c.n_vocab >= 256 && c.n_vocab < 512;
}

namespace internal {

inline memra::Status unfit(const char* what, const std::string& sentence) {
  return memra::Status::failure(memra::ErrorKind::bad_argument, what, 0, 0, "%s", sentence.c_str());
}

/// The context of the run, checked against the model and the prompt.
inline memra::Result<std::size_t> context(const Job& job, const ModelFiles& files) {
  const std::size_t most = files.config.max_positions;
  const std::size_t block = job.draft && files.draft ? files.draft->config.block_size : 1;
  const std::size_t n = job.prompt.size();
  if (n == 0) return unfit("prompt", "the prompt is empty; expected at least one token");
  if (job.ctx > most) {
    return unfit("ctx", "a context of " + std::to_string(job.ctx) + " rows; this model's max_position_embeddings is " +
                            std::to_string(most));
  }
  const std::size_t ctx = job.ctx != 0 ? job.ctx : std::min(most, n + job.tokens + block - 1);
  if (n > ctx) {
    return unfit("prompt",
                 "the prompt has " + std::to_string(n) + " tokens; the context has room for " + std::to_string(ctx));
  }
  return ctx;
}

/// Tokens as they come: bytes of text, or ids.
inline void show(std::span<const std::int32_t> tokens, bool ids) {
  for (const std::int32_t t : tokens) {
    if (ids) {
      std::printf("%d ", t);
    } else if (t < 256) {
      std::putchar(static_cast<int>(t));
    }
  }
  std::fflush(stdout);
}

/// Raw little-endian f32 rows.
class LogitsFile {
 public:
  explicit LogitsFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    out_.open(path, std::ios::binary | std::ios::trunc);
    if (!out_) memra::check(unfit("logits", "cannot write " + path));
  }
  void add(std::span<const float> rows) {
    for (const float f : rows) {
      const std::uint32_t u = float_bits(f);
      const char bytes[4] = {static_cast<char>(u & 0xff), static_cast<char>(u >> 8 & 0xff),
                             static_cast<char>(u >> 16 & 0xff), static_cast<char>(u >> 24)};
      out_.write(bytes, 4);
    }
    out_.flush();  // a full disk is known before anything is decoded
    if (!out_) memra::check(unfit("logits", "could not write all of " + path_));
  }
  bool wanted() const { return !path_.empty(); }

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace internal

/// One speculative decoding: a cache that paid for its strategy, a drafter, and what came of it.
template <class Dev>
struct SpeculativeRun {
  memra::Cache<Dev> cache;
  Drafter<Dev> drafter;
  Generated generated = {};
  TrunkTimes times = {};

  static memra::Result<SpeculativeRun> create(memra::Strategy by, const ModelFiles& files, std::span<Dev* const> stages,
                                              std::span<const std::size_t> fence, const memra::ModelConfig& state,
                                              std::size_t ctx, bool ring, Trunk<Dev>& trunk) {
    memra::CacheOptions options;
    options.rounds.rows = files.draft->config.block_size;
    options.rounds.replay = by == memra::Strategy::replay;
    options.rounds.planes = by == memra::Strategy::planes;
    options.rounds.stash = by == memra::Strategy::stash;
    auto cache = memra::Cache<Dev>::create_ppn(stages, fence, state, ctx, options);
    if (!cache) return cache.status();
    auto drafter = Drafter<Dev>::create(files.draft->config, files.draft->weights, trunk, ctx, ring);
    if (!drafter) return drafter.status();
    return SpeculativeRun{*std::move(cache), *std::move(drafter)};
  }
};

/// Runs the job on the devices of `stages`, one per pipeline stage (they may be one object).
///
/// @return 0, or 1 if an output differs from the plain one. Throws memra::Error for whatever stops the run
template <class Dev>
int run_job(const Job& job, const ModelFiles& files, std::span<Dev* const> stages) {
  const std::size_t ctx = memra::check(internal::context(job, files));
  internal::LogitsFile logits(job.logits_file);
  memra::check(Trunk<Dev>::check_files(files.config, files.weights));
  if (files.draft) memra::check(Drafter<Dev>::check_files(files.draft->config, files.draft->weights));
  const memra::ModelConfig state = state_config(files.config, job.k, job.v);
  const std::vector<std::size_t> fence = memra::pp_cuts(state.layers.size(), stages.size());
  const bool drafting = job.draft && files.draft.has_value();
  // Plain decoding has a cache of its own, so that the states can be compared at the end.
  auto plain_cache = memra::check(memra::Cache<Dev>::create_ppn(stages, fence, state, ctx));
  TrunkOptions options;
  if (drafting) options.max_rows = std::max(options.max_rows, files.draft->config.block_size);
  auto trunk = memra::check(Trunk<Dev>::create(files.config, files.weights, plain_cache, options));

  std::function<void(std::span<const float>)> on_logits;
  if (logits.wanted()) on_logits = [&](std::span<const float> rows) { logits.add(rows); };
  GenerateOptions generate;
  generate.max_tokens = job.tokens;
  generate.ignore_eos = job.ignore_eos;
  generate.on_tokens = [&](std::span<const std::int32_t> t) { internal::show(t, job.print_ids); };

  internal::show(job.prompt, job.print_ids);
  // Whoever comes first streams; the other runs are quiet.
  std::vector<SpeculativeRun<Dev>> runs;
  for (const memra::Strategy by : drafting ? job.strategies : std::vector<memra::Strategy>{}) {
    runs.push_back(
        memra::check(SpeculativeRun<Dev>::create(by, files, stages, fence, state, ctx, job.draft_ring, trunk)));
    SpeculativeRun<Dev>& run = runs.back();
    Decoder<Dev> decoder(trunk, run.cache, &run.drafter);
    decoder.prime(job.prompt, 0, on_logits);
    trunk.clear_times();
    generate.strategy = by;
    run.generated = decoder.speculative(generate);
    run.times = trunk.times();
    generate.on_tokens = {};
    on_logits = {};
  }
  Decoder<Dev> decoder(trunk, plain_cache);
  decoder.prime(job.prompt, 0, on_logits);
  trunk.clear_times();
  const Generated plain = decoder.plain(generate);

  const memra::PlanTotals& bytes = plain_cache.plan().totals;
  std::printf("\n\n%-12s %zu layers, %zu rows of context in %zu stage(s), KV %s/%s\n", "model", files.config.n_layers(),
              ctx, stages.size(), std::string(memra::to_string(job.k)).c_str(),
              std::string(memra::to_string(job.v)).c_str());
  std::printf("%-12s K %zu, V %zu, conv %zu, ssm %zu, positions %zu, pads %zu: %zu bytes in all; %zu per token\n",
              "state", bytes.k_bytes, bytes.v_bytes, bytes.conv_bytes, bytes.ssm_bytes, bytes.mirror_bytes,
              bytes.tail_pad_bytes + bytes.pad_bytes, bytes.total_bytes, bytes.bytes_per_token);
  if (!runs.empty()) {
    std::printf("%-12s snapshot %zu, draft KV %zu bytes\n", "", bytes.snapshot_bytes,
                runs.front().drafter.kv().plan().total_bytes);
  }
  print_rate("plain", plain);
  print_shares("  of it", plain, trunk.times());
  if (plain.tokens.size() < job.tokens) {
    const bool full = plain_cache.pos() == plain_cache.max_ctx();
    std::printf("%-12s after %zu tokens: %s\n", "stopped", plain.tokens.size(),
                full ? "the context is full" : "the text ended");
  }
  if (runs.empty()) {
    std::printf("%-12s off%s; there is one output and nothing to compare\n", "drafting",
                job.draft ? ": the model folder has no draft/" : "");
    return 0;
  }
  bool identical = true;
  for (const SpeculativeRun<Dev>& run : runs) {
    print_rate("speculative", run.generated);
    print_shares("  of it", run.generated, run.times);
    print_rounds("  rounds", run.generated, run.cache.plan().round);
    const Verdict verdict =
        compare(plain.tokens, run.generated.tokens, committed_bytes(plain_cache), committed_bytes(run.cache));
    std::printf("%-12s %s\n", "verdict", verdict.sentence.c_str());
    identical = identical && verdict.identical;
  }
  return identical ? 0 : 1;
}

}  // namespace tiny
