// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "calls.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

namespace py = pybind11;
using namespace py::literals;

namespace {

py::array_t<std::int64_t> runs_array(const py::object& self) {
  const auto& list = self.cast<const kvxfer::WriteList&>();
  const auto count = static_cast<py::ssize_t>(list.runs.size());
  const auto* data = reinterpret_cast<const std::int64_t*>(list.runs.data());
  return py::array_t<std::int64_t>(std::array<py::ssize_t, 2>{count, 3}, data, self);
}

}  // namespace

PYBIND11_MODULE(with_pybind11, module) {
  py::class_<kvxfer::Segment>(module, "Segment")
      .def(py::init<std::int64_t, std::int64_t, bool>(), "begin"_a, "end"_a, "is_final"_a)
      .def_readonly("begin", &kvxfer::Segment::begin)
      .def_readonly("end", &kvxfer::Segment::end)
      .def_readonly("is_final", &kvxfer::Segment::is_final);
  py::class_<kvxfer::Relayout>(module, "Relayout");
  py::class_<kvxfer::PageTable>(module, "PageTable");
  py::class_<kvxfer::bench::Request>(module, "Request")
      .def(py::init(&kvxfer::bench::make_request), "planes"_a)
      .def_readonly("relayout", &kvxfer::bench::Request::relayout)
      .def_readonly("destination", &kvxfer::bench::Request::destination);
  py::class_<kvxfer::PackPlan>(module, "PackPlan");
  py::class_<kvxfer::PackBufferLayout>(module, "PackBufferLayout")
      .def(py::init(&kvxfer::bench::make_layout), "planes"_a)
      .def("plan", &kvxfer::PackBufferLayout::plan, "segment"_a);
  py::class_<kvxfer::WriteList>(module, "WriteList").def_property_readonly("runs", &runs_array);
  module.def("split_segments", &kvxfer::bench::split, "begin"_a, "end"_a, py::kw_only(),
             "is_final"_a, "prefix"_a, "alignment_tokens"_a, "capacity_tokens"_a);
  module.def("packed_writes", &kvxfer::bench::list_writes, "relayout"_a, "segments"_a,
             "region_address"_a, "destination"_a);
}
