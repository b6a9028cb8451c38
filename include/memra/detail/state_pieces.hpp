// The bytes that make up a state at a boundary, as runs in the planes of a plan: what a prefix and a hand-over move.
#pragma once

#include <cstddef>
#include <memra/layout.hpp>
#include <memra/plan.hpp>
#include <vector>

namespace memra::detail {

/// A run of bytes of one plane.
struct StatePiece {
  std::size_t plane = 0;   ///< index in Plan::planes
  std::size_t offset = 0;  ///< bytes from the start of the plane
  std::size_t bytes = 0;
};

/// First rows [0, n) of every K and V plane, one piece per sub-plane, then every conv and ssm whole; each in the order
/// of the plan's planes. Two plans of one model give the same sizes in the same order, whatever their rows and
/// placements. Second buffers and what rounds keep carry nothing from step to step and are left out.
/// @pre n <= plan.max_ctx
inline std::vector<StatePiece> state_pieces(const Plan& plan, std::size_t n) {
  std::vector<StatePiece> pieces;
  for (std::size_t i = 0; i < plan.planes.size(); ++i) {
    const PlanePlan& p = plan.planes[i];
    if (p.slab != SlabKind::rows) continue;
    const Segments runs = segments(p.shape, 0, n);
    for (std::size_t r = 0; r < runs.count; ++r) pieces.push_back({i, runs.run[r].offset, runs.run[r].bytes});
  }
  for (std::size_t i = 0; i < plan.planes.size(); ++i) {
    const PlanePlan& p = plan.planes[i];
    if (p.slab == SlabKind::state && p.payload != 0) pieces.push_back({i, 0, p.payload});
  }
  return pieces;
}

/// Where a piece is, given the slab starts of its device.
/// @param slab  callable (device index, SlabKind) -> std::byte*
template <class Slab>
std::byte* address(const Plan& plan, const StatePiece& piece, const Slab& slab) {
  const PlanePlan& p = plan.planes[piece.plane];
  return slab(p.device, p.slab) + p.offset + piece.offset;
}

}  // namespace memra::detail
