// The one place that knows bytes: plan() lays out every plane of a cache, and the allocator takes what it says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/detail/checked_math.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/detail/spec_checks.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/layout.hpp>
#include <memra/model_config.hpp>
#include <memra/placement.hpp>
#include <memra/plan_kinds.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>
#include <span>
#include <variant>
#include <vector>

namespace memra {

/// Bytes after every K and V plane: kernels that load aligned words may touch a few bytes past the last block.
inline constexpr std::size_t kv_tail_pad = 8;

struct PlanePlan {
  std::size_t layer = 0;
  std::size_t state = 0;  ///< index in LayerSpec::states
  PlaneKind kind = PlaneKind::k;
  std::size_t stage = 0;
  std::size_t device = 0;
  SlabKind slab = SlabKind::rows;
  std::size_t offset = 0;    ///< bytes from the start of the slab; a multiple of plane_alignment
  std::size_t payload = 0;   ///< bytes that hold data
  std::size_t tail_pad = 0;  ///< kv_tail_pad for planes of rows, 0 otherwise
  std::size_t pad = 0;       ///< gap and alignment up to the next plane or the end of the slab
  std::size_t window = 0;    ///< of a ring, or of planes that hold one whole: only its last rows are kept by a prefix
  bool ring = false;         ///< row r is physical row r mod shape.rows
  std::size_t stride = 1;    ///< tokens of a row
  PlaneShape shape;          ///< rows: as stored; conv, ssm: [rows][width] = [conv_dim][d_conv-1], [n_v*d_v][d_k]
};

struct StagePlan {
  std::size_t first_layer = 0;
  std::size_t end_layer = 0;  ///< the last stage also owns layers past the fence
  std::size_t device = 0;
  std::size_t pos_offset = 0;    ///< of pos_d in the device's rows slab
  std::size_t round_offset = 0;  ///< of the stage's RoundWords in the extra slab; its table follows, plane_alignment on
};

struct DevicePlan {
  std::size_t rows_bytes = 0;
  std::size_t state_bytes = 0;
  std::size_t extra_bytes = 0;
  std::size_t replay_offset = 0;  ///< of the copy that replay rounds make of the state slab, in the extra slab

  std::size_t bytes(SlabKind kind) const noexcept {
    return kind == SlabKind::rows ? rows_bytes : kind == SlabKind::state ? state_bytes : extra_bytes;
  }
};

/// Sums over all devices. total_bytes is exactly what Cache::create allocates, and the sum of all the others.
struct PlanTotals {
  std::size_t k_bytes = 0;
  std::size_t v_bytes = 0;
  std::size_t grouped_bytes = 0;  ///< of rows that stand for several tokens: max_ctx / stride of them
  std::size_t conv_bytes = 0;
  std::size_t ssm_bytes = 0;
  std::size_t second_buffer_bytes = 0;
  std::size_t round_bytes = 0;   ///< all that rounds need, see RoundPlan
  std::size_t mirror_bytes = 0;  ///< one int per stage
  std::size_t tail_pad_bytes = 0;
  std::size_t pad_bytes = 0;  ///< alignment and gaps
  std::size_t total_bytes = 0;
  // Growth per row of context: planes of max_ctx rows. Rings do not grow.
  std::size_t bytes_per_token = 0;      ///< of the trunk
  std::size_t mtp_bytes_per_token = 0;  ///< of the blocks past it, see ModelConfig::n_mtp
  std::size_t ring_cap_bytes = 0;    ///< of a full window in every ring: what they hold once the context is that long
  std::size_t ring_slack_bytes = 0;  ///< payload of rings beyond that: part of k_bytes and v_bytes
  std::size_t snapshot_bytes = 0;    ///< of one CacheSnapshot: the state slabs
};

struct Plan {
  std::size_t max_ctx = 0;
  std::size_t max_rows = 0;       ///< most rows of one step or round: max_ctx, or what the smallest ring takes
  std::vector<PlanePlan> planes;  ///< in layer order, states in order, K before V, conv before ssm; then the rounds'
  std::vector<StagePlan> stages;
  std::vector<DevicePlan> devices;
  PlanTotals totals;
  RoundPlan round;
  std::vector<AttentionSpec> attention;  ///< one per state that is attended, for workspace_bytes
  std::size_t chunk_heads = 0;  ///< most value heads of a layer that has a chunked scan; 0: none has, see ScanClass

