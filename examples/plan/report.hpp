// The table that a person reads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <memra/format.hpp>
#include <memra/round_types.hpp>
#include <memra/state_cost.hpp>
#include <plan/figures.hpp>
#include <plan/numbers.hpp>
#include <plan/request.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace planner {

/// "layers 0 to 31", "layer 5".
inline std::string layer_range(const Stage& s) {
  if (s.first_layer == s.end_layer) return "no layers";
  if (s.first_layer + 1 == s.end_layer) return "layer " + std::to_string(s.first_layer);
  return "layers " + std::to_string(s.first_layer) + " to " + std::to_string(s.end_layer - 1);
}

/// Lines of words and numbers; columns of nothing but zeros are left out.
class Table {
 public:
  void add(const std::string& words, const memra::StateCost& c) {
    rows_.push_back({words, {c.bytes_per_token, c.ring_cap_bytes, c.grouped_bytes, c.fixed_bytes}});
  }
  void print(const char* title) const {
    constexpr std::array<const char*, 4> names = {"bytes/token", "full windows", "grouped rows", "fixed bytes"};
    std::array<bool, 4> shown{};
    std::size_t width = std::string_view(title).size();
    for (const Row& row : rows_) {
      width = std::max(width, row.words.size());
      for (std::size_t i = 0; i < shown.size(); ++i) shown[i] = shown[i] || row.numbers[i] != 0;
    }
    std::string line = title;
    line.resize(width, ' ');
    for (std::size_t i = 0; i < shown.size(); ++i) add_cell(line, shown[i], names[i]);
    std::printf("  %s\n", line.c_str());
    for (const Row& row : rows_) {
      line = row.words;
      line.resize(width, ' ');
      for (std::size_t i = 0; i < shown.size(); ++i) {
        add_cell(line, shown[i], row.numbers[i] == 0 ? "" : thousands(row.numbers[i]));
      }
      line.resize(line.find_last_not_of(' ') + 1);
      std::printf("  %s\n", line.c_str());
    }
  }

 private:
  struct Row {
    std::string words;
    std::array<std::size_t, 4> numbers;
  };
  static void add_cell(std::string& line, bool shown, const std::string& text) {
    if (shown) line += std::string(text.size() < 16 ? 16 - text.size() : 1, ' ') + text;
  }

  std::vector<Row> rows_;
};

inline void print_part(const char* words, std::size_t bytes, bool always = false) {
  if (bytes != 0 || always) std::printf("  %-48s %18s  %s\n", words, thousands(bytes).c_str(), in_units(bytes).c_str());
}

inline void print_report(const Request& r, const Figures& f) {
  const memra::ModelConfig& cfg = r.model.state;
  const memra::PlanTotals& t = f.plan.totals;
  std::printf("%s: %zu layers", in_quotes(r.model.family).c_str(), cfg.layers.size() - cfg.n_mtp);
  if (cfg.n_mtp != 0) std::printf(" and %zu past the trunk (MTP)", cfg.n_mtp);
  if (r.model.max_positions != 0) std::printf(", made for %s tokens", thousands(r.model.max_positions).c_str());
  std::printf("\nK %s, V %s, ssm %s, conv %s\n\n", memra::to_string(r.storage.k).data(),
              memra::to_string(r.storage.v).data(), memra::to_string(r.storage.ssm).data(),
              memra::to_string(r.storage.conv).data());

  Table layers;
  for (const Group& g : f.groups) {
    layers.add(std::to_string(g.n_layers) + " x " + (g.mtp ? "MTP: " : "") + g.what, g.cost);
  }
  layers.print("layers");
  if (f.stages.size() > 1) {
    Table stages;
    for (std::size_t s = 0; s < f.stages.size(); ++s) {
      const Stage& g = f.stages[s];
      stages.add(std::to_string(s) + ": " + layer_range(g) + ", in all " + in_units(g.bytes * r.sequences), g.cost);
    }
    std::printf("\n");
    stages.print("stages");
  }

  std::printf("\nat %s tokens%s\n", thousands(r.ctx).c_str(), r.sequences == 1 ? "" : ", one sequence");
  print_part("planes that grow with the context", t.bytes_per_token * r.ctx, true);
  print_part("MTP planes", t.mtp_bytes_per_token * r.ctx);
  print_part("rings: windows", f.ring_bytes - t.ring_slack_bytes);
  print_part("rings: slack for calls and take-backs", t.ring_slack_bytes);
  print_part("rows of several tokens", t.grouped_bytes);
  print_part("recurrent state", f.fixed_bytes);
  print_part("second buffers", t.second_buffer_bytes);
  const std::string rounds = "rounds of " + std::to_string(r.rounds.rows) + " rows by " +
                             std::string(memra::to_string(f.plan.round.automatic));
  print_part(rounds.c_str(), t.round_bytes, r.rounds.rows != 0);
  print_part("draft cache", f.draft_bytes);
  print_part("alignment and padding", f.pad_bytes);
  print_part("one sequence", f.sequence_bytes, true);
  if (r.sequences != 1) {
    print_part((std::to_string(r.sequences) + " sequences").c_str(), f.total_bytes);
  }
  for (const std::size_t s : f.too_small) {
    std::printf("\nthis does not fit: stage %zu takes %s of %s\n", s, in_units(f.stages[s].bytes * r.sequences).c_str(),
                in_units(r.budgets[s]).c_str());
  }
  if (f.longest && *f.longest == 0) std::printf("\nnot even one token fits\n");
  if (f.longest && *f.longest != 0) {
    std::printf(
        "\nthe longest context that fits: %s tokens%s\n", thousands(*f.longest).c_str(),
        r.model.max_positions != 0 && *f.longest > r.model.max_positions ? ", more than the model was made for" : "");
  }
}

}  // namespace planner
