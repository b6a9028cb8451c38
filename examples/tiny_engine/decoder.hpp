// Greedy decoding of one sequence, plain and speculative, over a trunk, its cache and, for speculation, a drafter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <memra/round_cost.hpp>
#include <memra/round_types.hpp>
#include <memra/speculation.hpp>
#include <optional>
#include <span>
#include <tiny_engine/drafter.hpp>
#include <tiny_engine/stage.hpp>
#include <tiny_engine/trunk.hpp>
#include <vector>

namespace tiny {

struct GenerateOptions {
  std::size_t max_tokens = 0;
  bool ignore_eos = false;
  memra::DraftArm arm = memra::DraftArm::clip;
  memra::Strategy strategy = memra::Strategy::automatic;         ///< of taking drafts back
  std::function<void(std::span<const std::int32_t>)> on_tokens;  ///< called with what was just committed
};

/// What a generation did. Times are host seconds.
struct Generated {
  std::vector<std::int32_t> tokens;  ///< committed, EOS included
  std::vector<std::size_t> rounds;   ///< speculative: tokens committed per round
  std::size_t trunk_calls = 0;       ///< forwards after the prompt
  std::size_t replayed = 0;          ///< rows fed again after a rollback
  double seconds = 0;                ///< without the prompt and without on_tokens
  double draft = 0;
  double verify = 0;  ///< plain: the forwards
  double replay = 0;
  double ingest = 0;
  double state = 0;             ///< speculative: begin and commit of the rounds; plain: see TrunkTimes::state
  double commit = 0;            ///< of it: commits, with what the caches' devices did in them
  std::size_t state_bytes = 0;  ///< recurrent state moved by the rounds: round_traffic
  memra::Strategy strategy = memra::Strategy::automatic;  ///< by which the rounds ran
};

/// One sequence: runs trunk and drafter over what memra::Speculation keeps together, or the trunk alone over its cache.
/// Throws memra::Error; to go on after one, roll the cache back to a snapshot (or reset it), truncate the drafter's KV
/// to the same position, and say what comes next with set_next.
template <class Dev>
class Decoder {
 public:
  /// @param drafter  nullptr: plain decoding only. All must outlive the decoder
  Decoder(Trunk<Dev>& trunk, memra::Cache<Dev>& cache, Drafter<Dev>* drafter = nullptr)
      : trunk_(&trunk), cache_(&cache), drafter_(drafter) {
    if (drafter_ == nullptr) return;
    const DraftConfig& c = drafter_->config();
    spec_.emplace(memra::check(memra::Speculation<Dev>::create(cache, drafter_->kv(), c.target_layers, c.hidden,
                                                               std::max(trunk.max_rows(), c.block_size))));
  }

  memra::Cache<Dev>& cache() noexcept { return *cache_; }
  /// The next token: decided by the last logits, not yet in the cache.
  std::int32_t next() const noexcept { return next_; }
  /// For a cache restored elsewhere: the token its logits decide.
  void set_next(std::int32_t token) noexcept { next_ = token; }

  /// Feeds a prompt (or more of it) in chunks of at most max_rows (the trunk's, and what the drafter's KV takes at a
  /// time), commits it, and ingests its taps.
  /// @param on_logits  if set, receives the logits of every chunk, [rows][n_vocab] on the host
  void prime(std::span<const std::int32_t> prompt, std::size_t chunk = 0,
             const std::function<void(std::span<const float>)>& on_logits = {}) {
    if (chunk == 0 || chunk > trunk_->max_rows()) chunk = trunk_->max_rows();
    if (drafter_ != nullptr) chunk = std::min(chunk, drafter_->kv().max_rows());
    while (!prompt.empty()) {
      const std::size_t t = std::min(chunk, prompt.size());
      const bool last = t == prompt.size();
      feed(prompt.first(t), on_logits ? 0 : last ? t - 1 : t, ingest_of_prompt_);
      if (on_logits) {
        const std::vector<float> rows = trunk_->logits();
        on_logits(rows);
      }
      if (last) next_ = trunk_->choices().back();
      prompt = prompt.subspan(t);
    }
  }

