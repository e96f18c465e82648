// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#include <kvxfer/error.hpp>
#include <kvxfer/pool_layout.hpp>

#include <set>
#include <utility>

namespace kvxfer {

namespace {

constexpr std::int64_t kMaxPlaneBytes = std::int64_t{1} << 62;
constexpr std::int64_t kMaxRowBytes = std::int64_t{1} << 30;

void require_sizes(const Plane& plane) {
  detail::require(plane.layer >= 0, "expected layer >= 0, got ", plane.layer);
  detail::require(plane.row_bytes >= 1 && plane.row_bytes <= kMaxRowBytes, to_string(plane),
                  ": expected row_bytes in [1, 2^30], got ", plane.row_bytes);
  detail::require(plane.row_stride_bytes >= 0 && plane.page_stride_bytes >= 0 &&
                      plane.page_offset_bytes >= 0 && plane.head_bytes >= 0,
                  to_string(plane),
                  ": expected strides, page_offset_bytes and head_bytes >= 0, got ",
                  plane.row_stride_bytes, ", ", plane.page_stride_bytes, ", ",
                  plane.page_offset_bytes, ", ", plane.head_bytes);
  detail::require(plane.row_stride_bytes == 0 || (plane.row_stride_bytes >= plane.row_bytes &&
                                                  plane.row_stride_bytes <= kMaxRowBytes),
                  to_string(plane), ": expected row_stride_bytes in [row_bytes ", plane.row_bytes,
                  ", 2^30], got ", plane.row_stride_bytes);
}

/// Fills dense strides and checks that the rows of a page stay inside its stride.
void resolve_strides(Plane& plane, std::int64_t page_rows, std::int64_t page_count) {
  if (plane.row_stride_bytes == 0) plane.row_stride_bytes = plane.row_bytes;
  detail::require(page_rows <= kMaxPlaneBytes / plane.row_stride_bytes, to_string(plane),
                  ": a page of ", page_rows, " rows of ", plane.row_stride_bytes,
                  " bytes exceeds 2^62 bytes");
  const std::int64_t rows_end = (page_rows - 1) * plane.row_stride_bytes + plane.row_bytes;
  if (plane.page_stride_bytes == 0) plane.page_stride_bytes = page_rows * plane.row_stride_bytes;
  detail::require(plane.page_offset_bytes <= plane.page_stride_bytes - rows_end, to_string(plane),
                  ": expected page_stride_bytes >= page_offset_bytes ", plane.page_offset_bytes,
                  " + ", rows_end, " bytes of rows, got ", plane.page_stride_bytes);
  detail::require(page_count <= kMaxPlaneBytes / plane.page_stride_bytes, to_string(plane), ": ",
                  page_count, " pages of ", plane.page_stride_bytes, " bytes exceed 2^62 bytes");
}

void require_heads(const Plane& plane, const std::optional<HeadSharding>& heads) {
  if (plane.head_bytes == 0) return;
  detail::require(heads.has_value(), to_string(plane), ": head_bytes ", plane.head_bytes,
                  " needs the pool's heads, got none");
  detail::require(plane.row_bytes % plane.head_bytes == 0 &&
                      plane.row_bytes / plane.head_bytes == heads->head_count(),
                  to_string(plane), ": expected row_bytes = head_count ", heads->head_count(),
                  " * head_bytes ", plane.head_bytes, ", got ", plane.row_bytes);
}

}  // namespace

std::string_view to_string(PlaneKind kind) {
  switch (kind) {
    case PlaneKind::kKey:
      return "key";
    case PlaneKind::kValue:
      return "value";
    case PlaneKind::kLatent:
      return "latent";
    case PlaneKind::kRope:
      return "rope";
    case PlaneKind::kIndexKey:
      return "index_key";
    case PlaneKind::kIndexScale:
      return "index_scale";
    case PlaneKind::kKeyScale:
      return "key_scale";
    case PlaneKind::kValueScale:
      return "value_scale";
  }
  throw InvalidArgumentError(detail::message("expected a PlaneKind, got ", static_cast<int>(kind)));
}

std::string to_string(const Plane& plane) {
  return detail::message("plane (layer ", plane.layer, ", ", to_string(plane.kind), ")");
}

PoolLayout::PoolLayout(Spec spec) : spec_(std::move(spec)) {
  detail::require(spec_.page_size >= 1 && spec_.page_size <= kMaxTokens / spec_.sharding.ranks(),
                  "expected page_size in [1, ", kMaxTokens, " / ranks] tokens, got ",
                  spec_.page_size);
  detail::require(spec_.page_count >= 1, "expected page_count >= 1, got ", spec_.page_count);
  detail::require(spec_.page_count <= kMaxTokens / widened_page_tokens(),
                  "expected page_count * page_size * ranks <= ", kMaxTokens, " tokens, got ",
                  spec_.page_count, " pages of ", widened_page_tokens());
  detail::require(spec_.page_size % spec_.sharding.interleave() == 0,
                  "expected an interleave that divides page_size ", spec_.page_size, ", got ",
                  spec_.sharding.interleave(), " tokens");
  std::set<std::pair<std::int64_t, PlaneKind>> seen;
  for (std::size_t i = 0; i < spec_.planes.size(); ++i) {
    Plane& plane = spec_.planes[i];
    require_sizes(plane);
    require_heads(plane, spec_.heads);
    resolve_strides(plane, plane_page_rows(i), spec_.page_count);
    detail::require(seen.emplace(plane.layer, plane.kind).second, to_string(plane),
                    " is listed twice; planes are matched by layer and kind");
  }
}

std::int64_t PoolLayout::plane_page_rows(std::size_t plane) const {
  return spec_.planes.at(plane).is_replicated ? widened_page_tokens() : spec_.page_size;
}

std::int64_t PoolLayout::plane_bytes(std::size_t plane) const {
  const Plane& p = spec_.planes.at(plane);
  return (spec_.page_count - 1) * p.page_stride_bytes + p.page_offset_bytes +
         (plane_page_rows(plane) - 1) * p.row_stride_bytes + p.row_bytes;
}

bool PoolLayout::operator==(const PoolLayout& other) const {
  return spec_.page_size == other.spec_.page_size && spec_.page_count == other.spec_.page_count &&
         spec_.planes == other.spec_.planes && spec_.sharding == other.spec_.sharding &&
         spec_.heads == other.spec_.heads;
}

}  // namespace kvxfer
