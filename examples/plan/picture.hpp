// Memory against context as an SVG picture, the stages stacked.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <memra/error.hpp>
#include <memra/plan_fit.hpp>
#include <numeric>
#include <plan/figures.hpp>
#include <plan/json_report.hpp>
#include <plan/numbers.hpp>
#include <plan/report.hpp>
#include <plan/request.hpp>
#include <string>
#include <variant>
#include <vector>

namespace planner {

/// 1, 2, 5 times a power of ten: the smallest that is at least `n`.
inline double round_step(double n) {
  const double power = std::pow(10.0, std::floor(std::log10(n)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= n * 0.999999) return factor * power;
  }
  return 10.0 * power;
}

/// One picture: an area for what is drawn, text around it.
class Picture {
 public:
  static constexpr double width = 860;
  static constexpr double height = 480;
  static constexpr double left = 86;
  static constexpr double right = 30;
  static constexpr double top = 64;
  static constexpr double bottom = 58;

  Picture(double most_x, double most_y) : most_x_(most_x), most_y_(most_y) {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
        "font-size=\"13\">\n",
        width, height);
    add("<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n", width, height);
  }

  double x(double v) const { return left + v / most_x_ * (width - left - right); }
  double y(double v) const { return height - bottom - v / most_y_ * (height - top - bottom); }

