// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/copy_rows.hpp>
#include <kvxfer/error.hpp>

#include <pybind11/stl.h>

#include <span>
#include <tuple>
#include <vector>

#include "../tensor_view.hpp"
#include "bindings.hpp"
#include "handles.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::cuda {

namespace {

using kvxfer::cuda::CopyTables;
using kvxfer::cuda::LandedRegion;
using kvxfer::cuda::Launch;
using kvxfer::cuda::PackTables;
using kvxfer::cuda::UnpackTables;

/// Bytes of a device array, or of an (address, size_bytes) pair, which is taken as given.
std::span<std::byte> device_bytes(const py::object& object, const char* name, bool is_written) {
  if (py::isinstance<py::tuple>(object)) {
    const auto [address, size_bytes] = object.cast<std::tuple<std::int64_t, std::int64_t>>();
    kvxfer::detail::require(address > 0 && size_bytes >= 0, "expected ", name,
                            " as (address > 0, size_bytes >= 0), got (", address, ", ", size_bytes,
                            ")");
    return {reinterpret_cast<std::byte*>(address), static_cast<std::size_t>(size_bytes)};
  }
  const TensorView view = tensor_view(object);
  kvxfer::detail::require(view.device != "cpu", "expected ", name,
                          " in device memory, got host memory");
  kvxfer::detail::require(!is_written || !view.is_read_only, "expected a writable ", name,
                          ", got a read-only one");
  return {reinterpret_cast<std::byte*>(view.address), static_cast<std::size_t>(view.size_bytes)};
}

Launch launch_of(const py::object& stream, std::int64_t max_ctas, const py::object& after) {
  return {stream_of(stream), max_ctas, event_of(after)};
}

void bind_tables(py::module_& module) {
  const auto release = py::release_gil_before_calling_cpp_dtor();
  py::class_<PackTables>(module, "PackTables", release,
                         R"(Resident tables of the planes that one source rank packs.

Made once, when the pool is registered, on the current device. They must outlive their launches.

Parameters
----------
layout : PackBufferLayout
    The regions.
source_addresses : sequence of int
    Base address of each plane of the source pool, as its page tables carry them.
)")
      .def(py::init<PackBufferLayout, std::vector<std::int64_t>>(), py::arg("layout"),
           py::arg("source_addresses"))
      .def_property_readonly("layout", &PackTables::layout);
  py::class_<UnpackTables>(module, "UnpackTables", release,
                           R"(Resident tables of the planes that one destination rank unpacks.

Parameters
----------
relayouts : sequence of Relayout
    From each source rank, to one destination rank.
destination_addresses : sequence of int
    Base address of each plane of the destination pool.
)")
      .def(py::init<std::vector<Relayout>, std::vector<std::int64_t>>(), py::arg("relayouts"),
           py::arg("destination_addresses"));
  py::class_<CopyTables>(module, "CopyTables", release,
                         R"(Resident tables of one pair whose pools are both mapped on this device.

Parameters
----------
relayout : Relayout
    The pair.
source_addresses, destination_addresses : sequence of int
    Base address of each plane on either side.
)")
      .def(py::init<Relayout, std::vector<std::int64_t>, std::vector<std::int64_t>>(),
           py::arg("relayout"), py::arg("source_addresses"), py::arg("destination_addresses"));
}

}  // namespace

void bind_copy_rows(py::module_& module) {
  bind_tables(module);
  module.def(
      "pack_rows",
      [](const PackTables& tables, const PackPlan& plan, const PageTable& source,
         const py::object& buffer, const py::object& stream, std::int64_t max_ctas,
         const py::object& after) {
        kvxfer::cuda::pack_rows(tables, plan, source, device_bytes(buffer, "buffer", true),
                                launch_of(stream, max_ctas, after));
      },
      py::arg("tables"), py::arg("plan"), py::arg("source"), py::arg("buffer"), py::kw_only(),
      py::arg("stream"), py::arg("max_ctas") = 0, py::arg("after") = py::none(),
      R"(Enqueue the gather of a plan's rows from device pages into a pack buffer.

One launch for all planes and all destination ranks. Every bound is checked before it; nothing is
allocated, uploaded or waited for. The pages and the buffer must stay until the copy has run.

Parameters
----------
tables : PackTables
    Of the plan's layout.
plan : PackPlan
    What to pack.
source : PageTable
    With the plane addresses that the tables were made with.
buffer : array, device, or (address, size_bytes)
    C-contiguous, at least up to the plan's last byte.
stream : int or stream
    A handle, a torch or CuPy stream, or an object with ``__cuda_stream__``.
max_ctas : int
    At most so many multiprocessors; 0 uses as many as pay.
after : int or event, optional
    The copy waits for it on the device.

Raises
------
InvalidArgumentError
    If the table or the plan is of another layout, or pages are missing.
CapacityError
    If the buffer or a region is too small.
CudaError
    If the launch fails.
)");
  module.def(
      "unpack_rows",
      [](const UnpackTables& tables,
         const std::vector<std::tuple<std::int64_t, Segment, py::object>>& regions,
         const PageTable& destination, const py::object& stream, std::int64_t max_ctas,
         const py::object& after) {
        std::vector<LandedRegion> landed;
        landed.reserve(regions.size());
        for (const auto& [index, segment, bytes] : regions)
          landed.push_back({index, segment, device_bytes(bytes, "region", false)});
        kvxfer::cuda::unpack_rows(tables, landed, destination, launch_of(stream, max_ctas, after));
      },
      py::arg("tables"), py::arg("regions"), py::arg("destination"), py::kw_only(),
      py::arg("stream"), py::arg("max_ctas") = 0, py::arg("after") = py::none(),
      R"(Enqueue the scatter of landed regions into device pages, all in one launch.

Parameters
----------
tables : UnpackTables
    Of the destination rank.
regions : sequence of (int, Segment, array or (address, size_bytes))
    Which relayout of the tables, what was packed, and the device bytes.
destination : PageTable
    With the plane addresses that the tables were made with.
stream, max_ctas, after
    As pack_rows.

Raises
------
InvalidArgumentError
    If the table is of another layout or pages are missing.
CapacityError
    If a region is too small.
)");
  module.def(
      "copy_rows",
      [](const CopyTables& tables, const Segment& segment, const PageTable& source,
         const PageTable& destination, const py::object& stream, std::int64_t max_ctas,
         const py::object& after) {
        kvxfer::cuda::copy_rows(tables, segment, source, destination,
                                launch_of(stream, max_ctas, after));
      },
      py::arg("tables"), py::arg("segment"), py::arg("source"), py::arg("destination"),
      py::kw_only(), py::arg("stream"), py::arg("max_ctas") = 0, py::arg("after") = py::none(),
      R"(Enqueue the copy of a pair's rows from pages to pages, both mapped on this device.

Parameters
----------
tables : CopyTables
    Of the pair.
segment : Segment
    Positions to copy.
source, destination : PageTable
    With the plane addresses that the tables were made with. The pools must not overlap.
stream, max_ctas, after
    As pack_rows.

Raises
------
InvalidArgumentError
    If a table is of another layout or pages are missing.
)");
}

}  // namespace kvxfer::bindings::cuda
