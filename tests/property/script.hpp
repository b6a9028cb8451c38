// A script: what a machine is made of and what is done to it, as plain numbers. One line of text holds all of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace property {

/// One operation. Every value of a, b, c means something in every state, so any part of a script is a script.
struct Op {
  char code = ' ';
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned fault = 0;  ///< 0: none; else which device call fails, see Faults

  friend bool operator==(const Op&, const Op&) = default;
};

struct Script {
  std::string machine;          ///< "cache", "draft", "round" or "late"
  std::vector<unsigned> setup;  ///< numbers the machine reads in its own way
  std::vector<Op> ops;

  friend bool operator==(const Script&, const Script&) = default;
};

/// "cache:3.0.1 f2.0.0 r0.1.0!5"
inline std::string to_line(const Script& s) {
  std::string line = s.machine + ":";
  for (std::size_t i = 0; i < s.setup.size(); ++i) line += (i == 0 ? "" : ".") + std::to_string(s.setup[i]);
  for (const Op& op : s.ops) {
    line += std::string(" ") + op.code + std::to_string(op.a) + "." + std::to_string(op.b) + "." + std::to_string(op.c);
    if (op.fault != 0) line += "!" + std::to_string(op.fault);
  }
  return line;
}

/// nullopt if it is no line of to_line.
inline std::optional<Script> parse_line(const std::string& line) {
  const auto numbers = [](const std::string& text) -> std::optional<std::vector<unsigned>> {
    std::vector<unsigned> out;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, '.');) {
      if (word.empty() || word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos) {
        return std::nullopt;
      }
      out.push_back(static_cast<unsigned>(std::strtoul(word.c_str(), nullptr, 10)));
    }
    return out;
  };
  std::istringstream in(line);
  std::string head;
  if (!(in >> head) || head.find(':') == std::string::npos) return std::nullopt;
  Script s;
  s.machine = head.substr(0, head.find(':'));
  const auto setup = numbers(head.substr(head.find(':') + 1));
  if (!setup) return std::nullopt;
  s.setup = *setup;
  for (std::string word; in >> word;) {
    const std::size_t mark = word.find('!');
    const auto args = numbers(word.substr(1, mark == std::string::npos ? mark : mark - 1));
    const auto fault = mark == std::string::npos ? std::vector<unsigned>{0} : numbers(word.substr(mark + 1));
    if (!args || args->size() != 3 || !fault || fault->size() != 1) return std::nullopt;
    s.ops.push_back({word[0], (*args)[0], (*args)[1], (*args)[2], (*fault)[0]});
  }
  return s;
}

/// What a machine throws when the library does not do what the model says.
struct Broken {
  std::string what;
};
inline void expect(bool held, const std::string& what) {
  if (!held) throw Broken{what};
}

struct Failure {
  std::size_t op = 0;  ///< index of the operation; ops.size(): the end
  std::string what;
};
using Runner = std::function<std::optional<Failure>(const Script&)>;

/// A script that still fails and of which no operation can be left out and no number made smaller by the steps tried.
/// @pre run(s) fails
inline Script shrink(Script s, const Runner& run) {
  const auto still = [&](const Script& smaller) { return run(smaller).has_value(); };
  if (const auto f = run(s); f && f->op < s.ops.size()) s.ops.resize(f->op + 1);
  bool better = true;
  for (int pass = 0; better && pass < 8; ++pass) {
    better = false;
    for (std::size_t piece = std::max<std::size_t>(s.ops.size() / 2, 1);; piece /= 2) {
      for (std::size_t at = 0; at < s.ops.size();) {
        Script t = s;
        const std::size_t end = std::min(at + piece, t.ops.size());
        t.ops.erase(t.ops.begin() + static_cast<std::ptrdiff_t>(at), t.ops.begin() + static_cast<std::ptrdiff_t>(end));
        if (still(t)) {
          s = std::move(t);
          better = true;
        } else {
          at += piece;
        }
      }
      if (piece == 1) break;
    }
    const auto smaller = [&](auto pick) {  // 0, then half, then one less
      for (const int how : {0, 1, 2}) {
        Script t = s;
        unsigned& x = pick(t);
        if (x == 0) return;
        x = how == 0 ? 0 : how == 1 ? x / 2 : x - 1;
        if (still(t)) {
          s = std::move(t);
          better = true;
          return;
        }
      }
    };
    for (std::size_t i = 0; i < s.ops.size(); ++i) {
      smaller([i](Script& t) -> unsigned& { return t.ops[i].fault; });
      smaller([i](Script& t) -> unsigned& { return t.ops[i].a; });
      smaller([i](Script& t) -> unsigned& { return t.ops[i].b; });
      smaller([i](Script& t) -> unsigned& { return t.ops[i].c; });
    }
    for (std::size_t i = 0; i < s.setup.size(); ++i) {
      smaller([i](Script& t) -> unsigned& { return t.setup[i]; });
    }
  }
  return s;
}

}  // namespace property