  void text(double at_x, double at_y, const char* anchor, const std::string& words, const char* more = "") {
    add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", at_x, at_y, anchor, more);
    for (const char c : words) {
      if (c == '&') {
        svg_ += "&amp;";
      } else if (c == '<') {
        svg_ += "&lt;";
      } else {
        svg_ += c;
      }
    }
    svg_ += "</text>\n";
  }
  void line(double x0, double y0, double x1, double y1, const char* style) {
    add("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x0, y0, x1, y1, style);
  }
  void box(double at_x, double at_y, const char* colour) {
    add("<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", at_x, at_y, colour);
  }
  /// The area between two lines over the same points of x.
  void band(const std::vector<double>& at, const std::vector<double>& low, const std::vector<double>& high,
            const char* colour) {
    svg_ += "<polygon points=\"";
    for (std::size_t i = 0; i < at.size(); ++i) add("%.1f,%.1f ", x(at[i]), y(high[i]));
    for (std::size_t i = at.size(); i-- > 0;) add("%.1f,%.1f ", x(at[i]), y(low[i]));
    add("\" fill=\"%s\"/>\n", colour);
  }
  std::string finish() { return svg_ + "</svg>\n"; }

 private:
#if defined(__GNUC__)
  __attribute__((format(printf, 2, 3)))
#endif
  void
  add(const char* format, ...) {
    std::array<char, 512> piece{};
    std::va_list args;
    va_start(args, format);
    std::vsnprintf(piece.data(), piece.size(), format, args);
    va_end(args);
    svg_ += piece.data();
  }

  double most_x_;
  double most_y_;
  std::string svg_;
};

/// The points of x: even ones, and the contexts at which a ring is full, where the slope changes.
inline std::vector<double> sample_points(const Request& r, std::size_t most) {
  constexpr std::size_t n_even = 120;
  std::vector<double> at;
  for (std::size_t i = 0; i <= n_even; ++i) {
    at.push_back(std::max(1.0, std::floor(static_cast<double>(most) * static_cast<double>(i) / n_even)));
  }
  for (const memra::LayerSpec& layer : r.model.state.layers) {
    for (const memra::StateSpec& state : layer.states) {
      const auto* a = std::get_if<memra::AttentionSpec>(&state);
      if (a == nullptr || a->window == 0 || a->ring_slack == 0) continue;
      const std::size_t rows = memra::ring_rows(*a, most);
      if (rows < most) at.push_back(static_cast<double>(rows));
    }
  }
  std::sort(at.begin(), at.end());
  at.erase(std::unique(at.begin(), at.end()), at.end());
  return at;
}

inline std::string picture(const Request& r, const Figures& f) {
  constexpr std::array<const char*, 8> colours = {"#3b6fb6", "#e08e45", "#5a9e6f", "#b65a7c",
                                                  "#7d6bb0", "#c7b24a", "#4aa3a8", "#8c8c8c"};
  constexpr double gib = 1073741824.0;
  const std::size_t fits = f.longest.value_or(0);
  // What the model was made for is enough of the axis, if the context and what fits are on it.
  const std::size_t most = std::max({r.ctx, std::min(fits, std::max(r.model.max_positions, r.ctx)), std::size_t{2}});
  const std::vector<double> at = sample_points(r, most);
  const std::size_t n = r.n_stages();
  std::vector<std::vector<double>> tops(n + 1, std::vector<double>(at.size(), 0.0));
  const memra::FitRequest fit = r.fit();
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto bytes = memra::check(memra::device_bytes(r.model.state, static_cast<std::size_t>(at[i]), fit));
    for (std::size_t s = 0; s < n; ++s) {
      tops[s + 1][i] = tops[s][i] + static_cast<double>(bytes[s]) * static_cast<double>(r.sequences) / gib;
    }
  }
  const std::size_t sum = std::accumulate(r.budgets.begin(), r.budgets.end(), std::size_t{0});
  const double budget = static_cast<double>(sum) / gib;
  const double top = tops[n].back();
  const bool with_budget = budget > 0 && budget < 3 * top;
  const double step_y = round_step(std::max(top, with_budget ? budget : 0.0) / 6);
  const double most_y = std::ceil(std::max(top, with_budget ? budget : 0.0) * 1.04 / step_y) * step_y;
  Picture p(static_cast<double>(most), most_y);
  p.text(Picture::left, 24, "start",
         printable(r.model.family) + ": memory of the state against context" +
             (r.sequences == 1 ? "" : ", " + std::to_string(r.sequences) + " sequences"),
         " font-size=\"16\" font-weight=\"bold\"");
  for (std::size_t s = 0; s < n; ++s) p.band(at, tops[s], tops[s + 1], colours[s % colours.size()]);
  for (double v = 0; v <= most_y * 1.0001; v += step_y) {
    p.line(Picture::left, p.y(v), Picture::width - Picture::right, p.y(v), "stroke=\"#000\" stroke-opacity=\"0.15\"");
    std::array<char, 32> label{};
    std::snprintf(label.data(), label.size(), "%g", v);
    p.text(Picture::left - 8, p.y(v) + 4, "end", label.data());
  }
  const double step_x = round_step(static_cast<double>(most) / 7);
  for (double v = 0; v <= static_cast<double>(most) * 1.0001; v += step_x) {
    p.line(p.x(v), p.y(0), p.x(v), p.y(0) + 5, "stroke=\"#000\"");
    p.text(p.x(v), p.y(0) + 20, "middle", thousands(static_cast<std::size_t>(v)));
  }
  p.text(Picture::left + (Picture::width - Picture::left - Picture::right) / 2, Picture::height - 14, "middle",
         "tokens of context");
  p.text(Picture::left - 8, Picture::top - 12, "end", "GiB");
  const auto mark = [&](std::size_t ctx, const std::string& words, double at_y) {
    const double at_x = p.x(static_cast<double>(ctx));
    const bool flip = at_x > Picture::width * 0.6;
    p.line(at_x, Picture::top, at_x, p.y(0), "stroke=\"#000\" stroke-dasharray=\"4 3\"");
    p.text(at_x + (flip ? -6 : 6), at_y, flip ? "end" : "start", words);
  };
  if (with_budget) {
    p.line(Picture::left, p.y(budget), Picture::width - Picture::right, p.y(budget),
           "stroke=\"#b00020\" stroke-width=\"1.5\"");
    p.text(Picture::left + 6, p.y(budget) - 5, "start", in_units(sum) + " to fit in", " fill=\"#b00020\"");
  }
  mark(r.ctx, thousands(r.ctx) + " tokens: " + in_units(f.total_bytes), Picture::top + 12);
  if (fits != 0 && fits <= most) mark(fits, thousands(fits) + " tokens fit", Picture::top + 30);
  double legend = Picture::left;
  for (std::size_t s = 0; s < n && n > 1; ++s) {
    p.box(legend, 36, colours[s % colours.size()]);
    const std::string words =
        n <= 4 ? "stage " + std::to_string(s) + ": " + layer_range(f.stages[s]) : std::to_string(s);
    p.text(legend + 17, 47, "start", words);
    legend += 30 + 7.2 * static_cast<double>(words.size());
    if (legend > Picture::width - 60 && s + 1 < n) {
      p.text(legend, 47, "start", "...");
      break;
    }
  }
  return p.finish();
}

}  // namespace planner
