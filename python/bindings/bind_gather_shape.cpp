// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/gather_shape.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

void bind_shape(py::module_& module) {
  py::class_<GatherShape>(
      module, "GatherShape",
      R"(Sizes of a page-sharded pool and of a scratch slot, the same for every batch.

Logical page ``p`` lies on rank ``p % ranks`` as local page ``p // ranks``. A slot holds the prefix region,
the chunk region and one trash page.

Parameters
----------
ranks : int
    Of the shard group.
page_size : int
    Of the pool. [unit: tokens]
logical_page_count : int
    Of the whole sharded pool.
prefix_region_pages : int
    Of a slot, a multiple of ranks.
chunk_region_pages : int
    Of a slot.
)")
      .def(py::init([](std::int64_t ranks, std::int64_t page_size, std::int64_t logical_page_count,
                       std::int64_t prefix_region_pages, std::int64_t chunk_region_pages) {
             return GatherShape{ranks, page_size, logical_page_count, prefix_region_pages,
                                chunk_region_pages};
           }),
           py::kw_only(), py::arg("ranks"), py::arg("page_size"), py::arg("logical_page_count"),
           py::arg("prefix_region_pages"), py::arg("chunk_region_pages"))
      .def_readonly("ranks", &GatherShape::ranks)
      .def_readonly("page_size", &GatherShape::page_size)
      .def_readonly("logical_page_count", &GatherShape::logical_page_count)
      .def_readonly("prefix_region_pages", &GatherShape::prefix_region_pages)
      .def_readonly("chunk_region_pages", &GatherShape::chunk_region_pages)
      .def(py::self == py::self)
      .def("__repr__", [](const GatherShape& s) {
        return detail::message("GatherShape(ranks=", s.ranks, ", page_size=", s.page_size,
                               ", logical_page_count=", s.logical_page_count,
                               ", prefix_region_pages=", s.prefix_region_pages,
                               ", chunk_region_pages=", s.chunk_region_pages, ")");
      });
  module.def(
      "make_gather_shape",
      [](std::int64_t ranks, std::int64_t page_size, std::int64_t logical_page_count,
         std::int64_t context_tokens, std::int64_t chunk_tokens, std::int64_t context_count) {
        return make_gather_shape(
            {ranks, page_size, logical_page_count, context_tokens, context_count, chunk_tokens});
      },
      py::kw_only(), py::arg("ranks"), py::arg("page_size"), py::arg("logical_page_count"),
      py::arg("context_tokens"), py::arg("chunk_tokens"), py::arg("context_count") = 8,
      R"(Shape from what an engine bounds a batch by.

Each context is rounded up to whole pages on every rank, then multiplied.

Parameters
----------
ranks, page_size, logical_page_count : int
    As of GatherShape.
context_tokens : int
    Longest prefix of one request. [unit: tokens]
chunk_tokens : int
    New tokens of a batch. [unit: tokens]
context_count : int
    Full prefixes that fit at once.

Raises
------
InvalidArgumentError
    For sizes below their minimum or out of range.

Examples
--------
>>> from kvxfer.sharded import make_gather_shape
>>> shape = make_gather_shape(
...     ranks=2, page_size=16, logical_page_count=128, context_tokens=100, chunk_tokens=40
... )
>>> shape.prefix_region_pages * 16, shape.chunk_region_pages * 16
(1024, 48)
)");
}

void bind_demand(py::module_& module) {
  py::class_<ScratchDemand>(module, "ScratchDemand", "Pages of a slot that a request takes.")
      .def_readonly("prefix_region_pages", &ScratchDemand::prefix_region_pages)
      .def_readonly("chunk_region_pages", &ScratchDemand::chunk_region_pages)
      .def(py::self == py::self)
      .def("__repr__", [](const ScratchDemand& d) {
        return detail::message("ScratchDemand(prefix_region_pages=", d.prefix_region_pages,
                               ", chunk_region_pages=", d.chunk_region_pages, ")");
      });
  module.def("scratch_demand", &scratch_demand, py::arg("shape"), py::kw_only(),
             py::arg("prefix_tokens"), py::arg("new_tokens"),
             R"(Pages that admission must find free before a request joins a batch.

Parameters
----------
shape : GatherShape
    Of the pool.
prefix_tokens : int
    Cached tokens, whole pages. They count as whole rounds of the ranks. [unit: tokens]
new_tokens : int
    Tokens to compute. [unit: tokens]

Raises
------
InvalidArgumentError
    For negative counts or a prefix that is not whole pages.
CapacityError
    When an empty slot would not hold the request.
)");
}

}  // namespace

void bind_gather_shape(py::module_& module) {
  bind_shape(module);
  bind_demand(module);
}

}  // namespace kvxfer::bindings