  /// Scratch that every op of this model needs for calls of up to `rows` rows, `batch` of them in one launch. The
  /// largest std::size_t, which no device gives, if the product does not fit.
  /// @param scan  chunked: steps of that class are to be among them
  std::size_t workspace_bytes(std::size_t rows, std::size_t batch = 1,
                              ScanClass scan = ScanClass::sequential) const noexcept {
    std::size_t most = 0;
    if (scan == ScanClass::chunked && chunk_heads != 0) most = detail::chunk_scan_bytes(chunk_heads, rows);
    for (const AttentionSpec& a : attention) {
      const std::size_t heads = a.n_heads == 0 ? a.n_kv_heads : a.n_heads;
      most = std::max(most, detail::attend_scratch_bytes(heads, a.n_kv_heads, a.head_dim_k, a.head_dim_v, rows));
    }
    const detail::CheckedSize all = detail::CheckedSize(most) * batch;
    return all.valid() ? all.value() : std::numeric_limits<std::size_t>::max();
  }
};

namespace detail {

/// Lays planes one after another in the slabs; every size is checked as it is added.
class PlanBuilder {
 public:
  PlanBuilder(Plan& plan, const Placement& placement) : plan_(&plan), placement_(&placement) {}

  void add(const PlanePlan& plane, CheckedSize payload) {
    if (!payload.valid()) {
      valid_ = false;
      return;
    }
    PlanePlan p = plane;
    std::size_t& end = slab(p.device, p.slab);
    p.payload = payload.value();
    p.tail_pad = p.slab == SlabKind::rows ? kv_tail_pad : 0;
    p.offset = end;
    const CheckedSize used = CheckedSize(end) + p.payload + p.tail_pad;
    const CheckedSize next = align_up(used + gap(p.device), plane_alignment);
    if (!next.valid()) {
      valid_ = false;
      return;
    }
    p.pad = next.value() - used.value();
    end = next.value();
    plan_->planes.push_back(p);
  }

  /// One int for the stage, on its own plane_alignment slot.
  std::size_t add_mirror(std::size_t device) {
    std::size_t& end = slab(device, SlabKind::rows);
    const std::size_t offset = end;
    end += plane_alignment;
    plan_->totals.mirror_bytes += sizeof(std::int32_t);
    plan_->totals.pad_bytes += plane_alignment - sizeof(std::int32_t);
    return offset;
  }

  /// Bytes of the extra slab that are no plane; 0 takes nothing.
  std::size_t add_extra(std::size_t device, CheckedSize bytes) {
    std::size_t& end = slab(device, SlabKind::extra);
    const CheckedSize next = align_up(bytes + end + gap(device), plane_alignment);
    valid_ = valid_ && next.valid();
    if (!valid_) return end;
    const std::size_t offset = end;
    plan_->totals.round_bytes += bytes.value();
    plan_->totals.pad_bytes += next.value() - offset - bytes.value();
    end = next.value();
    return offset;
  }

  /// Notes a size that does not fit.
  void require(CheckedSize size) noexcept { valid_ = valid_ && size.valid(); }
  bool valid() const noexcept { return valid_; }

 private:
  std::size_t gap(std::size_t device) const {
    return placement_->plane_gap.empty() ? 0 : placement_->plane_gap[device];
  }

  std::size_t& slab(std::size_t device, SlabKind kind) {
    DevicePlan& d = plan_->devices[device];
    return kind == SlabKind::rows ? d.rows_bytes : kind == SlabKind::state ? d.state_bytes : d.extra_bytes;
  }

