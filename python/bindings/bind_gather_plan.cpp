// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <optional>

#include "arrays.hpp"
#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/gather_plan.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

void bind_page_records(py::module_& module) {
  py::class_<GatheredPage>(module, "GatheredPage", "Where one prefix page arrives.")
      .def_readonly("page", &GatheredPage::page, "Logical page.")
      .def_readonly("owner", &GatheredPage::owner, "Rank that sends it.")
      .def_readonly("index", &GatheredPage::index, "In the owner's block.")
      .def(py::self == py::self)
      .def("__repr__", [](const GatheredPage& p) {
        return detail::message("GatheredPage(page=", p.page, ", owner=", p.owner,
                               ", index=", p.index, ")");
      });
  py::class_<PageMap>(module, "PageMap",
                      R"(Page numbers of one tensor's view of a scratch slot.

Gathered page (owner, index) is number ``first_page + owner * owner_stride_pages + index``.
)")
      .def_readonly("first_page", &PageMap::first_page)
      .def_readonly("owner_stride_pages", &PageMap::owner_stride_pages)
      .def_readonly("chunk_page", &PageMap::chunk_page, "First page of the chunk region.")
      .def_readonly("trash_page", &PageMap::trash_page)
      .def(py::self == py::self)
      .def("__repr__", [](const PageMap& m) {
        return detail::message("PageMap(first_page=", m.first_page,
                               ", owner_stride_pages=", m.owner_stride_pages,
                               ", chunk_page=", m.chunk_page, ", trash_page=", m.trash_page, ")");
      });
}

GatherPlan make_plan(const GatherShape& shape, const std::vector<py::object>& prefix_pages,
                     const py::object& chunk_pages) {
  std::vector<std::vector<std::int64_t>> requests;
  requests.reserve(prefix_pages.size());
  for (const py::object& request : prefix_pages) {
    requests.push_back(int64_vector(request, "prefix_pages"));
  }
  return GatherPlan(shape, requests, int64_vector(chunk_pages, "chunk_pages"));
}

py::array_t<std::int64_t> translated(const GatherPlan& plan, const py::object& locations,
                                     const std::optional<PageMap>& map) {
  const py::array array = py::array::ensure(locations);
  detail::require(static_cast<bool>(array), "expected locations as an integer array");
  const std::vector<std::int64_t> flat = int64_vector(array.attr("reshape")(-1), "locations");
  std::vector<std::int64_t> rows(flat.size());
  plan.translate(map.value_or(plan.page_map()), flat, rows);
  return array_of(std::move(rows)).attr("reshape")(array.attr("shape"));
}

constexpr const char* kPlanDoc =
    R"(One batch of a page-sharded pool: what every rank sends and where tokens are found.

Parameters
----------
shape : GatherShape
    Of the pool and the slots.
prefix_pages : sequence of integer arrays, each of shape (pages,), host
    Logical pages of each request's cached prefix, in position order. Shared pages are gathered once.
chunk_pages : integer array, shape (pages,), host
    Logical pages of the batch's new tokens, in batch order.

Raises
------
InvalidArgumentError
    For a page outside the pool, one that a request lists twice, or a new page that is listed before.
CapacityError
    When the blocks exceed the prefix region, the new pages the chunk region, or a rank's pages its block.

Notes
-----
Source: sgl-project/sglang #37615 as merged. Every rank builds the same plan from the same tables.

Examples
--------
>>> from kvxfer.sharded import GatherPlan, GatherShape
>>> shape = GatherShape(
...     ranks=2, page_size=16, logical_page_count=128, prefix_region_pages=64, chunk_region_pages=3
... )
>>> plan = GatherPlan(shape, [[50, 7, 40, 13, 56]], [9, 60])
>>> plan.block_pages, plan.send_pages(0).tolist(), plan.send_pages(1).tolist()
(3, [20, 25, 28], [3, 6, 0])
>>> plan.translate([805, 121, 353]).tolist()
[21, 57, 1073]
)";

}  // namespace

void bind_gather_plan(py::module_& module) {
  bind_page_records(module);
  py::class_<GatherPlan>(module, "GatherPlan", kPlanDoc)
      .def(py::init(&make_plan), py::arg("shape"), py::arg("prefix_pages"),
           py::arg("chunk_pages") = py::tuple())
      .def_property_readonly("shape", [](const GatherPlan& p) { return p.shape(); })
      .def_property_readonly("block_pages", &GatherPlan::block_pages, "Pages of a rank's block.")
      .def_property_readonly("page_map", &GatherPlan::page_map,
                             "Of a view with the owners' blocks back to back.")
      .def_property_readonly(
          "gathered_pages", [](const GatherPlan& p) { return p.gathered_pages(); },
          "Distinct prefix pages by (owner, index).")
      .def_property_readonly("chunk_pages",
                             [](const GatherPlan& p) { return array_of(p.chunk_pages()); })
      .def(
          "send_pages",
          [](const GatherPlan& p, std::int64_t rank) { return array_of(p.send_pages(rank)); },
          py::arg("rank"), "Local pages of the rank's block, rising, padded with page 0.")
      .def(
          "scratch_pages",
          [](const GatherPlan& p, const std::optional<PageMap>& map) {
            return array_of(p.scratch_pages(map.value_or(p.page_map())));
          },
          py::arg("page_map") = py::none(), "Scratch page of every logical page.")
      .def("translate", &translated, py::arg("locations"), py::arg("page_map") = py::none(),
           "Scratch rows of token locations: int64, in the shape of the locations.")
      .def(py::self == py::self)
      .def("__repr__", [](const GatherPlan& p) {
        return detail::message("GatherPlan(<", p.gathered_pages().size(), " prefix pages>, <",
                               p.chunk_pages().size(), " new pages>, block_pages=", p.block_pages(),
                               ")");
      });
}

}  // namespace kvxfer::bindings
