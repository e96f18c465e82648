// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <span>

#include "bindings.hpp"
#include "kvxfer/copy_rows.hpp"
#include "kvxfer/error.hpp"
#include "tensor_view.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

/// The caller's bytes for the length of one call. Owners of a buffer that can grow (a bytearray)
/// stay where they are meanwhile: another thread that resizes one gets a BufferError.
class HostBytes {
 public:
  HostBytes(const py::object& array, const char* name, bool is_written) {
    if (PyObject_CheckBuffer(array.ptr()) == 1 &&
        PyObject_GetBuffer(array.ptr(), &hold_, PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();  // tensor_view() says what is wrong with it
    }
    try {
      const TensorView view = tensor_view(array);
      detail::require(view.device == "cpu", "expected ", name, " in host memory, got ",
                      view.device);
      detail::require(!is_written || !view.is_read_only, "expected a writable ", name,
                      ", got a read-only one");
      bytes_ = {reinterpret_cast<std::byte*>(view.address),
                static_cast<std::size_t>(view.size_bytes)};
    } catch (...) {
      PyBuffer_Release(&hold_);
      throw;
    }
  }
  ~HostBytes() { PyBuffer_Release(&hold_); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  Py_buffer hold_{};
  std::span<std::byte> bytes_;
};

}  // namespace

void bind_copy_rows(py::module_& module) {
  module.def(
      "pack_rows",
      [](const PackBufferLayout& layout, const PackPlan& plan, const PageTable& source,
         const py::object& buffer) {
        const HostBytes held(buffer, "buffer", true);
        const py::gil_scoped_release release;
        pack_rows(layout, plan, source, held.bytes());
      },
      py::arg("layout"), py::arg("plan"), py::arg("source"), py::arg("buffer"),
      R"(Gather the rows of a plan from host pages into a pack buffer.

Every bound is checked before the first byte moves; bytes outside the plan's regions are not touched. Releases
the GIL.

Parameters
----------
layout : PackBufferLayout
    The regions.
plan : PackPlan
    Of this layout.
source : PageTable
    With plane addresses in host memory of this process.
buffer : array, host
    C-contiguous, at least up to the plan's last byte.

Raises
------
InvalidArgumentError
    If the table or the plan is of another layout, or pages are missing.
CapacityError
    If the buffer or a region is too small.
)");
  module.def(
      "unpack_rows",
      [](const Relayout& relayout, const Segment& segment, const py::object& region,
         const PageTable& destination) {
        const HostBytes held(region, "region", false);
        const py::gil_scoped_release release;
        unpack_rows(relayout, segment, held.bytes(), destination);
      },
      py::arg("relayout"), py::arg("segment"), py::arg("region"), py::arg("destination"),
      R"(Scatter one packed region into host pages: the inverse of pack_rows.

Parameters
----------
relayout : Relayout
    The pair whose rows the region holds.
segment : Segment
    That was packed.
region : array, host
    C-contiguous, at least the segment's packed bytes.
destination : PageTable
    With plane addresses in host memory of this process. Nothing but the segment's rows is touched.

Raises
------
InvalidArgumentError
    If the table is of another layout or pages are missing.
CapacityError
    If the region is too small.
)");
  module.def(
      "copy_rows",
      [](const Relayout& relayout, const Segment& segment, const PageTable& source,
         const PageTable& destination) {
        const py::gil_scoped_release release;
        copy_rows(relayout, segment, source, destination);
      },
      py::arg("relayout"), py::arg("segment"), py::arg("source"), py::arg("destination"),
      R"(Copy the pair's rows of a segment from host pages to host pages, without a pack buffer.

Parameters
----------
relayout : Relayout
    The pair.
segment : Segment
    Positions to copy.
source, destination : PageTable
    With plane addresses in host memory of this process. The pools must not overlap.

Raises
------
InvalidArgumentError
    If a table is of another layout or pages are missing.
)");
}

}  // namespace kvxfer::bindings
