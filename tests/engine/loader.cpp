// Hostile safetensors and JSON: every lie is refused with one sentence, and what is honest is read.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memra/error.hpp>
#include <random>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <tiny_engine/safetensors.hpp>
#include <tiny_engine/weights.hpp>
#include <vector>

#include <engine/rig.hpp>

namespace loader_cpp {
namespace {

std::vector<std::byte> file_of(const std::string& header, std::size_t data, std::uint64_t claimed) {
  std::vector<std::byte> f(8 + header.size() + data);
  for (std::size_t i = 0; i < 8; ++i) f[i] = static_cast<std::byte>(claimed >> (8 * i) & 0xff);
  std::memcpy(f.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data; ++i) f[8 + header.size() + i] = static_cast<std::byte>(i);
  return f;
}
std::vector<std::byte> file_of(const std::string& header, std::size_t data) {
  return file_of(header, data, header.size());
}

/// The sentence of a refusal; empty if the file was accepted.
std::string refusal(const std::vector<std::byte>& file) {
  const auto r = tiny::SafeTensors::parse(file);
  if (r) return "";
  REQUIRE(r.status().kind() == memra::ErrorKind::corrupt);
  return r.status().text();
}

bool says(const std::string& sentence, const std::string& part) {
  return sentence.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an honest file is read") {
  const auto file = file_of(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"none":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]}})",
      28);
  const auto r = memra::check(tiny::SafeTensors::parse(file));
  REQUIRE(r.tensors().size() == 3);
  REQUIRE(r.find("__metadata__") == nullptr);
  REQUIRE(r.find("b")->shape == std::vector<std::size_t>{2, 3});
  REQUIRE(r.find("b")->data.size() == 24);
  REQUIRE(r.find("b")->data[0] == std::byte{4});
  REQUIRE(r.find("none")->elems() == 0);
  REQUIRE(tiny::SafeTensors::parse(file_of("{}", 0)).ok());
}

TEST_CASE("hostile headers are refused, each with its reason") {
  const auto one = [](const std::string& entry) { return "{\"t\":" + entry + "}"; };
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  REQUIRE(refusal(file_of(one(good), 8)).empty());

  REQUIRE(says(refusal({}), "at least 8"));
  REQUIRE(says(refusal(std::vector<std::byte>(7)), "at least 8"));
  REQUIRE(says(refusal(file_of(one(good), 8, ~std::uint64_t{0})), "claims"));
  REQUIRE(says(refusal(file_of(one(good), 8, std::uint64_t{1} << 40)), "claims"));
  REQUIRE(says(refusal(file_of("{", 0)), "not JSON"));
  REQUIRE(says(refusal(file_of("[]", 0)), "not an object"));
  REQUIRE(says(refusal(file_of("\xff\xfe{}", 0)), "not JSON"));
  REQUIRE(says(refusal(file_of(one(good), 8, one(good).size() - 1)), "not JSON"));
  REQUIRE(says(refusal(file_of(std::string(5000, '[') + std::string(5000, ']'), 0)), "nested deeper"));
  REQUIRE(says(refusal(file_of("{\"t\":" + good + ",\"t\":" + good + "}", 8)), "twice"));
  REQUIRE(
      says(refusal(file_of(R"({"t":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}})", 8)), "twice"));

  const struct {
    const char* entry;
    const char* says;
  } cases[] = {
      {"7", "needs dtype"},
      {R"({"shape":[2],"data_offsets":[0,8]})", "needs dtype"},
      {R"({"dtype":"F32","data_offsets":[0,8]})", "needs dtype"},
      {R"({"dtype":"F32","shape":[2]})", "needs dtype"},
      {R"({"dtype":5,"shape":[2],"data_offsets":[0,8]})", "dtype is not a string"},
      {R"({"dtype":"Q4","shape":[2],"data_offsets":[0,8]})", "dtype 'Q4'"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape is not a list"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", "shape is not a list of at most"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "shape holds -2"},
      {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "shape holds 2.0"},
      {R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})", "shape holds '2'"},
      {R"({"dtype":"F32","shape":[1e300],"data_offsets":[0,8]})", "shape holds"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", "does not fit"},
      {R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})", "does not fit"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})", "does not fit"},
      {R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]})", "shape holds"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", "not a pair"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":{"a":0}})", "not a pair"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "not whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0.5,8]})", "not whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "do not lie"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", "do not lie"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615]})", "do not lie"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})", "need 4"},
      {R"({"dtype":"BF16","shape":[2],"data_offsets":[0,8]})", "need 4"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "expected no rest"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "belong to no tensor"},
      {R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})", "expected no rest"},
  };
  for (const auto& c : cases) {
    const std::string sentence = refusal(file_of(one(c.entry), 8));
    INFO(c.entry << " -> " << sentence);
    REQUIRE(says(sentence, c.says));
    REQUIRE(sentence.find('\n') == std::string::npos);
  }
  REQUIRE(says(refusal(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                               R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                               6)),
               "overlap"));
  REQUIRE(says(refusal(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                               R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                               8)),
               "overlap"));
}

