// What the flags ask for, as values that the library takes.
#pragma once

#include <sys/stat.h>
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <limits>
#include <memra/config/draft.hpp>
#include <memra/config/gguf.hpp>
#include <memra/config/hf.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/placement.hpp>
#include <memra/plan_fit.hpp>
#include <memra/round_types.hpp>
#include <optional>
#include <plan/numbers.hpp>
#include <span>
#include <string>
#include <string_view>
#include <tiny_engine/file.hpp>
#include <variant>
#include <vector>

namespace planner {

/// Flags as text; what they mean is checked below, each refusal in one sentence.
struct Flags {
  std::string model;
  std::string ctx;
  std::string kv = "q8_0/q5_1";
  std::string rows;
  std::string strategy;
  std::string stages;
  std::string devices;
  std::string sequences = "1";
  std::string state = "f32";
  std::string conv = "f32";
  std::string ring_slack = std::to_string(memra::max_round_rows);
  std::string draft;
  bool draft_ring = false;
  std::string fit;
  std::string svg;
  bool second_buffer = false;
  bool json = false;
  bool verify = false;
};

struct Request {
  memra::config::Storage storage;
  memra::config::Model model;
  std::size_t ctx = 0;
  memra::RoundOptions rounds;
  memra::Strategy strategy = memra::Strategy::automatic;
  memra::Placement placement;
  std::vector<std::size_t> budgets;  ///< [stages]; empty: nothing to fit
  std::size_t sequences = 1;
  std::optional<memra::DflashCfg> draft;

