// Compiling this is the test: each near miss lacks exactly the sub-concept it is about, its twin lacks none.
#include <concepts/minimal_dev.hpp>
#include <concepts/near_misses.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>

namespace {

using namespace memra_test;

/// How many of KvDev's sub-concepts D lacks.
template <class D>
constexpr int missing() {
  return !memra::DevHasBuffer<D> + !memra::DevAllocs<D> + !memra::DevZeros<D> + !memra::DevCopies<D> +
         !memra::DevMoves<D> + !memra::DevFills<D> + !memra::DevUploads<D> + !memra::DevDownloads<D> +
         !memra::DevStores<D> + !memra::DevSyncs<D> + !memra::DevOrders<D>;
}

static_assert(missing<MinimalDev>() == 0 && memra::KvDev<MinimalDev>);
static_assert(missing<memra::HostDev>() == 0 && memra::KvDev<memra::HostDev>);
static_assert(missing<int>() == 11 && !memra::KvDev<int>);

// Nothing optional comes for free.
static_assert(!memra::LaunchDev<MinimalDev> && !memra::BatchedCopyDev<MinimalDev> && !memra::PeerCopyDev<MinimalDev> &&
              !memra::WorkLogDev<MinimalDev>);

// alloc and zeros return the buffer, so a bad one takes them along.
static_assert(!memra::DevHasBuffer<BufferIsVector<false>> && missing<BufferIsVector<false>>() == 3);
static_assert(!memra::DevAllocs<AllocReturnsBuffer<false>> && missing<AllocReturnsBuffer<false>>() == 1);
static_assert(!memra::DevZeros<ZerosInPlace<false>> && missing<ZerosInPlace<false>>() == 1);
static_assert(!memra::DevCopies<CopyMayThrow<false>> && missing<CopyMayThrow<false>>() == 1);
static_assert(!memra::DevMoves<MoveReturnsVoid<false>> && missing<MoveReturnsVoid<false>>() == 1);
static_assert(!memra::DevFills<FillTakesInt<false>> && missing<FillTakesInt<false>>() == 1);
static_assert(!memra::DevUploads<UploadWantsMutableSource<false>> && missing<UploadWantsMutableSource<false>>() == 1);
static_assert(!memra::DevDownloads<DownloadReturnsBool<false>> && missing<DownloadReturnsBool<false>>() == 1);
static_assert(!memra::DevStores<StoreTakesInt64<false>> && missing<StoreTakesInt64<false>>() == 1);
static_assert(!memra::DevSyncs<SyncTakesArgument<false>> && missing<SyncTakesArgument<false>>() == 1);
static_assert(!memra::DevOrders<EventNeedsStream<false>> && missing<EventNeedsStream<false>>() == 1);
static_assert(!memra::DevOrders<PublishReturnsVoid<false>> && missing<PublishReturnsVoid<false>>() == 1);
static_assert(!memra::DevOrders<WaitMayThrow<false>> && missing<WaitMayThrow<false>>() == 1);

// It is a device, but not one that says what became of its work.
static_assert(missing<WorkLogMayThrow<false>>() == 0 && memra::DevNamesLog<WorkLogMayThrow<false>> &&
              !memra::WorkLogDev<WorkLogMayThrow<false>>);
static_assert(memra::WorkLogDev<WorkLogMayThrow<true>> && !memra::DevNamesLog<MinimalDev>);

static_assert(memra::KvDev<BufferIsVector<true>> && memra::KvDev<AllocReturnsBuffer<true>> &&
              memra::KvDev<ZerosInPlace<true>> && memra::KvDev<CopyMayThrow<true>> &&
              memra::KvDev<MoveReturnsVoid<true>> && memra::KvDev<FillTakesInt<true>> &&
              memra::KvDev<UploadWantsMutableSource<true>> && memra::KvDev<DownloadReturnsBool<true>> &&
              memra::KvDev<StoreTakesInt64<true>> && memra::KvDev<SyncTakesArgument<true>> &&
              memra::KvDev<EventNeedsStream<true>> && memra::KvDev<PublishReturnsVoid<true>> &&
              memra::KvDev<WaitMayThrow<true>>);

}  // namespace
