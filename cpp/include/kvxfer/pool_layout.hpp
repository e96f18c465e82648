// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How one rank stores its share of the KV cache: planes (paged arrays of rows), their strides, and
// which tokens and heads the rank holds. A layout is a value without addresses; it travels to the
// peer as it is.

#include <kvxfer/sharding.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvxfer {

/// What a plane stores for one layer. Planes of two sides are the same plane when layer and kind
/// agree.
enum class PlaneKind : std::uint8_t {
  kKey,
  kValue,
  kLatent,      ///< MLA compressed latent, with or without its rope part
  kRope,        ///< MLA rope part kept apart
  kIndexKey,    ///< sparse-attention index keys
  kIndexScale,  ///< their scales
  kKeyScale,
  kValueScale,
};

/// Lower-case name as Python and JSON spell it ("index_key").
[[nodiscard]] std::string_view to_string(PlaneKind kind);

/// One registered paged array.
///
/// Row `r` of page `p` starts at `base + p * page_stride_bytes + page_offset_bytes + r *
/// row_stride_bytes`. A stride of 0 asks for the dense one. Two planes over one page stride
/// describe a page-structured array, as DSA index pages are: 64 keys of 128 bytes at offset 0 and
/// 64 scales of 4 bytes at offset 8,192 of 8,448.
struct Plane {
  std::int64_t layer = 0;  ///< global layer id; draft layers follow the target's
  PlaneKind kind = PlaneKind::kLatent;
  std::int64_t row_bytes = 0;          ///< bytes of one token
  std::string dtype = "uint8";         ///< element type; compared, never interpreted
  std::int64_t row_stride_bytes = 0;   ///< between rows of a page; 0: row_bytes
  std::int64_t page_stride_bytes = 0;  ///< between pages; 0: rows per page * row_stride_bytes
  std::int64_t page_offset_bytes = 0;  ///< of row 0 in its page
  std::int64_t head_bytes = 0;  ///< bytes of one KV head in a row; 0: rows are not divided by head
  /// Every rank stores all tokens (a speculative decoder's draft). Its page `p` has the same id as
  /// the sharded planes' and holds page_size * ranks rows: the widened page.
  bool is_replicated = false;

  bool operator==(const Plane&) const = default;
};

/// Layer and kind, as messages name a plane: "plane (layer 3, key)".
[[nodiscard]] std::string to_string(const Plane& plane);

/// All planes of one rank, and what the rank holds.
class PoolLayout {
 public:
  /// What a layout is made of; see the accessors.
  struct Spec {
    std::int64_t page_size = 0;
    std::int64_t page_count = 0;
    std::vector<Plane> planes;
    Sharding sharding{};
    std::optional<HeadSharding> heads{};
  };

  /// Resolves dense strides and checks the whole layout once.
  /// @throws InvalidArgumentError for sizes below 1, an interleave that does not divide page_size
  /// (ownership by page
  ///         and by position would disagree), a row that leaves its page, two planes of one layer
  ///         and kind, rows that are not head_count * head_bytes long, or a plane beyond 2^62
  ///         bytes.
  explicit PoolLayout(Spec spec);

  [[nodiscard]] std::int64_t page_size() const noexcept {
    return spec_.page_size;
  }  ///< rows of a page
  [[nodiscard]] std::int64_t page_count() const noexcept {
    return spec_.page_count;
  }  ///< pages of the pool
  [[nodiscard]] const std::vector<Plane>& planes() const noexcept { return spec_.planes; }
  [[nodiscard]] const Sharding& sharding() const noexcept { return spec_.sharding; }
  [[nodiscard]] const std::optional<HeadSharding>& heads() const noexcept { return spec_.heads; }

  /// Tokens of one page id over the whole group: page_size * ranks.
  [[nodiscard]] std::int64_t widened_page_tokens() const noexcept {
    return spec_.page_size * spec_.sharding.ranks();
  }

  /// Rows of one page of plane `plane`: page_size, or the widened page for a replicated plane.
  [[nodiscard]] std::int64_t plane_page_rows(std::size_t plane) const;

  /// Bytes from the plane's base address to the end of its last row.
  [[nodiscard]] std::int64_t plane_bytes(std::size_t plane) const;

  bool operator==(const PoolLayout& other) const;

 private:
  Spec spec_;
};

}  // namespace kvxfer
