// What memra-plan does with its flags: figures, their reports, the check of their bytes.
#pragma once

#include <cstdio>
#include <fstream>
#include <plan/figures.hpp>
#include <plan/json_report.hpp>
#include <plan/numbers.hpp>
#include <plan/picture.hpp>
#include <plan/report.hpp>
#include <plan/request.hpp>
#include <plan/verify.hpp>
#include <string>

namespace planner {

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) refuse("--svg: cannot write " + path);
}

/// All that the program does once its flags are read.
///
/// @return the exit status: 1 if --verify saw other bytes than planned
/// @throws memra::Error about what the user asked for
template <class Dev = Counted>
int run(const Flags& flags) {
  const Request request = read_request(flags);
  const Figures numbers = figures(request);
  Verdict verdict = {true, ""};
  if (flags.verify) verdict = verify<Dev>(request, numbers);
  if (!flags.svg.empty()) write_file(flags.svg, picture(request, numbers));
  if (flags.json) {
    OrderedJson json = json_report(request, numbers);
    if (flags.verify) json["verified"] = verdict.equal;
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    print_report(request, numbers);
    if (flags.verify) std::printf("\n%s\n", verdict.words.c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    refuse("could not write all of the standard output");
  }
  return verdict.exit_status();
}

}  // namespace planner
