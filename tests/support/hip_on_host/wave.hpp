// One block of a kernel on the host: every lane is a fiber, lanes of a wave meet where they exchange values, all of
// them at barriers. What hardware leaves open is under the tests' control: lanes of a wave, the order of waves. What it
// forbids is an error: reading a lane that is not there, barriers that not all lanes reach. For tests only.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <hip/hip_runtime_api.h>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace hip_on_host {

/// What tests choose.
struct Settings {
  unsigned wave = 64;            ///< lanes: 32 or 64
  bool last_wave_first = false;  ///< the order in which waves go on
};
inline Settings& settings() {
  static Settings s;
  return s;
}

/// How often lanes have asked for a value of another: which kind of kernel ran.
inline std::size_t& exchanges() {
  static std::size_t n = 0;
  return n;
}

/// Where a lane is.
struct Here {
  dim3 thread{0, 0, 0}, block{0, 0, 0}, block_size, grid_size;
};

enum class Wait { no, exchange, barrier, done };

struct Lane {
  Here here;
  Wait wait = Wait::no;
  int value = 0;
  int control = 0;
  int received = 0;
  const char* file = nullptr;
  int line = 0;
  jmp_buf at{};
  bool started = false;
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
};

/// What went wrong in the kernels so far; nullptr: nothing.
inline const char*& fault() {
  static const char* text = nullptr;
  return text;
}

struct Block {
  std::vector<Lane> lanes;
  unsigned n = 0;
  Lane* running = nullptr;
  Here alone;  ///< of kernels whose lanes do not meet
  jmp_buf scheduler{};
  ucontext_t home{};
  void (*body)(const void*) = nullptr;
  const void* argument = nullptr;
};
inline Block& block() {
  static thread_local Block b;
  return b;
}
inline Here& here() {
  Block& b = block();
  return b.running == nullptr ? b.alone : b.running->here;
}

/// Back to the scheduler until it goes on with this lane.
inline void pause_lane() {
  Lane& me = *block().running;
  if (_setjmp(me.at) == 0) _longjmp(block().scheduler, 1);
}
inline int exchange(int value, int control) {
  ++exchanges();
  Lane& me = *block().running;
  me.value = value;
  me.control = control;
  me.wait = Wait::exchange;
  pause_lane();
  return me.received;
}
inline void barrier(const char* file, int line) {
  Lane& me = *block().running;
  me.wait = Wait::barrier;
  me.file = file;
  me.line = line;
  pause_lane();
}

/// The lane of the same row of sixteen that `control` reads; -1: no such control.
inline int source_lane(int lane, int control) {
  const int row = lane / 16 * 16;
  const int i = lane % 16;
  if (control >= 0 && control < 0x100) return row + i / 4 * 4 + ((control >> (2 * (i % 4))) & 3);  // quad_perm
  if (control > 0x120 && control < 0x130) return row + (i + 16 - (control - 0x120)) % 16;          // row_ror
  if (control == 0x141) return row + i / 8 * 8 + 7 - i % 8;                                        // row_half_mirror
  return -1;
}

inline void lane_main() {
  for (;;) {
    block().body(block().argument);
    block().running->wait = Wait::done;
    pause_lane();
  }
}

/// Goes on with a lane until it waits or is done.
inline void resume(Lane& lane) {
  Block& b = block();
  b.running = &lane;
  lane.wait = Wait::no;
  if (_setjmp(b.scheduler) == 0) {
    if (lane.started) _longjmp(lane.at, 1);
    lane.started = true;
    constexpr std::size_t stack_bytes = std::size_t{128} << 10;
    lane.stack = std::make_unique<char[]>(stack_bytes);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    // Stacks that end at the same offset of a page would share the same few lines of the cache.
    lane.context.uc_stack.ss_size = stack_bytes - lane.here.thread.x % 64 * 1088;
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, lane_main, 0);
    setcontext(&lane.context);
  }
  b.running = nullptr;
}

/// Every lane of [from, to) that waits for an exchange gets its value. @return false: none waited
inline bool resolve(unsigned from, unsigned to) {
  Block& b = block();
  bool any = false;
  for (unsigned i = from; i < to; ++i) {
    Lane& lane = b.lanes[i];
    if (lane.wait != Wait::exchange) continue;
    any = true;
    const int at = source_lane(static_cast<int>(i), lane.control);
    const bool there = at >= static_cast<int>(from) && at < static_cast<int>(to);
    if (!there || b.lanes[static_cast<std::size_t>(at)].wait != Wait::exchange ||
        b.lanes[static_cast<std::size_t>(at)].control != lane.control) {
      fault() = "a lane reads one that does not take part";
      lane.received = -1;
      continue;
    }
    lane.received = b.lanes[static_cast<std::size_t>(at)].value;
  }
  return any;
}

/// One wave, until all its lanes are at a barrier or done.
inline void run_wave(unsigned from, unsigned to) {
  Block& b = block();
  do {
    for (unsigned i = from; i < to; ++i) {
      if (b.lanes[i].wait == Wait::no || b.lanes[i].wait == Wait::exchange) resume(b.lanes[i]);
    }
  } while (resolve(from, to));
}

/// Runs `body(argument)` in `n` lanes of one block.
inline void run_block(unsigned n, dim3 at, dim3 grid, void (*body)(const void*), const void* argument) {
  Block& b = block();
  if (b.lanes.size() < n) b.lanes.resize(n);  // nobody holds the address of a lane between blocks
  b.body = body;
  b.argument = argument;
  for (unsigned i = 0; i < n; ++i) {
    b.lanes[i].here = {dim3(i, 0, 0), at, dim3(n, 1, 1), grid};
    b.lanes[i].wait = Wait::no;
  }
  const unsigned wave = settings().wave;
  const unsigned waves = (n + wave - 1) / wave;
  for (;;) {
    for (unsigned w = 0; w < waves; ++w) {
      const unsigned first = (settings().last_wave_first ? waves - 1 - w : w) * wave;
      run_wave(first, first + wave < n ? first + wave : n);
    }
    const Lane* waiting = nullptr;
    for (unsigned i = 0; i < n; ++i) {
      Lane& lane = b.lanes[i];
      if (lane.wait != Wait::barrier) continue;
      if (waiting != nullptr && (lane.line != waiting->line || lane.file != waiting->file)) {
        fault() = "lanes of a block wait at different barriers";
      }
      waiting = &lane;
    }
    if (waiting == nullptr) return;
    for (unsigned i = 0; i < n; ++i) {
      if (b.lanes[i].wait == Wait::barrier)
        b.lanes[i].wait = Wait::no;
      else if (b.lanes[i].wait == Wait::done)
        fault() = "a lane is done where others wait at a barrier";
    }
  }
}

}  // namespace hip_on_host
