// Greedy decoding of one sequence, plain and speculative, over a trunk, its cache and, for speculation, a drafter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <optional>
#include <span>
#include <tiny_engine/drafter.hpp>
#include <tiny_engine/stage.hpp>
#include <tiny_engine/trunk.hpp>
#include <utility>
#include <vector>

namespace tiny {

struct GenerateOptions {
  std::size_t max_tokens = 0;
  bool ignore_eos = false;
  memra::DraftArm arm = memra::DraftArm::clip;
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
  double state = 0;  ///< snapshot_into, rollback, tap sink; begin and advance are in TrunkTimes::state
};

/// One sequence. The invariant after every round: cache.pos() == cache.len() == prompt + committed tokens, and so is
/// the drafter's length. Throws memra::Error; to go on after one, roll the cache back to a snapshot (or reset it),
/// truncate the drafter's KV to the same position, and say what comes next with set_next.
template <class Dev>
class Decoder {
 public:
  /// @param drafter  nullptr: plain decoding only. All must outlive the decoder
  Decoder(Trunk<Dev>& trunk, memra::Cache<Dev>& cache, Drafter<Dev>* drafter = nullptr)
      : trunk_(&trunk), cache_(&cache), drafter_(drafter) {
    if (drafter_ == nullptr) return;
    sink_.emplace(memra::check(make_sink()));
  }

  memra::Cache<Dev>& cache() noexcept { return *cache_; }
  /// The next token: decided by the last logits, not yet in the cache.
  std::int32_t next() const noexcept { return next_; }
  /// For a cache restored elsewhere: the token its logits decide.
  void set_next(std::int32_t token) noexcept { next_ = token; }

  /// Feeds a prompt (or more of it) in chunks of at most max_rows, commits it, and ingests its taps.
  /// @param on_logits  if set, receives the logits of every chunk, [rows][n_vocab] on the host
  void prime(std::span<const std::int32_t> prompt, std::size_t chunk = 0,
             const std::function<void(std::span<const float>)>& on_logits = {}) {
    if (chunk == 0 || chunk > trunk_->max_rows()) chunk = trunk_->max_rows();
    while (!prompt.empty()) {
      const std::size_t t = std::min(chunk, prompt.size());
      const bool last = t == prompt.size();
      tapped([&] { trunk_->forward(*cache_, prompt.first(t), on_logits ? 0 : last ? t - 1 : t); }, ingest_of_prompt_);
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
          tapped([&] { trunk_->forward(*cache_, {&token, 1}, 0); }, g.ingest);
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
    if (!snapshot_) snapshot_.emplace(memra::check(cache_->snapshot()));
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

  memra::Result<memra::DflashTapSink<Dev>> make_sink() const {
    return drafter_->make_sink(std::max(trunk_->max_rows(), drafter_->config().block_size));
  }

  /// Arms the tap sink at the cache's position. A call that threw may have left it in the cache: it is taken back
  /// first.
  void arm() {
    if (!sink_) sink_ = cache_->take_taps();
    if (!sink_) sink_.emplace(memra::check(make_sink()));
    memra::check(cache_->arm_taps(*std::exchange(sink_, std::nullopt)));
  }

  /// Runs `f` with the tap sink armed, then ingests what it committed.
  template <class F>
  void tapped(const F& f, double& ingest_time) {
    if (drafter_ == nullptr) return f();
    arm();
    f();
    sink_ = cache_->take_taps();
    const Timed timed(ingest_time);
    drafter_->ingest(sink_->data(), sink_->rows());
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
    {
      const Timed timed(g.state);
      memra::check(cache_->snapshot_into(*snapshot_));
      arm();
    }
    std::vector<std::int32_t> choice;
    {
      const Timed timed(g.verify);
      trunk_->forward(*cache_, block, 0);
      choice = trunk_->choices();
    }
    ++g.trunk_calls;

    std::size_t keep = 1;
    while (keep < b && block[keep] == choice[keep - 1]) ++keep;
    // What the caller does not get is not committed either: the state always stands where the text does.
    keep = std::min(keep, budget);
    bool ended = false;
    for (std::size_t i = 0; i < keep && !ended; ++i) {
      if (ends(block[i], o)) {
        keep = i + 1;
        ended = true;
      }
    }
    next_ = choice[keep - 1];

    std::size_t replay = 0;
    {
      const Timed timed(g.state);
      if (keep < b) replay = memra::check(cache_->rollback(*snapshot_, keep)).replay;
      sink_ = cache_->take_taps();  // rows of the accepted tokens: the replay need not compute them again
    }
    if (replay != 0) {
      const Timed timed(g.replay);
      trunk_->forward(*cache_, std::span<const std::int32_t>(block).subspan(keep - replay, replay), replay);
      ++g.trunk_calls;
      g.replayed += replay;
    }
    {
      const Timed timed(g.ingest);
      drafter_->ingest(sink_->data(), sink_->rows());
    }
    g.rounds.push_back(keep);
    g.tokens.insert(g.tokens.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(keep));
    return ended;
  }

  Trunk<Dev>* trunk_;
  memra::Cache<Dev>* cache_;
  Drafter<Dev>* drafter_;
  std::optional<memra::DflashTapSink<Dev>> sink_;
  std::optional<memra::CacheSnapshot<Dev>> snapshot_;
  std::int32_t next_ = 0;
  double ingest_of_prompt_ = 0;
};

}  // namespace tiny
