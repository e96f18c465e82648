// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "calls.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using RunsArray = nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<2>>;

RunsArray runs_array(nb::handle self) {
  const auto& list = nb::cast<const kvxfer::WriteList&>(self);
  const auto* data = reinterpret_cast<const std::int64_t*>(list.runs.data());
  return {data, {list.runs.size(), 3}, self};
}

}  // namespace

NB_MODULE(with_nanobind, module) {
  nb::class_<kvxfer::Segment>(module, "Segment")
      .def(nb::init<std::int64_t, std::int64_t, bool>(), "begin"_a, "end"_a, "is_final"_a)
      .def_ro("begin", &kvxfer::Segment::begin)
      .def_ro("end", &kvxfer::Segment::end)
      .def_ro("is_final", &kvxfer::Segment::is_final);
  nb::class_<kvxfer::Relayout>(module, "Relayout");
  nb::class_<kvxfer::PageTable>(module, "PageTable");
  nb::class_<kvxfer::bench::Request>(module, "Request")
      .def(nb::new_(&kvxfer::bench::make_request), "planes"_a)
      .def_ro("relayout", &kvxfer::bench::Request::relayout)
      .def_ro("destination", &kvxfer::bench::Request::destination);
  nb::class_<kvxfer::PackPlan>(module, "PackPlan");
  nb::class_<kvxfer::PackBufferLayout>(module, "PackBufferLayout")
      .def(nb::new_(&kvxfer::bench::make_layout), "planes"_a)
      .def("plan", &kvxfer::PackBufferLayout::plan, "segment"_a);
  nb::class_<kvxfer::WriteList>(module, "WriteList").def_prop_ro("runs", &runs_array);
  module.def("split_segments", &kvxfer::bench::split, "begin"_a, "end"_a, nb::kw_only(),
             "is_final"_a, "prefix"_a, "alignment_tokens"_a, "capacity_tokens"_a.none());
  module.def("packed_writes", &kvxfer::bench::list_writes, "relayout"_a, "segments"_a,
             "region_address"_a, "destination"_a);
}