  /// One token per forward. Stops at EOS, after max_tokens, or when the context is full.
  Generated plain(const GenerateOptions& o) {
    Generated g;
    double output = 0;
    {
      const Timed all(g.seconds);
      while (g.tokens.size() < o.max_tokens && cache_->pos() < cache_->max_ctx()) {
        const std::int32_t token = next_;
        {
          const Timed timed(g.verify);
          feed({&token, 1}, 0, g.ingest);
          next_ = trunk_->choices().front();
        }
        ++g.trunk_calls;
        g.tokens.push_back(token);
        {
          const Timed timed(output);
          if (o.on_tokens) o.on_tokens({&token, 1});
        }
        if (ends(token, o)) break;
      }
    }
    g.seconds -= output;
    return g;
  }

  /// Blocks of the drafter, verified by the trunk; the same tokens as plain(), in fewer forwards.
  /// @pre made with a drafter
  Generated speculative(const GenerateOptions& o) {
    Generated g;
    double output = 0;
    {
      const Timed all(g.seconds);
      bool ended = false;
      while (!ended && g.tokens.size() < o.max_tokens && cache_->pos() < cache_->max_ctx()) {
        ended = round(o, o.max_tokens - g.tokens.size(), g);
        const Timed timed(output);
        if (o.on_tokens) o.on_tokens(std::span<const std::int32_t>(g.tokens).last(g.rounds.back()));
      }
    }
    g.seconds -= output;
    return g;
  }

 private:
  bool ends(std::int32_t token, const GenerateOptions& o) const {
    return !o.ignore_eos && trunk_->config().is_eos(token);
  }

  /// Tokens that stay: forward, and their rows in the drafter's KV.
  void feed(std::span<const std::int32_t> tokens, std::size_t first_logits, double& ingest_time) {
    if (!spec_) return trunk_->forward(*cache_, tokens, first_logits);
    memra::Step<Dev> step = memra::check(spec_->begin_step(tokens.size()));
    trunk_->run(*cache_, step, tokens, first_logits);
    write_rows(tokens.size(), ingest_time);
    memra::check(spec_->advance());
  }

  void write_rows(std::size_t n, double& ingest_time) {
    const Timed timed(ingest_time);
    const auto open = memra::check(spec_->open_rows(n));
    drafter_->write(open.rows, open.taps);
  }

  /// @return true if the text ends
  bool round(const GenerateOptions& o, std::size_t budget, Generated& g) {
    // A block near the end of the context is shorter. An anchor that ends the text needs no drafts.
    std::size_t b = std::min(drafter_->config().block_size, cache_->max_ctx() - cache_->pos());
    b = std::min(b, trunk_->max_rows());
    if (ends(next_, o)) b = 1;
    std::vector<std::int32_t> block = {next_};
    {
      const Timed timed(g.draft);
      const std::vector<std::int32_t> drafts = drafter_->propose(next_, b, o.arm);
      block.insert(block.end(), drafts.begin(), drafts.end());
    }
    std::optional<memra::Step<Dev>> step;
    {
      const Timed timed(g.state);
      step.emplace(memra::check(spec_->begin_round(b, o.strategy)));
      g.strategy = spec_->strategy();
    }
    std::vector<std::int32_t> choice;
    {
      const Timed timed(g.verify);
      trunk_->run(*cache_, *step, block, 0);
      choice = trunk_->choices();
    }
    ++g.trunk_calls;
    const memra::Accepted a =
        memra::accept_greedy(block, choice, budget, [&](std::int32_t token) { return ends(token, o); });
    write_rows(a.keep, g.ingest);
    memra::RolledBack left;
    {
      const Timed timed(g.state);
      const Timed committing(g.commit);
      left = memra::check(spec_->commit(a.keep, a.next));
    }
    const std::span<const std::int32_t> kept = std::span<const std::int32_t>(block).first(a.keep);
    if (left.replay != 0) {
      const Timed timed(g.replay);
      trunk_->forward(*cache_, kept.last(left.replay), left.replay);
      ++g.trunk_calls;
      g.replayed += left.replay;
    }
    next_ = a.next;
    g.state_bytes += memra::round_traffic(cache_->plan(), g.strategy, b, a.keep);
    g.rounds.push_back(a.keep);
    g.tokens.insert(g.tokens.end(), kept.begin(), kept.end());
    return a.ended;
  }

  Trunk<Dev>* trunk_;
  memra::Cache<Dev>* cache_;
  Drafter<Dev>* drafter_;
  std::optional<memra::Speculation<Dev>> spec_;  // with a drafter
  std::int32_t next_ = 0;
  double ingest_of_prompt_ = 0;
};

}  // namespace tiny
