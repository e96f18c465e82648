// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <memory>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/pack_plan.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

void bind_plan(py::module_& module) {
  py::class_<PackRegion>(module, "PackRegion", "The rows of one destination rank in one segment.")
      .def_readonly("index", &PackRegion::index, "Which relayout of the layout.")
      .def_readonly("offset_bytes", &PackRegion::offset_bytes, "Of the region in the pack buffer.")
      .def_readonly("bytes", &PackRegion::bytes, "Packed bytes of the segment.")
      .def_readonly("row_count", &PackRegion::row_count,
                    "Tokens of the segment that the pair shares.")
      .def(py::self == py::self)
      .def("__repr__", [](const PackRegion& r) {
        return detail::message("PackRegion(index=", r.index, ", offset_bytes=", r.offset_bytes,
                               ", bytes=", r.bytes, ", row_count=", r.row_count, ")");
      });
  py::class_<PackPlan>(module, "PackPlan",
                       "One segment packed: a region for each relayout that moves a byte in it.")
      .def_readonly("segment", &PackPlan::segment)
      .def_readonly("regions", &PackPlan::regions)
      .def(py::self == py::self)
      .def("__repr__", [](const PackPlan& p) {
        return detail::message("PackPlan([", p.segment.begin, ", ", p.segment.end, "), ",
                               p.regions.size(), " regions)");
      });
}

constexpr const char* kLayoutDoc =
    R"(Regions of a pack buffer for one source rank and the destinations it serves.

Parameters
----------
relayouts : list[Relayout]
    One for each destination rank, of one source layout. Empty ones get no region.
capacity_tokens : int
    Consecutive tokens that the buffer holds at once, a multiple of the alignment. [unit: tokens]

Raises
------
InvalidArgumentError
    If the relayouts are of different sources or the capacity is not a positive multiple of the alignment.

Notes
-----
Source: sgl-project/sglang #40376 (equal regions and the region check).

Examples
--------
>>> from kvxfer import PackBufferLayout, Plane, PlaneKind, PoolLayout, Relayout, Segment, Sharding
>>> planes = [Plane(layer, PlaneKind.LATENT, 576) for layer in range(7)]
>>> prefill = PoolLayout(64, 200, planes)
>>> decode = [PoolLayout(64, 200, planes, sharding=Sharding(4, rank)) for rank in range(4)]
>>> layout = PackBufferLayout([Relayout(prefill, rank) for rank in decode], 8192)
>>> layout.bytes, layout.region_bytes
(33030144, 8257536)
>>> layout.plan(Segment(8192, 8257, True)).regions[0].row_count
17
)";

}  // namespace

void bind_pack_plan(py::module_& module) {
  bind_plan(module);
  py::class_<PackBufferLayout>(module, "PackBufferLayout", kLayoutDoc)
      .def(py::init<std::vector<Relayout>, std::int64_t>(), py::arg("relayouts"),
           py::arg("capacity_tokens"))
      .def_property_readonly("relayouts", [](const PackBufferLayout& l) { return l.relayouts(); })
      .def_property_readonly("capacity_tokens", &PackBufferLayout::capacity_tokens)
      .def_property_readonly("region_bytes", &PackBufferLayout::region_bytes,
                             "Size of every region.")
      .def_property_readonly("bytes", &PackBufferLayout::bytes, "Size of the whole buffer.")
      .def("region_offset_bytes", &PackBufferLayout::region_offset_bytes, py::arg("index"),
           "Start of the region of the relayout with this index.")
      .def("plan", &PackBufferLayout::plan, py::arg("segment"),
           "Plan of one segment. Raises CapacityError if a region would overflow.")
      .def_static(
          "bytes_for",
          [](const std::vector<Relayout>& relayouts, std::int64_t capacity_tokens) {
            return PackBufferLayout::bytes_for(relayouts, capacity_tokens);
          },
          py::arg("relayouts"), py::arg("capacity_tokens"),
          "Bytes of a buffer that holds so many tokens.")
      .def_static(
          "capacity_for",
          [](const std::vector<Relayout>& relayouts, std::int64_t buffer_bytes) {
            return PackBufferLayout::capacity_for(relayouts, buffer_bytes);
          },
          py::arg("relayouts"), py::arg("buffer_bytes"),
          "Largest capacity, in tokens, that the bytes hold. Raises CapacityError when it is 0.")
      .def("__repr__", [](const PackBufferLayout& l) {
        return detail::message("PackBufferLayout(<", l.relayouts().size(),
                               " relayouts>, capacity_tokens=", l.capacity_tokens(),
                               ", bytes=", l.bytes(), ")");
      });
}

}  // namespace kvxfer::bindings