TEST_CASE("a name from outside cannot break the sentence") {
  const std::string sentence = refusal(file_of("{\"a\\nb\\u0007%s%n" + std::string(500, 'x') + "\":5}", 0));
  REQUIRE(says(sentence, "needs dtype"));
  REQUIRE(sentence.find('\n') == std::string::npos);
  REQUIRE(says(sentence, "%s%n"));
}

TEST_CASE("every truncation and ten thousand mutations of a real file are refused or read, never worse") {
  const auto whole = memra::check(tiny::MappedFile::open(rig::fixture("next_random/golden.safetensors")));
  std::vector<std::byte> file(whole.bytes().begin(), whole.bytes().end());
  REQUIRE(tiny::SafeTensors::parse(file).ok());
  for (std::size_t n = 0; n < 1200; ++n) REQUIRE_FALSE(tiny::SafeTensors::parse(std::span(file).first(n)).ok());
  REQUIRE_FALSE(tiny::SafeTensors::parse(std::span(file).first(file.size() - 1)).ok());

  std::mt19937 random(7);
  std::size_t refused = 0;
  for (int turn = 0; turn < 10000; ++turn) {
    std::vector<std::byte> bad(file.begin(), file.begin() + 896);
    bad.insert(bad.end(), file.begin() + 896, file.end());
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits; ++e) {
      const char* digits = "0123456789-.e[]{}\",:FBI ";
      bad[random() % 896] =
          random() % 2 == 0 ? static_cast<std::byte>(digits[random() % 24]) : static_cast<std::byte>(random() & 0xff);
    }
    const auto r = tiny::SafeTensors::parse(bad);
    if (!r) {
      ++refused;
      continue;
    }
    for (const auto& [name, t] : r->tensors()) {  // whatever was accepted lies inside the file
      REQUIRE(t.data.data() >= bad.data());
      REQUIRE(t.data.data() + t.data.size() <= bad.data() + bad.size());
    }
  }
  REQUIRE(refused > 9000);
}

TEST_CASE("files that are not there or not files") {
  REQUIRE(tiny::SafeTensors::open("/nonexistent/model.safetensors").status().kind() == memra::ErrorKind::bad_argument);
  REQUIRE_FALSE(tiny::SafeTensors::open(rig::fixture("tiny")).ok());
  REQUIRE_FALSE(tiny::SafeTensors::open(rig::fixture("tiny/config.json")).ok());
}

TEST_CASE("weights: a missing tensor, a wrong shape and a wrong type are named") {
  memra::HostDev dev;
  const auto file = file_of(
      R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"i":{"dtype":"I32","shape":[1],"data_offsets":[24,28]}})",
      28);
  const auto tensors = memra::check(tiny::SafeTensors::parse(file));
  const auto sentence = [&](const char* name, std::size_t out, std::size_t in) {
    tiny::WeightReader<memra::HostDev> r(dev, tensors, "");
    r.matrix(name, out, in);
    return std::string(r.status().ok() ? "" : r.status().text());
  };
  REQUIRE(sentence("w", 2, 3).empty());
  REQUIRE(says(sentence("x", 2, 3), "x is missing"));
  REQUIRE(says(sentence("w", 3, 2), "shape [2, 3]"));
  tiny::WeightReader<memra::HostDev> r(dev, tensors, "");
  r.floats("i", {1});
  REQUIRE(says(r.status().text(), "not of dtype"));
}
}  // namespace loader_cpp
