// What a conformance property is and how it says what is wrong. No test framework is needed.
#pragma once

#include <cstdio>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace memra_conformance {

/// Collects the sentences of one property that turned out false.
class Report {
 public:
  /// @return `holds`, so that a property can stop where going on makes no sense
  bool that(bool holds, const std::string& sentence) {
    if (!holds) failures_.push_back(sentence);
    return holds;
  }
  bool that(const memra::Status& status, const std::string& what) {
    return that(status.ok(), what + ": " + status.message());
  }
  template <class T>
  bool that(const memra::Result<T>& result, const std::string& what) {
    return that(result.ok(), what + ": " + result.status().message());
  }
  /// Says why the property does not apply to this device: nothing was checked, and nothing failed.
  void not_checked(const std::string& why) { why_not_ = why; }
  bool checked() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  bool ok() const { return failures_.empty(); }
  const std::vector<std::string>& failures() const { return failures_; }
  std::string text() const {
    std::string all;
    for (const std::string& f : failures_) all += f + "\n";
    return all;
  }

 private:
  std::vector<std::string> failures_;
  std::string why_not_;
};

/// One promise of the contract. The name starts with the rule's number in docs/contract.md. Every device is asked for
/// every promise: what one cannot show says `not_checked`, so that its author knows what nobody has looked at.
struct Property {
  std::string name;
  void (*run)(Report&);
};

/// A fresh device for one property. `Make` is a default-constructible device, or a default-constructible type that
/// keeps one and has `dev()`: for devices that need arguments, or a stack of wrappers. Optional members of such a type:
///   static constexpr bool beyond_4_gib = true;  // the device can hold more than 4 GiB, mostly untouched
///   void lose();                                // kills the device's context, so that every call says so
///   void fail_late();                           // makes queued work fail once the call that queued it has returned:
///                                               // work of its own, or that of the next fill
/// Neither may harm another device object: every property makes its own.
template <class Make>
class Made {
 public:
  auto& dev() {
    if constexpr (memra::KvDev<Make>) {
      return make_;
    } else {
      return make_.dev();
    }
  }
  Make& make() { return make_; }

 private:
  Make make_;
};

template <class Make>
using DevOf = std::remove_reference_t<decltype(std::declval<Made<Make>&>().dev())>;

template <class Make>
constexpr bool holds_4_gib = requires {
  Make::beyond_4_gib;
};
template <class Make>
constexpr bool can_lose = requires(Make& make) {
  make.lose();
};
template <class Make>
constexpr bool can_fail_late = requires(Make& make) {
  make.fail_late();
};

/// Also where there is one, and it answers nullptr: an AnyDev of a device without.
inline constexpr const char* no_work_log = "the device has no work_log";

/// Runs one property; an Error that escapes from it is one of its failures.
inline Report attempt(const Property& property) {
  Report report;
  try {
    property.run(report);
  } catch (const memra::Error& e) {
    report.that(false, e.what());
  }
  return report;
}

/// Runs properties and prints one line for each; @return how many failed.
inline int run(const std::vector<Property>& properties, const char* device) {
  int failed = 0;
  int not_checked = 0;
  for (const Property& p : properties) {
    const Report report = attempt(p);
    if (report.ok() && !report.checked()) {
      ++not_checked;
      std::printf("not checked %s: %s: %s\n", device, p.name.c_str(), report.why_not().c_str());
      continue;
    }
    failed += report.ok() ? 0 : 1;
    std::printf("%-11s %s: %s\n%s", report.ok() ? "ok" : "FAILED", device, p.name.c_str(), report.text().c_str());
  }
  std::printf("%s: %zu properties, %d failed, %d not checked\n", device, properties.size(), failed, not_checked);
  return failed;
}

}  // namespace memra_conformance
