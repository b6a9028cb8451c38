// The seeds of tests/fuzz/corpus: every family that a reader knows has one that it accepts, every kind of refusal one
// that is refused in the words it is there for.
#include <algorithm>
#include <array>
#include <config/support.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memra/config/draft.hpp>
#include <memra/config/gguf.hpp>
#include <memra/config/hf.hpp>
#include <memra/config/json.hpp>
#include <memra/plan.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <support/catch.hpp>

namespace fuzz_corpus_cpp {
namespace {

using Files = std::map<std::string, std::string>;  // by name
using Names = std::set<std::string>;

/// The seeds that were written by hand: those that a fuzzer found have 40 hexadecimal digits for a name.
Files seeds(const char* target) {
  Files all;
  const auto folder = std::filesystem::path(MEMRA_TEST_FIXTURES) / "../fuzz/corpus" / target;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.size() == 40 && name.find_first_not_of("0123456789abcdef") == std::string::npos) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    all[name] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return all;
}

bool starts_with(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

memra::Result<memra::config::Model> parse_hf(const std::string& text) {
  return memra::config::parse_hf_config(text);
}
memra::Result<memra::config::Model> parse_gguf(const std::string& bytes) {
  return memra::config::parse_gguf({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

/// A family as the list of them spells it.
std::string listed(std::string family) {
  constexpr std::string_view suffix = "_text";
  if (family.size() > suffix.size() && family.compare(family.size() - suffix.size(), suffix.size(), suffix) == 0) {
    family.resize(family.size() - suffix.size());
  }
  return family;
}

/// What is wrong with the seeds, a line each: a name that is not what is in it, a seed that is accepted and should not
/// be, or the other way round, a family without one. `kinds`: words of the refusal of every seed "refused.NAME".
template <class Parse>
Names wrong_with(const Files& files, const Names& families, const std::map<std::string, std::string>& kinds,
                 const Parse& parse) {
  Names wrong;
  Names missing = families;
  std::map<std::string, std::string> not_refused = kinds;
  for (const auto& [name, bytes] : files) {
    if (starts_with(name, "drafter")) continue;
    const auto model = parse(bytes);
    if (starts_with(name, "refused.")) {
      const auto kind = not_refused.find(name.substr(8));
      if (kind == not_refused.end()) {
        wrong.insert(name + " is no kind of refusal that is listed here");
      } else if (model) {
        wrong.insert(name + " is accepted");
      } else if (std::string_view(model.status().text()).find(kind->second) == std::string_view::npos) {
        wrong.insert(name + " says: " + model.status().text());
      }
      not_refused.erase(name.substr(8));
      continue;
    }
    if (!model) {
      wrong.insert(name + " is refused: " + model.status().text());
    } else if (listed(model->family) != name.substr(0, name.find('.'))) {
      wrong.insert(name + " holds " + model->family);
    } else if (const auto planned = memra::plan(model->state, 3000); !planned) {
      wrong.insert(name + " has no plan: " + planned.status().text());
    } else {
      missing.erase(listed(model->family));
    }
  }
  for (const std::string& family : missing) wrong.insert(family + " has no seed");
  for (const auto& [kind, words] : not_refused) wrong.insert("refused." + kind + " has no seed");
  return wrong;
}

const std::map<std::string, std::string> hf_refusals = {
    {"bidirectional", "expected a causal model"},
    {"cut", "it is not JSON at byte 15"},
    {"default", "num_kv_shared_layers is missing, which means 15; expected a whole number from 0 to 1"},
    {"deep", "nested deeper than 64"},
    {"donor", "borrows from the last layer of its kind before layer 0"},
    {"family", "field model_type is 'x'"},
    {"groups", "expected a multiple of num_key_value_heads = 3"},
    {"hidden", "expected a multiple of num_attention_heads = 2, or a head_dim"},
    {"indexer", "layer 0 takes the choice of an indexer before it"},
    {"layer_twice", "names layer 0 twice"},
    {"letter", "holds 'X' at layer 0"},
    {"list", "it is JSON, but not an object"},
    {"list_length", "is a list of 2; expected a list of num_hidden_layers = 1"},
    {"list_name", "holds 'x'; expected one of"},
    {"lists_differ", "name different layers"},
    {"literal", "is '-Infinity'; expected a whole number"},
    {"missing", "is missing; expected a whole number"},
    {"range", "is 0; expected a whole number from 1"},
    {"spellings", "expected one value"},
    {"twice", "the key 'model_type' appears twice"},
    {"type", "is '1'; expected a whole number"},
    {"unread", "conv_L_cache is 3, which 'llama' models are not known to use"},
    {"width", "expected a width of 512"},
    {"window", "names sliding layers, but sliding_window is absent"},
    {"wrapped_beside", "beside text_config and absent in it"},
    {"wrapped_number", "field text_config is 1; expected an object"},
    {"wrapped_twice", "fields text_config and llm_config describe different models"},
};

const std::map<std::string, std::string> gguf_refusals = {
    {"all_past", "expected fewer than block_count = 1"},
    {"big_endian", "the file is big-endian"},
    {"boolean", "holds the byte 2 as a boolean"},
    {"causal", "expected a causal model"},
    {"cut", "the file ends inside the value of"},
    {"donor", "borrows from the last layer of its kind before layer 1"},
    {"elements", "says it has 1 elements; the file ends before"},
    {"family", "key general.architecture is 'x'"},
    {"flags", "holds 2 for layer 0; expected 0 or 1"},
    {"groups", "expected a multiple of head_count_kv = 3"},
    {"indexer", "expected 1: there is none before it"},
    {"keys", "the file says it has 1 keys"},
    {"list_length", "is an array of 2 i32; expected whole numbers for 1 layers"},
    {"lists_differ", "name different layers"},
    {"magic", "does not begin with GGUF"},
    {"missing", "block_count is missing"},
    {"nested", "no arrays in arrays"},
    {"no_family", "general.architecture is missing or no string"},
    {"no_heads", "expected attention in every layer"},
    {"parts", "expected a multiple of time_step_rank = 2"},
    {"past", "differs among layers and says nothing about the 1 past the trunk"},
    {"ratios", "holds 5 for layer 0; expected 0, 4 or 128"},
    {"real", "block_count is a f32"},
    {"twice", "the key 'a' appears twice"},
    {"type", "has a value of type 13"},
    {"unread", "attention.sliding_window is set, which files of 'llama'"},
    {"version", "the file has version 1"},
    {"width", "expected a multiple of the 2 heads, or a attention.key_length"},
};

/// A seed less, one of a family that has no other, one that is spoilt, one that should not be there: each is noticed.
template <class Parse>
void red_arms(const Files& good, const Names& families, const std::map<std::string, std::string>& kinds,
              const Parse& parse, const char* only) {
  REQUIRE(wrong_with(good, families, kinds, parse).empty());
  const auto says = [&](const Files& files, const std::string& line) {
    const Names wrong = wrong_with(files, families, kinds, parse);
    CAPTURE(line, wrong);
    REQUIRE(std::any_of(wrong.begin(), wrong.end(), [&](const std::string& w) { return starts_with(w, line); }));
  };
  Files files = good;
  files.erase(only);
  says(files, std::string(only) + " has no seed");
  files = good;
  files[only].resize(files[only].size() / 2);
  says(files, std::string(only) + " is refused: ");
  says(files, std::string(only) + " has no seed");
  files = good;
  files["llama"] = files[only];
  says(files, std::string("llama holds ") + only);
  files = good;
  files.erase("refused.groups");
  says(files, "refused.groups has no seed");
  files["refused.groups"] = files[only];
  says(files, "refused.groups is accepted");
  files["refused.groups"] = files["refused.missing"];
  says(files, "refused.groups says: ");
  files["refused.other"] = files["refused.missing"];
  says(files, "refused.other is no kind of refusal");
  Names more = families;
  more.insert("a family of tomorrow");
  REQUIRE(wrong_with(good, more, kinds, parse) == Names{"a family of tomorrow has no seed"});
}

}  // namespace

TEST_CASE("every model_type has a config.json that is accepted among the seeds of its fuzz target") {
  const Files files = seeds("hf");
  Names families;
  for (const auto& family : memra::config::hf_families) families.insert(std::string(family.type));
  REQUIRE(wrong_with(files, families, hf_refusals, parse_hf) == Names());
  red_arms(files, families, hf_refusals, parse_hf, "gemma3n");
  // Both spellings of a drafter; and the language model inside another one, under each of its names.
  Names drafters;
  Names wrappers;
  for (const auto& [name, text] : files) {
    if (memra::config::parse_draft_config(text)) drafters.insert(name);
    for (const char* const wrapper : {"text_config", "llm_config", "language_config"}) {
      if (parse_hf(text) && text.find(wrapper) != std::string::npos) wrappers.insert(wrapper);
    }
  }
  REQUIRE(drafters == Names{"drafter", "drafter.short"});
  REQUIRE(wrappers == Names{"language_config", "llm_config", "text_config"});
}

TEST_CASE("every architecture of GGUF files has one that is accepted among the seeds of its fuzz target") {
  const Files files = seeds("gguf");
  Names families;
  for (const auto& family : memra::config::gguf_families) families.insert(std::string(family.architecture));
  REQUIRE(wrong_with(files, families, gguf_refusals, parse_gguf) == Names());
  red_arms(files, families, gguf_refusals, parse_gguf, "gemma3n");
}

TEST_CASE("every field of every seed, absent and at its extremes: a model with a plan, or a refusal") {
  const auto looked_at = [](const memra::Result<memra::config::Model>& model) {
    if (!model) return model.status().text()[0] != '\0';
    const auto planned = memra::plan(model->state, 3000);
    return planned.ok() || planned.status().text()[0] != '\0';
  };
  const auto extremes = memra::config::Json::parse(
      R"([0, 1, 2, 3, 16, 64, 4096, 65536, 2147483647, 18446744073709551615, null, true, -1, [], {}, ""])");
  std::size_t seen = 0;
  for (const auto& [name, text] : seeds("hf")) {
    if (!parse_hf(text)) continue;
    const auto whole = memra::check(memra::config::parse_json(text, name.c_str()));
    const auto flat = whole.flatten();
    for (const auto& [field, value] : flat.items()) {
      const memra::config::Json::json_pointer at(field);
      for (const auto& extreme : extremes) {
        INFO(name << field << ": " << extreme.dump());
        auto changed = whole;
        changed[at] = extreme;
        REQUIRE(looked_at(parse_hf(changed.dump())));
        ++seen;
      }
      if (!at.back().empty() && whole[at.parent_pointer()].is_object()) {
        auto changed = whole;
        changed[at.parent_pointer()].erase(at.back());
        INFO(name << " without " << field);
        REQUIRE(looked_at(parse_hf(changed.dump())));
      }
    }
  }
  for (const auto& [name, bytes] : seeds("gguf")) {
    if (!parse_gguf(bytes)) continue;
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (const char byte : {'\0', '\2', '\x7f'}) {
        std::string changed = bytes;
        changed[at] = byte;
        INFO(name << " at " << at);
        REQUIRE(looked_at(parse_gguf(changed)));
        ++seen;
      }
    }
  }
  REQUIRE(seen > 10000);
}
}  // namespace fuzz_corpus_cpp
