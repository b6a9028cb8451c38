// How a batch of copies becomes strided ones: blocks found, blocks refused, and every byte of random batches.
#include <cstddef>
#include <cstring>
#include <memra/detail/copy_runs.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

namespace copy_runs_cpp {
namespace {

using memra::CopyItem;
using memra::detail::copy_block;
using memra::detail::CopyBlock;
using Bytes = std::vector<std::byte>;

constexpr std::size_t longest = 100000;

bool is(const CopyBlock& b, std::size_t period, std::size_t height) {
  return b.period == period && b.height == height;
}

/// `layers` layers of pieces with these sizes, at equal distances.
std::vector<CopyItem> planes(Bytes& dst, const Bytes& src, std::size_t layers, const std::vector<std::size_t>& sizes) {
  std::vector<CopyItem> items;
  for (std::size_t l = 0; l < layers; ++l) {
    for (std::size_t j = 0; j < sizes.size(); ++j) {
      items.push_back({dst.data() + (l * sizes.size() + j) * 200, src.data() + (l * sizes.size() + j) * 700, sizes[j]});
    }
  }
  return items;
}

TEST_CASE("pieces at equal distances are one block") {
  Bytes dst(100000);
  const Bytes src(200000);
  auto items = planes(dst, src, 10, {40});
  REQUIRE(is(copy_block(items.data(), 10, longest), 1, 10));
  REQUIRE(is(copy_block(items.data(), 1, longest), 1, 1));
  items = planes(dst, src, 16, {40, 10, 8, 40, 24, 16});
  REQUIRE(is(copy_block(items.data(), items.size(), longest), 6, 16));
  REQUIRE(is(copy_block(items.data(), items.size() - 1, longest), 6, 15));
  // What breaks a block: another size, another distance, a pitch that is too long, a step back, pieces that would
  // overlap.
  items = planes(dst, src, 10, {40});
  items[6].bytes = 41;
  REQUIRE(is(copy_block(items.data(), 10, longest), 1, 6));
  items[6].bytes = 40;
  items[4].src += 1;
  REQUIRE(is(copy_block(items.data(), 7, longest), 1, 4));
  REQUIRE(is(copy_block(items.data(), 10, longest), 5, 2));  // five pairs save more calls
  items[4].src -= 1;
  items[4].dst -= 1;
  REQUIRE(is(copy_block(items.data(), 7, longest), 1, 4));
  items[4].dst += 1;
  REQUIRE(is(copy_block(items.data(), 10, 700), 1, 10));
  REQUIRE(is(copy_block(items.data(), 10, 699), 1, 1));
  std::vector<CopyItem> back(items.rbegin(), items.rend());
  REQUIRE(is(copy_block(back.data(), 10, longest), 1, 1));
  for (CopyItem& i : items) i.bytes = 201;
  REQUIRE(is(copy_block(items.data(), 3, longest), 1, 1));
}

/// Does what a device with strided copies does.
void run(const std::vector<CopyItem>& items, std::size_t& calls) {
  for (std::size_t i = 0; i < items.size();) {
    const CopyBlock b = copy_block(items.data() + i, items.size() - i, longest);
    REQUIRE(b.period * b.height <= items.size() - i);
    for (std::size_t j = i; j < i + b.period; ++j) {
      ++calls;
      for (std::size_t r = 0; r < b.height; ++r) {
        const CopyItem& first = items[j];
        const CopyItem& second = b.height == 1 ? first : items[j + b.period];
        std::memcpy(first.dst + r * memra::detail::pitch_between(first.dst, second.dst),
                    first.src + r * memra::detail::pitch_between(first.src, second.src), first.bytes);
      }
    }
    i += b.period * b.height;
  }
}

TEST_CASE("strided copies move the bytes of the batch, whatever its pattern") {
  memra_test::Rng rng(11);
  Bytes src(200000);
  for (std::byte& b : src) b = static_cast<std::byte>(rng.next());
  std::size_t calls = 0;
  std::size_t items_in_all = 0;
  for (int round = 0; round < 300; ++round) {
    Bytes dst(100000);
    Bytes want(100000);
    std::vector<std::size_t> sizes;
    for (std::size_t i = 0; i < 1 + rng.next() % 7; ++i) sizes.push_back(rng.next() % 5 == 0 ? 0 : rng.next() % 150);
    auto items = planes(dst, src, 1 + rng.next() % 20, sizes);
    for (std::size_t i = 0; i < rng.next() % 4; ++i) {
      CopyItem& odd = items[rng.next() % items.size()];
      odd.src += rng.next() % 40;
      odd.bytes = odd.bytes / 2;
    }
    for (const CopyItem& i : items) {
      if (i.bytes != 0) std::memcpy(want.data() + (i.dst - dst.data()), i.src, i.bytes);
    }
    run(items, calls);
    REQUIRE((dst == want));
    items_in_all += items.size();
  }
  REQUIRE(calls * 2 < items_in_all);  // else nothing was joined
}

}  // namespace
}  // namespace copy_runs_cpp
