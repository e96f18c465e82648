// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/write_list.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

py::array_t<std::int64_t> runs_array(const py::object& self) {
  const auto& list = self.cast<const WriteList&>();
  const auto count = static_cast<py::ssize_t>(list.runs.size());
  const auto* data = reinterpret_cast<const std::int64_t*>(list.runs.data());
  return view_of({count, 3}, data, self);
}

py::array_t<std::int64_t> offsets_array(const py::object& self) {
  const auto& offsets = self.cast<const WriteList&>().segment_offsets;
  return view_of({static_cast<py::ssize_t>(offsets.size())}, offsets.data(), self);
}

void bind_write_list_type(py::module_& module) {
  py::class_<WriteList>(module, "WriteList", R"(The writes of one or more segments of one pair.

Attributes
----------
runs : int64 array, shape (writes, 3), host, read-only, no copy
    Source address, destination address, bytes.
segment_offsets : int64 array, shape (segments + 1,), read-only
    ``runs[segment_offsets[i]:segment_offsets[i + 1]]`` belong to segment i.
)")
      .def_property_readonly("runs", &runs_array)
      .def_property_readonly("segment_offsets", &offsets_array)
      .def_property_readonly("bytes", &WriteList::bytes, "Sum over the runs.")
      .def("__len__", [](const WriteList& l) { return l.runs.size(); })
      .def(py::self == py::self)
      .def("__repr__", [](const WriteList& l) {
        return detail::message("WriteList(<", l.runs.size(), " runs>, ", l.bytes(), " bytes)");
      });
}

}  // namespace

void bind_write_list(py::module_& module) {
  bind_write_list_type(module);
  module.def(
      "packed_writes",
      [](const Relayout& relayout, const std::vector<Segment>& segments,
         std::int64_t region_address, const PageTable& destination) {
        return packed_writes(relayout, segments, region_address, destination);
      },
      py::arg("relayout"), py::arg("segments"), py::arg("region_address"), py::arg("destination"),
      R"(Writes from packed regions to final rows.

Parameters
----------
relayout : Relayout
    The pair.
segments : list[Segment]
    One list of runs for each; every segment's packed region starts at region_address.
region_address : int
    Of the packed region; 0 for offsets.
destination : PageTable
    With plane addresses.

Returns
-------
WriteList
    Runs as long as the destination's pages allow.

Raises
------
InvalidArgumentError
    If the table is of another layout, lacks addresses or does not cover a segment.
)");
  module.def(
      "direct_writes",
      [](const Relayout& relayout, const std::vector<Segment>& segments, const PageTable& source,
         const PageTable& destination) {
        return direct_writes(relayout, segments, source, destination);
      },
      py::arg("relayout"), py::arg("segments"), py::arg("source"), py::arg("destination"),
      R"(Writes from source rows to final rows without a pack buffer.

Whole pages where the relayout needs no packing; otherwise the row by row baseline that packing is measured
against.

Parameters
----------
relayout : Relayout
    The pair.
segments : list[Segment]
    One list of runs for each.
source, destination : PageTable
    With plane addresses.

Returns
-------
WriteList
    Runs that are contiguous on both sides.

Raises
------
InvalidArgumentError
    If a table is of another layout, lacks addresses or does not cover a segment.
)");
  module.def(
      "landing_write", &landing_write, py::arg("relayout"), py::arg("segment"),
      py::arg("region_address"), py::arg("landing_address"),
      "One run from a packed region into a landing region; none for a segment without bytes.");
}

}  // namespace kvxfer::bindings