  Plan* plan_;
  const Placement* placement_;
  bool valid_ = true;
};

inline void add_planes(PlanBuilder& b, PlanePlan at, const AttentionSpec& a, std::size_t max_ctx) {
  at.slab = SlabKind::rows;
  at.kind = PlaneKind::k;
  at.shape = {a.k_format, a.k_layout, ring_rows(a, max_ctx), a.n_kv_heads * a.head_dim_k};
  at.window = a.ring_slack == 0 ? 0 : a.window;
  at.ring = at.shape.rows < max_ctx;
  b.add(at, checked_plane_bytes(at.shape));
  if (a.v_in_k) return;
  at.kind = PlaneKind::v;
  at.shape = {a.v_format, a.v_layout, at.shape.rows, a.n_kv_heads * a.head_dim_v};
  b.add(at, checked_plane_bytes(at.shape));
}

inline void add_planes(PlanBuilder&, const PlanePlan&, const SharedKvSpec&, std::size_t) {}

inline void add_planes(PlanBuilder& b, PlanePlan at, const GroupedRowsSpec& g, std::size_t max_ctx) {
  at.slab = SlabKind::rows;
  at.kind = PlaneKind::grouped;
  at.stride = g.stride;
  at.shape = {g.format, g.layout, max_ctx / g.stride, g.dim};
  b.add(at, checked_plane_bytes(at.shape));
}

inline void add_planes(PlanBuilder& b, PlanePlan at, const RecurrentSpec& r, std::size_t /*max_ctx*/) {
  at.slab = SlabKind::state;
  at.kind = PlaneKind::conv;
  at.shape = {r.conv_format, Layout::blocks, r.conv_dim(), r.d_conv - 1};
  b.add(at, checked_plane_bytes(at.shape));
  at.kind = PlaneKind::ssm;
  at.shape = {r.ssm_format, Layout::blocks, r.n_v_heads * r.d_v, r.d_k};
  b.add(at, checked_plane_bytes(at.shape));
  if (r.second_buffer) {
    at.slab = SlabKind::extra;
    at.kind = PlaneKind::ssm_alt;
    b.add(at, checked_plane_bytes(at.shape));
  }
}

/// What attends: notes its geometry for the workspace, and what its planes grow by.
inline void note_attention(PlanBuilder& b, Plan& plan, const StateSpec& state, const ModelConfig& cfg,
                           std::size_t layer) {
  std::visit(Overloaded{[&](const AttentionSpec& a) {
                          if (a.head_dim_v != 0) plan.attention.push_back(a);
                          const std::size_t row = row_bytes(a.k_format, a.n_kv_heads * a.head_dim_k) +
                                                  (a.v_in_k ? 0 : row_bytes(a.v_format, a.n_kv_heads * a.head_dim_v));
                          const bool mtp = layer >= cfg.layers.size() - cfg.n_mtp;
                          PlanTotals& t = plan.totals;
                          if (a.ring_slack == 0) {
                            (mtp ? t.mtp_bytes_per_token : t.bytes_per_token) += row;
                          } else {
                            const std::size_t rows = ring_rows(a, plan.max_ctx);
                            b.require(CheckedSize(t.ring_cap_bytes) + CheckedSize(row) * a.window);
                            t.ring_cap_bytes += row * a.window;
                            t.ring_slack_bytes += row * (rows - std::min(rows, a.window));
                          }
                          plan.max_rows = std::min(plan.max_rows, call_rows(a, plan.max_ctx));
                        },
                        [&](const SharedKvSpec& s) {
                          AttentionSpec a = *owned_attention(cfg, s.donor, s.nth);
                          if (s.n_heads != 0) a.n_heads = s.n_heads;
                          if (a.head_dim_v != 0) plan.attention.push_back(a);
                        },
                        [&](const RecurrentSpec& r) {
                          if (r.has_chunks()) plan.chunk_heads = std::max(plan.chunk_heads, r.n_v_heads);
                        },
                        [](const GroupedRowsSpec&) {}},
             state);
}

/// Adds what rounds need; see round_plan.hpp.
inline Status add_rounds(PlanBuilder& b, Plan& plan, const ModelConfig& cfg, const RoundOptions& options);

inline Status sum_plan(Plan& plan) noexcept {
  PlanTotals& t = plan.totals;
  CheckedSize total = 0;
  for (const DevicePlan& d : plan.devices) {
    total = total + d.rows_bytes + d.state_bytes + d.extra_bytes;
    t.snapshot_bytes += d.state_bytes;
  }
  if (!total.valid()) return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "the total does not fit");
  t.total_bytes = total.value();
  for (const PlanePlan& p : plan.planes) {
    t.tail_pad_bytes += p.tail_pad;
    t.pad_bytes += p.pad;
    switch (p.kind) {
      case PlaneKind::k:
        t.k_bytes += p.payload;
        break;
      case PlaneKind::v:
        t.v_bytes += p.payload;
        break;
      case PlaneKind::grouped:
        t.grouped_bytes += p.payload;
        break;
      case PlaneKind::conv:
        t.conv_bytes += p.payload;
        break;
      case PlaneKind::ssm:
        t.ssm_bytes += p.payload;
        break;
      case PlaneKind::ssm_alt:
        t.second_buffer_bytes += p.payload;
        break;
      case PlaneKind::round_planes:
      case PlaneKind::round_conv:
      case PlaneKind::round_k:
      case PlaneKind::round_u:
      case PlaneKind::round_decay:
        t.round_bytes += p.payload;
        break;
    }
  }
  return {};
}

}  // namespace detail

