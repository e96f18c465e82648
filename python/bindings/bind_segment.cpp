// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/segment.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

void bind_segment(py::module_& module) {
  py::class_<Segment>(module, "Segment",
                      R"(Half-open range of request positions that is sent at once.

Parameters
----------
begin, end : int
    First position and one past the last. [unit: tokens]
is_final : bool
    Whether the segment carries state and metadata. Exactly one segment of a request does.
)")
      .def(py::init<std::int64_t, std::int64_t, bool>(), py::arg("begin"), py::arg("end"),
           py::arg("is_final"))
      .def_readonly("begin", &Segment::begin)
      .def_readonly("end", &Segment::end)
      .def_readonly("is_final", &Segment::is_final)
      .def(py::self == py::self)
      .def("__hash__",
           [](const Segment& s) { return py::hash(py::make_tuple(s.begin, s.end, s.is_final)); })
      .def("__repr__", [](const Segment& s) {
        return detail::message("Segment(begin=", s.begin, ", end=", s.end,
                               ", is_final=", s.is_final ? "True" : "False", ")");
      });
  module.def(
      "split_segments",
      [](std::int64_t begin, std::int64_t end, bool is_final, std::int64_t prefix,
         std::int64_t alignment_tokens, std::optional<std::int64_t> capacity_tokens) {
        return split_segments({begin, end, prefix, is_final}, alignment_tokens, capacity_tokens);
      },
      py::arg("begin"), py::arg("end"), py::kw_only(), py::arg("is_final"), py::arg("prefix"),
      py::arg("alignment_tokens"), py::arg("capacity_tokens") = py::none(),
      R"(Cut a send at ``prefix + k * capacity_tokens``.

The segments are in order, disjoint and cover the send. A non-final send ends at the last
``prefix + n * alignment_tokens`` that it reaches and gives no segment when that is not beyond its
begin. A final send gives exactly one final segment, its last, which is empty when the send is.

Parameters
----------
begin, end : int
    The send, half open. It begins where the previous one ended after lowering. [unit: tokens]
is_final : bool
    Whether no send of this request follows.
prefix : int
    Tokens that the destination holds already; the grid starts there. [unit: tokens]
alignment_tokens : int
    Source page size times source ranks. [unit: tokens]
capacity_tokens : int, optional
    Most tokens of a segment, a multiple of the alignment. None: the send is not cut. [unit: tokens]

Returns
-------
list[Segment]
    In position order.

Raises
------
InvalidArgumentError
    If a final send ends before its begin, or the capacity is not a positive multiple of the alignment.

Notes
-----
Source: sgl-project/sglang #40376.

Examples
--------
>>> from kvxfer import split_segments
>>> for segment in split_segments(0, 600, is_final=True, prefix=0, alignment_tokens=64, capacity_tokens=256):
...     print(segment)
Segment(begin=0, end=256, is_final=False)
Segment(begin=256, end=512, is_final=False)
Segment(begin=512, end=600, is_final=True)
)");
}

}  // namespace kvxfer::bindings
