// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/gather_handshake.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

void bind_gather_handshake(py::module_& module) {
  py::class_<HandshakeBoards>(
      module, "HandshakeBoards",
      R"(Where the words of a group's handshakes lie, in memory that all map.

Parameters
----------
ranks : int
    Of the group; each has a board.
slot_count : int
    Scratch slots.
)")
      .def(py::init<std::int64_t, std::int64_t>(), py::arg("ranks"), py::arg("slot_count"))
      .def_property_readonly("ranks", &HandshakeBoards::ranks)
      .def_property_readonly("slot_count", &HandshakeBoards::slot_count)
      .def_property_readonly("bytes", &HandshakeBoards::bytes, "Size of all boards.")
      .def(py::self == py::self)
      .def("__repr__", [](const HandshakeBoards& b) {
        return detail::message("HandshakeBoards(ranks=", b.ranks(), ", slot_count=", b.slot_count(),
                               ")");
      });
  py::class_<HandshakeReport>(module, "HandshakeReport",
                              "Peers that keep a rank from going on; none when complete.")
      .def_readonly("missing_ranks", &HandshakeReport::missing_ranks, "Not there yet.")
      .def_readonly("skipped_ranks", &HandshakeReport::skipped_ranks, "At another gather.")
      .def_property_readonly("is_complete", &HandshakeReport::is_complete)
      .def(py::self == py::self)
      .def("__repr__", [](const HandshakeReport& r) {
        return detail::message("HandshakeReport(", r.missing_ranks.size(), " missing, ",
                               r.skipped_ranks.size(), " at another gather)");
      });
}

}  // namespace kvxfer::bindings
