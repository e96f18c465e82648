// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/native_enum.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/pool_layout.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

void bind_plane_kind(py::module_& module) {
  py::native_enum<PlaneKind>(module, "PlaneKind", "enum.Enum",
                             "What a plane stores for one layer. Planes match by layer and kind.")
      .value("KEY", PlaneKind::kKey)
      .value("VALUE", PlaneKind::kValue)
      .value("LATENT", PlaneKind::kLatent)
      .value("ROPE", PlaneKind::kRope)
      .value("INDEX_KEY", PlaneKind::kIndexKey)
      .value("INDEX_SCALE", PlaneKind::kIndexScale)
      .value("KEY_SCALE", PlaneKind::kKeyScale)
      .value("VALUE_SCALE", PlaneKind::kValueScale)
      .finalize();
}

std::string plane_repr(const Plane& p) {
  return detail::message(
      "Plane(layer=", p.layer, ", kind=", to_string(p.kind), ", row_bytes=", p.row_bytes,
      ", dtype='", p.dtype, "', row_stride_bytes=", p.row_stride_bytes,
      ", page_stride_bytes=", p.page_stride_bytes, ", page_offset_bytes=", p.page_offset_bytes,
      ", head_bytes=", p.head_bytes, ", is_replicated=", p.is_replicated ? "True" : "False", ")");
}

std::size_t checked_plane(const PoolLayout& layout, std::int64_t plane) {
  detail::require(plane >= 0 && plane < static_cast<std::int64_t>(layout.planes().size()),
                  "expected a plane index in [0, ", layout.planes().size(), "), got ", plane);
  return static_cast<std::size_t>(plane);
}

void bind_plane(py::module_& module) {
  py::class_<Plane>(module, "Plane", R"(One registered paged array.

Row ``r`` of page ``p`` starts at
``base + p * page_stride_bytes + page_offset_bytes + r * row_stride_bytes``.

Parameters
----------
layer : int
    Global layer id; a draft's layers follow the target's.
kind : PlaneKind
    What it stores.
row_bytes : int
    Bytes of one token.
dtype : str
    Element type; compared between the sides, never interpreted.
row_stride_bytes, page_stride_bytes : int
    0 asks for the dense stride.
page_offset_bytes : int
    Of row 0 in its page. Two planes over one page stride describe a page-structured array.
head_bytes : int
    Bytes of one KV head in a row; 0 when rows are not divided by head.
is_replicated : bool
    Every rank stores all tokens (a draft). Its pages have the same ids and hold page_size * ranks rows.
)")
      .def(
          py::init([](std::int64_t layer, PlaneKind kind, std::int64_t row_bytes, std::string dtype,
                      std::int64_t row_stride_bytes, std::int64_t page_stride_bytes,
                      std::int64_t page_offset_bytes, std::int64_t head_bytes, bool is_replicated) {
            return Plane{layer,
                         kind,
                         row_bytes,
                         std::move(dtype),
                         row_stride_bytes,
                         page_stride_bytes,
                         page_offset_bytes,
                         head_bytes,
                         is_replicated};
          }),
          py::arg("layer"), py::arg("kind"), py::arg("row_bytes"), py::kw_only(),
          py::arg("dtype") = "uint8", py::arg("row_stride_bytes") = 0,
          py::arg("page_stride_bytes") = 0, py::arg("page_offset_bytes") = 0,
          py::arg("head_bytes") = 0, py::arg("is_replicated") = false)
      .def_readonly("layer", &Plane::layer)
      .def_readonly("kind", &Plane::kind)
      .def_readonly("row_bytes", &Plane::row_bytes)
      .def_readonly("dtype", &Plane::dtype)
      .def_readonly("row_stride_bytes", &Plane::row_stride_bytes)
      .def_readonly("page_stride_bytes", &Plane::page_stride_bytes)
      .def_readonly("page_offset_bytes", &Plane::page_offset_bytes)
      .def_readonly("head_bytes", &Plane::head_bytes)
      .def_readonly("is_replicated", &Plane::is_replicated)
      .def(py::self == py::self)
      .def("__repr__", &plane_repr);
}

}  // namespace

void bind_pool_layout(py::module_& module) {
  bind_plane_kind(module);
  bind_plane(module);
  py::class_<PoolLayout, std::shared_ptr<PoolLayout>>(
      module, "PoolLayout", R"(All planes of one rank, and what the rank holds.

Parameters
----------
page_size : int
    Rows of a page; the rank's tokens of one page. [unit: tokens]
page_count : int
    Pages of the pool.
planes : list[Plane]
    The registered arrays. Dense strides are filled in.
sharding : Sharding, optional
    Which tokens the rank holds; all when omitted.
heads : HeadSharding, optional
    Which KV heads the rank holds; needed when a plane has head_bytes.

Raises
------
InvalidArgumentError
    If an interleave does not divide page_size, a row leaves its page, a plane is listed twice, or a size is
    out of range.

Examples
--------
>>> from kvxfer import Plane, PlaneKind, PoolLayout, Sharding
>>> latent = Plane(3, PlaneKind.LATENT, 576)
>>> PoolLayout(64, 100, [latent], sharding=Sharding(4, 0)).widened_page_tokens
256
)")
      .def(py::init([](std::int64_t page_size, std::int64_t page_count, std::vector<Plane> planes,
                       const Sharding& sharding, std::optional<HeadSharding> heads) {
             return std::make_shared<PoolLayout>(
                 PoolLayout::Spec{page_size, page_count, std::move(planes), sharding, heads});
           }),
           py::arg("page_size"), py::arg("page_count"), py::arg("planes"), py::kw_only(),
           py::arg("sharding") = Sharding{}, py::arg("heads") = py::none())
      .def_property_readonly("page_size", &PoolLayout::page_size)
      .def_property_readonly("page_count", &PoolLayout::page_count)
      .def_property_readonly("planes", [](const PoolLayout& l) { return l.planes(); })
      .def_property_readonly("sharding", [](const PoolLayout& l) { return l.sharding(); })
      .def_property_readonly("heads", [](const PoolLayout& l) { return l.heads(); })
      .def_property_readonly("widened_page_tokens", &PoolLayout::widened_page_tokens,
                             "Tokens of one page id over the whole group.")
      .def(
          "plane_page_rows",
          [](const PoolLayout& l, std::int64_t plane) {
            return l.plane_page_rows(checked_plane(l, plane));
          },
          py::arg("plane"), "Rows of one page of the plane with this index.")
      .def(
          "plane_bytes",
          [](const PoolLayout& l, std::int64_t plane) {
            return l.plane_bytes(checked_plane(l, plane));
          },
          py::arg("plane"), "Bytes from the plane's base address to the end of its last row.")
      .def(py::self == py::self)
      .def("__repr__", [](const PoolLayout& l) {
        return detail::message("PoolLayout(page_size=", l.page_size(),
                               ", page_count=", l.page_count(), ", planes=<", l.planes().size(),
                               " planes>, rank ", l.sharding().rank(), " of ", l.sharding().ranks(),
                               ", interleave ", l.sharding().interleave(), ")");
      });
}

}  // namespace kvxfer::bindings
