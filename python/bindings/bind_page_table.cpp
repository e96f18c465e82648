// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <memory>

#include "arrays.hpp"
#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/page_table.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

py::array_t<std::int64_t> view_of_all(std::span<const std::int64_t> values,
                                      const py::object& owner) {
  return view_of({static_cast<py::ssize_t>(values.size())}, values.data(), owner);
}

}  // namespace

void bind_page_table(py::module_& module) {
  py::class_<PageTable, std::shared_ptr<PageTable>>(
      module, "PageTable", R"(The pages of one request on one rank, checked once.

Page ``j`` holds the rank's rows of positions ``first_position + j * V`` to ``first_position + (j + 1) * V``,
V being page_size * ranks. The table does not keep the planes' memory alive.

Parameters
----------
layout : PoolLayout
    The rank's layout.
pages : integer array, shape (page_count_of_the_request,)
    Physical page ids in position order, each once.
first_position : int
    Position of the first page's first token, a multiple of V. [unit: tokens]
plane_addresses : integer array, shape (planes,), optional
    Base address of each plane of the layout. Without them the table serves plans only.

Raises
------
InvalidArgumentError
    If a page id is outside the pool or repeated, first_position is not aligned, or an address is missing or
    out of range.

Examples
--------
>>> from kvxfer import PageTable, Plane, PlaneKind, PoolLayout, Sharding
>>> layout = PoolLayout(2, 16, [Plane(0, PlaneKind.LATENT, 576)], sharding=Sharding(4, 1))
>>> PageTable(layout, [7, 3], first_position=8).end_position
24
)")
      .def(py::init([](std::shared_ptr<PoolLayout> layout, const py::object& pages,
                       std::int64_t first_position, const py::object& plane_addresses) {
             return std::make_shared<PageTable>(
                 std::move(layout), int64_vector(pages, "pages"), first_position,
                 plane_addresses.is_none() ? std::vector<std::int64_t>{}
                                           : int64_vector(plane_addresses, "plane_addresses"));
           }),
           py::arg("layout"), py::arg("pages"), py::kw_only(), py::arg("first_position") = 0,
           py::arg("plane_addresses") = py::none())
      .def_property_readonly(
          "layout",
          [](const PageTable& t) { return std::const_pointer_cast<PoolLayout>(t.shared_layout()); })
      .def_property_readonly("pages",
                             [](const py::object& self) {
                               return view_of_all(self.cast<const PageTable&>().pages(), self);
                             })
      .def_property_readonly("first_position", &PageTable::first_position)
      .def_property_readonly("end_position", &PageTable::end_position,
                             "One past the last position that the pages can hold.")
      .def_property_readonly("plane_addresses",
                             [](const py::object& self) {
                               return view_of_all(self.cast<const PageTable&>().plane_addresses(),
                                                  self);
                             })
      .def("__repr__", [](const PageTable& t) {
        return detail::message("PageTable(<", t.pages().size(), " pages>, positions [",
                               t.first_position(), ", ", t.end_position(), "))");
      });
}

}  // namespace kvxfer::bindings
