// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <memory>

#include "arrays.hpp"
#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/relayout.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

void bind_plane_pair(py::module_& module) {
  py::class_<PlanePair>(module, "PlanePair",
                        "A plane of both sides and the bytes of a row that move between them.")
      .def_readonly("source_plane", &PlanePair::source_plane, "Index into the source's planes.")
      .def_readonly("destination_plane", &PlanePair::destination_plane,
                    "Index into the destination's planes.")
      .def_readonly("source_offset_bytes", &PlanePair::source_offset_bytes)
      .def_readonly("destination_offset_bytes", &PlanePair::destination_offset_bytes)
      .def_readonly("bytes", &PlanePair::bytes)
      .def_readonly("is_replicated", &PlanePair::is_replicated)
      .def(py::self == py::self)
      .def("__repr__", [](const PlanePair& p) {
        return detail::message(
            "PlanePair(source_plane=", p.source_plane, ", destination_plane=", p.destination_plane,
            ", source_offset_bytes=", p.source_offset_bytes,
            ", destination_offset_bytes=", p.destination_offset_bytes, ", bytes=", p.bytes,
            ", is_replicated=", p.is_replicated ? "True" : "False", ")");
      });
}

std::vector<PlanePair> plane_pairs(const Relayout& relayout) {
  std::vector<PlanePair> pairs;
  for (const PlaneGroup& group : relayout.groups()) {
    pairs.insert(pairs.end(), group.planes.begin(), group.planes.end());
  }
  return pairs;
}

constexpr const char* kRelayoutDoc = R"(What one source rank sends to one destination rank.

Any sharding to any sharding: ranks, interleave and page size may differ on both sides. Planes are matched by
layer and kind; a layer that only one side holds is left out and listed as unmatched. Both sides compute the
same relayout from the two layouts.

Parameters
----------
source, destination : PoolLayout
    The two ranks.

Raises
------
InvalidArgumentError
    If matched planes disagree in dtype, row bytes or head bytes, or a layer of both sides lacks a kind on one.
UnsupportedError
    If a plane is sharded over several source ranks and replicated on the destination.

Notes
-----
Source: sgl-project/sglang #32837, #37709 (1 to N); the general case is kvxfer's own.

Examples
--------
>>> from kvxfer import PageTable, Plane, PlaneKind, PoolLayout, Relayout, Sharding
>>> planes = [Plane(0, PlaneKind.LATENT, 576)]
>>> prefill = PoolLayout(2, 16, planes)
>>> decode = PoolLayout(2, 16, planes, sharding=Sharding(4, 1))
>>> relayout = Relayout(prefill, decode)
>>> relayout.source_rows(0, 8, PageTable(prefill, [5, 2, 11, 4]))
array([11, 23])
>>> relayout.destination_rows(0, 8, PageTable(decode, [7]))
array([14, 15])
)";

}  // namespace

void bind_relayout(py::module_& module) {
  bind_plane_pair(module);
  py::class_<Relayout>(module, "Relayout", kRelayoutDoc)
      .def(
          py::init([](std::shared_ptr<PoolLayout> source, std::shared_ptr<PoolLayout> destination) {
            return Relayout(std::move(source), std::move(destination));
          }),
          py::arg("source").none(false), py::arg("destination").none(false))
      .def_property_readonly(
          "source",
          [](const Relayout& r) { return std::const_pointer_cast<PoolLayout>(r.shared_source()); })
      .def_property_readonly("destination",
                             [](const Relayout& r) {
                               return std::const_pointer_cast<PoolLayout>(r.shared_destination());
                             })
      .def_property_readonly("is_empty", &Relayout::is_empty,
                             "No byte ever moves between the two: completion only.")
      .def_property_readonly("needs_packing", &Relayout::needs_packing,
                             "Contiguous source rows are not contiguous at the destination.")
      .def_property_readonly("needs_unpacking", &Relayout::needs_unpacking,
                             "Destination rows are strided: a landing region is needed.")
      .def_property_readonly("alignment_tokens", &Relayout::alignment_tokens,
                             "Source page size times source ranks. [unit: tokens]")
      .def_property_readonly("planes", &plane_pairs, "Matched planes in packed order.")
      .def_property_readonly("unmatched_source_planes",
                             [](const Relayout& r) { return r.unmatched_source_planes(); })
      .def_property_readonly("unmatched_destination_planes",
                             [](const Relayout& r) { return r.unmatched_destination_planes(); })
      .def(
          "shares_tokens", [](const Relayout& r) { return !r.pattern().is_empty(); },
          "Whether the two ranks share any position, whatever planes they hold.")
      .def("row_count", &Relayout::row_count, py::arg("begin"), py::arg("end"),
           "Positions in [begin, end) that both ranks hold. [unit: tokens]")
      .def("segment_bytes", &Relayout::segment_bytes, py::arg("begin"), py::arg("end"),
           "Packed bytes of the positions [begin, end) over all planes.")
      .def("max_segment_bytes", &Relayout::max_segment_bytes, py::arg("window_tokens"),
           "Most packed bytes that any window of so many positions needs.")
      .def(
          "positions",
          [](const Relayout& r, std::int64_t begin, std::int64_t end) {
            return array_of(r.positions(begin, end));
          },
          py::arg("begin"), py::arg("end"),
          "Shared positions in [begin, end), rising: int64 array, shape (row_count,).")
      .def(
          "source_rows",
          [](const Relayout& r, std::int64_t begin, std::int64_t end, const PageTable& table) {
            return array_of(r.source_rows(begin, end, table));
          },
          py::arg("begin"), py::arg("end"), py::arg("table"),
          "Source row numbers of positions(begin, end): int64 array, shape (row_count,).")
      .def(
          "destination_rows",
          [](const Relayout& r, std::int64_t begin, std::int64_t end, const PageTable& table) {
            return array_of(r.destination_rows(begin, end, table));
          },
          py::arg("begin"), py::arg("end"), py::arg("table"),
          "Destination row numbers of positions(begin, end): int64 array, shape (row_count,).")
      .def(py::self == py::self)
      .def("__repr__", [](const Relayout& r) {
        return detail::message(
            "Relayout(rank ", r.source().sharding().rank(), " of ", r.source().sharding().ranks(),
            " -> rank ", r.destination().sharding().rank(), " of ",
            r.destination().sharding().ranks(), ", ", plane_pairs(r).size(), " planes)");
      });
}

}  // namespace kvxfer::bindings