  std::size_t n_stages() const { return placement.device_of.size(); }
  memra::FitRequest fit() const { return {placement, rounds, budgets, sequences, draft ? &*draft : nullptr}; }
};

/// Longest file that is read: metadata of the largest models is a few MB of text, and a GGUF file is mapped.
inline constexpr std::size_t most_json_bytes = std::size_t{1} << 26;

inline tiny::MappedFile open_file(const std::string& path, const char* expected) {
  auto file = tiny::MappedFile::open(path);
  if (!file) refuse(file.status().text());
  if (file->bytes().empty()) refuse(path + " is empty; expected " + expected);
  return *std::move(file);
}

/// Whether both names are there and mean one file.
inline bool same_file(const std::string& a, const std::string& b) {
  struct stat one {};
  struct stat other {};
  return ::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A config.json, a GGUF file, or a folder with a config.json.
inline memra::config::Model load_model(const std::string& path, const memra::config::Storage& storage) {
  struct stat info {};
  const bool folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  const std::string name = folder ? path + "/config.json" : path;
  if (folder && ::stat(name.c_str(), &info) != 0) {
    refuse(path + " is a folder without a config.json; expected a config.json, a GGUF file or a folder with one");
  }
  const tiny::MappedFile file = open_file(name, "a config.json or a GGUF file");
  const std::span<const std::byte> bytes = file.bytes();
  const bool gguf = as_text(bytes.first(std::min<std::size_t>(bytes.size(), 4))) == "GGUF";
  if (!gguf && bytes.size() > most_json_bytes) {
    refuse(name + " is " + thousands(bytes.size()) + " bytes long and no GGUF file; expected a config.json");
  }
  auto model =
      gguf ? memra::config::parse_gguf(bytes, storage) : memra::config::parse_hf_config(as_text(bytes), storage);
  if (!model) refuse(name + ": " + model.status().text());
  return *std::move(model);
}

inline memra::DflashCfg load_draft(const std::string& path) {
  const tiny::MappedFile file = open_file(path, "the config.json of a drafter");
  if (as_text(file.bytes().first(std::min<std::size_t>(file.bytes().size(), 4))) == "GGUF") {
    refuse(path + " is a GGUF file; expected the config.json of a drafter");
  }
  if (file.bytes().size() > most_json_bytes) {
    refuse(path + " is " + thousands(file.bytes().size()) + " bytes long; expected the config.json of a drafter");
  }
  auto draft = memra::config::parse_draft_config(as_text(file.bytes()));
  if (!draft) refuse(path + ": " + draft.status().text());
  return *std::move(draft);
}

/// "q8_0/q5_1" -> K and V.
inline void read_kv(const std::string& text, memra::config::Storage& s) {
  const std::size_t slash = text.find('/');
  const auto k = memra::parse_format(std::string_view(text).substr(0, slash));
  const auto v = memra::parse_format(slash == std::string::npos ? text : std::string_view(text).substr(slash + 1));
  if (!k || !v) {
    std::string names;
    for (const memra::Format f : memra::all_formats) names += " " + std::string(memra::to_string(f));
    refuse("--kv is " + in_quotes(text) + "; expected K/V of" + names);
  }
  s.k = *k;
  s.v = *v;
}

inline memra::Format read_state_format(const char* flag, const std::string& text) {
  const auto f = memra::parse_format(text);
  if (f != memra::Format::f32 && f != memra::Format::f16 && f != memra::Format::bf16) {
    refuse(std::string(flag) + " is " + in_quotes(text) + "; expected f32, bf16 or f16");
  }
  return *f;
}

inline void read_rounds(const Flags& f, Request& r) {
  if (f.rows.empty()) {
    if (!f.strategy.empty()) refuse("--strategy was given without --rows; expected the rows of a round, too");
    return;
  }
  using memra::Strategy;
  r.rounds.rows = whole_number("--rows", f.rows, 1, memra::max_round_rows);
  const std::string name = f.strategy.empty() ? "automatic" : f.strategy;
  bool known = false;
  for (const Strategy s : {Strategy::automatic, Strategy::replay, Strategy::planes, Strategy::stash}) {
    if (name != memra::to_string(s)) continue;
    r.strategy = s;
    known = true;
  }
  if (!known) refuse("--strategy is " + in_quotes(name) + "; expected planes, stash, replay or automatic");
  r.rounds.replay = r.strategy == Strategy::replay;
  r.rounds.planes = r.strategy == Strategy::planes;
  r.rounds.stash = r.strategy == Strategy::stash;
}

/// The first layer whose K and V another one borrows; the number of layers if there is none.
inline std::size_t first_donor(const memra::ModelConfig& cfg) {
  std::size_t first = cfg.layers.size();
  for (const memra::LayerSpec& layer : cfg.layers) {
    for (const memra::StateSpec& state : layer.states) {
      if (const auto* shared = std::get_if<memra::SharedKvSpec>(&state)) first = std::min(first, shared->donor);
    }
  }
  return first;
}

/// Stages of layers as pp_cuts places them, each a device of its own. Blocks past the trunk go to the last one. A cut
/// that would part a borrower from its donor moves in front of the donor: in all known models they are the last layers.
inline void place(const Flags& f, Request& r) {
  const std::size_t n_layers = r.model.state.layers.size();
  const std::size_t n_trunk = n_layers - r.model.state.n_mtp;
  std::size_t n = 1;
  if (!f.devices.empty()) {
    if (!f.stages.empty()) refuse("--stages and --devices were both given; expected one of them");
    if (!f.fit.empty()) refuse("--fit and --devices were both given; expected one of them");
    std::string_view rest = f.devices;
    while (true) {
      const std::size_t comma = rest.find(',');
      r.budgets.push_back(memory_size("--devices", std::string(rest.substr(0, comma))));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    n = r.budgets.size();
    if (n > n_trunk) {
      refuse("--devices names " + std::to_string(n) + " devices; expected at most one for each of the " +
             std::to_string(n_trunk) + " layers");
    }
  } else if (!f.stages.empty()) {
    n = whole_number("--stages", f.stages, 1, n_trunk);
  }
  if (!f.fit.empty()) r.budgets.assign(n, memory_size("--fit", f.fit));
  r.placement.fence = memra::pp_cuts(n_trunk, n);
  const std::size_t donor = first_donor(r.model.state);
  for (std::size_t s = 1; s < n; ++s) r.placement.fence[s] = std::min(r.placement.fence[s], donor);
  for (std::size_t s = 0; s < n; ++s) r.placement.device_of.push_back(s);
}

inline Request read_request(const Flags& f) {
  constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();
  Request r;
  read_kv(f.kv, r.storage);
  r.storage.ssm = read_state_format("--state", f.state);
  r.storage.conv = read_state_format("--conv", f.conv);
  r.storage.ring_slack = whole_number("--ring-slack", f.ring_slack, 0, most);
  r.storage.second_buffer = f.second_buffer;
  r.sequences = whole_number("--sequences", f.sequences, 1, 1U << 20U);
  read_rounds(f, r);
  if (r.storage.ring_slack != 0 && r.storage.ring_slack < r.rounds.rows) {
    refuse("--ring-slack is " + in_quotes(f.ring_slack) + "; expected 0 or at least --rows = " + f.rows);
  }
  if (!f.ctx.empty()) r.ctx = whole_number("--ctx", f.ctx, 1, most);
  r.model = load_model(f.model, r.storage);
  if (f.ctx.empty()) r.ctx = r.model.max_positions == 0 ? 4096 : std::min(r.model.max_positions, most);
  if (f.draft_ring && f.draft.empty()) refuse("--draft-ring was given without --draft; expected the drafter, too");
  if (!f.draft.empty()) r.draft = load_draft(f.draft);
  if (r.draft) r.draft->ring = f.draft_ring;
  if (!f.svg.empty()) {  // a picture must not take the place of what it shows
    if (same_file(f.svg, f.model) || same_file(f.svg, f.model + "/config.json")) {
      refuse("--svg names the model; expected another file");
    }
    if (!f.draft.empty() && same_file(f.svg, f.draft)) refuse("--svg names the drafter; expected another file");
  }
  place(f, r);
  return r;
}

}  // namespace planner
