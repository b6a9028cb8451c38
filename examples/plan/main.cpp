// memra-plan: how much state a model takes, and how long a context fits.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <plan/numbers.hpp>
#include <plan/request.hpp>
#include <plan/run.hpp>
#include <string>

namespace {

/// One line on stderr, whatever the names in it hold.
int complain(std::string sentence) {
  std::fflush(stdout);
  for (char& c : sentence) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  std::fprintf(stderr, "memra-plan: %s\n", sentence.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  planner::Flags f;
  CLI::App app{"Plans the state of a model: bytes of everything, and the longest context that fits."};
  app.add_option("model", f.model, "a config.json, a folder with one, or a GGUF file")->required();
  app.add_option("--ctx", f.ctx, "tokens of context; default: what the model was made for");
  app.add_option("--kv", f.kv, "formats of K and V: f32 f16 bf16 q8_0 q5_1 q4_0 fp8")->capture_default_str();
  app.add_option("--rows", f.rows, "speculative rounds of up to so many rows, the pending token included");
  app.add_option("--strategy", f.strategy, "how rounds are taken back: planes, stash, replay or automatic");
  app.add_option("--stages", f.stages, "pipeline stages, each on a device of its own");
  app.add_option("--devices", f.devices, "memory of each stage's device: 80GiB,80GiB");
  app.add_option("--sequences", f.sequences, "caches of this kind at a time")->capture_default_str();
  app.add_option("--state", f.state, "format of the recurrent state: f32, bf16 or f16")->capture_default_str();
  app.add_option("--conv", f.conv, "format of the convolutions' history: f32, bf16 or f16")->capture_default_str();
  app.add_option("--draft", f.draft, "config.json of a block-diffusion drafter, one draft cache per sequence");
  app.add_flag("--draft-ring", f.draft_ring, "the draft cache is a ring: rows for its window, whatever the context");
  app.add_option("--ring-slack", f.ring_slack,
                 "rows that a window's ring keeps beyond it: the longest call and take-back; 0: windows in flat planes")
      ->capture_default_str();
  app.add_flag("--second-buffer", f.second_buffer,
               "a second copy of every ssm, for kernels that do not update in place");
  app.add_option("--fit", f.fit, "memory of every device: says the longest context that fits in it");
  app.add_flag("--json", f.json, "the figures as JSON");
  app.add_option("--svg", f.svg, "file for a picture of memory against context");
  app.add_flag("--verify", f.verify, "allocates the plan on the host and compares; exit status 1 if it differs");
  try {
    app.parse(argc, argv);
    for (const CLI::Option* given : app.get_options()) {  // --fit "$UNSET" is a mistake, not the default
      for (const std::string& value : given->results()) {
        if (value.empty()) planner::refuse(given->get_name() + " is ''; expected a value");
      }
    }
    return planner::run(f);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return complain(e.what());
    const int status = app.exit(e);  // --help
    return std::cout.flush() ? status : complain("could not write all of the standard output");
  } catch (const std::exception& e) {  // memra::Error, too
    return complain(e.what());
  }
}
