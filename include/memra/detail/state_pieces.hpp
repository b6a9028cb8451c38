// The bytes that make up a state at a boundary, as runs in the planes of a plan: what a prefix and a hand-over move.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/layout.hpp>
#include <memra/plan.hpp>
#include <memra/views.hpp>
#include <vector>

namespace memra::detail {

/// A run of bytes of one plane.
struct StatePiece {
  std::size_t plane = 0;   ///< index in Plan::planes
  std::size_t offset = 0;  ///< bytes from the start of the plane
  std::size_t bytes = 0;
  bool joins = false;  ///< short, and one of a sub-plane's columns: travels in one run with the piece before
};

/// Rows that a state of `n` tokens holds of a plane.
inline std::size_t rows_at(const PlanePlan& p, std::size_t n) noexcept {
  return n / p.stride;
}

/// The first row that a state of `n` rows holds of a plane: of a ring, what the token at n still sees.
inline std::size_t first_kept(const PlanePlan& p, std::size_t n) noexcept {
  return p.window == 0 ? 0 : n - std::min(n, p.window - 1);
}

/// First the rows of n tokens of every plane of rows, one piece per column of a sub-plane, of a ring the rows of the
/// window at n, one piece per column and tile; then every conv and ssm whole; each in the order of the plan's planes.
/// Two plans of one model give the same sizes in the same order, whatever their rows and placements: no ring splits a
/// tile. Second buffers and what rounds keep carry nothing from step to step and are left out.
/// @pre n <= plan.max_ctx
inline std::vector<StatePiece> state_pieces(const Plan& plan, std::size_t n) {
  std::vector<StatePiece> pieces;
  for (std::size_t i = 0; i < plan.planes.size(); ++i) {
    const PlanePlan& p = plan.planes[i];
    if (p.slab != SlabKind::rows) continue;
    const SubPlanes parts = sub_planes(p.shape);
    std::size_t run = 0;  // of a row range
    for (std::size_t part = 0; part < parts.count; ++part) {
      bool joins = false;
      for (const std::size_t end = run + parts.part[part].columns; run < end; ++run) {
        for (std::size_t row = first_kept(p, n); row < rows_at(p, n);) {
          const std::size_t rows = p.window == 0 ? rows_at(p, n) : std::min(n, (row / ring_tile + 1) * ring_tile) - row;
          const Segment at = segments(p.shape, p.ring ? row % p.shape.rows : row, rows)[run];
          pieces.push_back({i, at.offset, at.bytes, joins});
          joins = parts.part[part].columns != 1;
          row += rows;
        }
      }
    }
  }
  for (std::size_t i = 0; i < plan.planes.size(); ++i) {
    const PlanePlan& p = plan.planes[i];
    if (p.slab == SlabKind::state && p.payload != 0) pieces.push_back({i, 0, p.payload, false});
  }
  return pieces;
}

/// How many of them are rows: those that come first.
inline std::size_t row_pieces(const Plan& plan, const std::vector<StatePiece>& pieces) {
  const auto state = std::find_if(pieces.begin(), pieces.end(),
                                  [&](const StatePiece& p) { return plan.planes[p.plane].slab == SlabKind::state; });
  return static_cast<std::size_t>(state - pieces.begin());
}

/// How many they are, without making them.
/// @pre as state_pieces
inline std::size_t state_piece_count(const Plan& plan, std::size_t n) noexcept {
  std::size_t count = 0;
  for (const PlanePlan& p : plan.planes) {
    if (p.slab == SlabKind::state && p.payload != 0) ++count;
    if (p.slab != SlabKind::rows) continue;
    const std::size_t first = first_kept(p, n);
    const std::size_t tiles = p.window == 0 ? 1 : (n + ring_tile - 1) / ring_tile - first / ring_tile;
    if (first < rows_at(p, n)) count += tiles * sub_planes(p.shape).columns;
  }
  return count;
}

/// Where a piece is, given the slab starts of its device.
/// @param slab  callable (device index, SlabKind) -> std::byte*
template <class Slab>
std::byte* address(const Plan& plan, const StatePiece& piece, const Slab& slab) {
  const PlanePlan& p = plan.planes[piece.plane];
  return slab(p.device, p.slab) + p.offset + piece.offset;
}

}  // namespace memra::detail