/// Lays out the whole state of `cfg` for up to `max_ctx` rows.
///
/// @param max_ctx  rows; 1 to 2147483647 (positions on the device are 32-bit)
/// @param rounds   what take-backs to pay for
/// @return bad_argument naming the layer and the field, or the fence, or the size that does not fit
inline Result<Plan> plan(const ModelConfig& cfg, std::size_t max_ctx, const Placement& placement,
                         const RoundOptions& rounds = {}) {
  if (max_ctx == 0 || max_ctx > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "max_ctx is %zu; expected 1 to 2147483647", max_ctx);
  }
  if (!(detail::CheckedSize(cfg.n_vocab) * sizeof(float)).valid()) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "n_vocab is %zu: a row of logits does not fit",
                           cfg.n_vocab);
  }
  if (Status s = detail::check_placement(placement, cfg.layers.size()); !s) return s;

  if (cfg.n_mtp > cfg.layers.size()) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "n_mtp is %zu of %zu layers", cfg.n_mtp,
                           cfg.layers.size());
  }
  Plan p;
  p.max_ctx = max_ctx;
  p.max_rows = max_ctx;
  p.devices.resize(*std::max_element(placement.device_of.begin(), placement.device_of.end()) + 1);
  if (!placement.plane_gap.empty() && placement.plane_gap.size() < p.devices.size()) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "%zu plane gaps for %zu devices",
                           placement.plane_gap.size(), p.devices.size());
  }
  detail::PlanBuilder builder(p, placement);
  for (std::size_t s = 0; s < placement.device_of.size(); ++s) {
    const bool last = s + 1 == placement.device_of.size();
    const std::size_t device = placement.device_of[s];
    p.stages.push_back(
        {placement.fence[s], last ? cfg.layers.size() : placement.fence[s + 1], device, builder.add_mirror(device)});
  }
  for (std::size_t il = 0; il < cfg.layers.size(); ++il) {
    PlanePlan at;
    at.layer = il;
    at.stage = stage_of(placement, il);
    at.device = placement.device_of[at.stage];
    for (at.state = 0; at.state < cfg.layers[il].states.size(); ++at.state) {
      const StateSpec& spec = cfg.layers[il].states[at.state];
      const Status valid = std::visit([&](const auto& s) { return detail::check_spec(s, cfg, placement, il); }, spec);
      if (!valid) return valid;
      std::visit([&](const auto& s) { detail::add_planes(builder, at, s, max_ctx); }, spec);
      detail::note_attention(builder, p, spec, cfg, il);
    }
  }
  if (Status s = detail::add_rounds(builder, p, cfg, rounds); !s) return s;
  if (!builder.valid()) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0,
                           "the planes for %zu rows do not fit in memory addresses", max_ctx);
  }
  if (Status s = detail::sum_plan(p); !s) return s;
  return p;
}

inline Result<Plan> plan(const ModelConfig& cfg, std::size_t max_ctx) {
  return plan(cfg, max_ctx, Placement::single(cfg.layers.size()));
}

}  // namespace memra

#include <memra/detail/round_plan.hpp>  // defines add_rounds; needs all of the above
