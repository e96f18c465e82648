// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/stl.h>

#include <chrono>
#include <utility>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/host_allgather.hpp"
#include "tensor_view.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

/// A side together with the arrays that it works on.
class OwningAllgather {
 public:
  OwningAllgather(const HandshakeBoards& boards, std::int64_t rank, py::object board_memory,
                  std::vector<py::object> windows)
      : owners_(std::move(windows)),
        board_memory_(std::move(board_memory)),
        side_(boards, rank, mapped()) {}

  HostAllgather& side() { return side_; }
  [[nodiscard]] const HostAllgather& side() const { return side_; }

 private:
  static std::span<std::byte> writable(const py::object& array, const char* name) {
    const TensorView view = tensor_view(array);
    detail::require(view.device == "cpu" && !view.is_read_only, "expected ", name,
                    " in writable host memory, got ", view.device,
                    view.is_read_only ? " read-only" : "");
    return {reinterpret_cast<std::byte*>(view.address), static_cast<std::size_t>(view.size_bytes)};
  }
  [[nodiscard]] HostGroupMemory mapped() const {
    HostGroupMemory memory{writable(board_memory_, "boards"), {}};
    for (const py::object& window : owners_)
      memory.windows.push_back(writable(window, "windows"));
    return memory;
  }

  std::vector<py::object> owners_;
  py::object board_memory_;
  HostAllgather side_;
};

}  // namespace

void bind_host_allgather(py::module_& module) {
  py::class_<OwningAllgather>(module, "HostAllgather",
                              R"(One rank's side of the gathers of a group on shared host memory.

Construct on every rank, let all ranks meet, then gather. One thread at a time.

Parameters
----------
boards : HandshakeBoards
    Of the group.
rank : int
    Of this side.
board_memory : writable array, HandshakeBoards.bytes, host, at a multiple of 64 bytes
    Shared by the group.
windows : list of writable arrays, host, one for each rank and of one size
    The ranks' windows as this process maps them.

Raises
------
InvalidArgumentError
    If the memory does not fit.
)")
      .def(py::init<const HandshakeBoards&, std::int64_t, py::object, std::vector<py::object>>(),
           py::arg("boards"), py::arg("rank"), py::arg("board_memory"), py::arg("windows"))
      .def(
          "next_tag",
          [](const OwningAllgather& a, std::int64_t slot) { return a.side().next_tag(slot); },
          py::arg("slot"), "Tag of the slot's next gather.")
      .def(
          "release", [](OwningAllgather& a, std::int64_t slot) { a.side().release(slot); },
          py::arg("slot"), "Let peers write the slot's next gather: its rows are no longer read.")
      .def(
          "gather",
          [](OwningAllgather& a, std::int64_t slot, std::uint32_t tag,
             const std::vector<BlockSpan>& spans, double bound_seconds) {
            const std::chrono::milliseconds bound(static_cast<std::int64_t>(bound_seconds * 1e3));
            const py::gil_scoped_release release;
            return a.side().gather(slot, tag, spans, bound);
          },
          py::arg("slot"), py::arg("tag"), py::arg("spans"), py::arg("bound_seconds"),
          "Copy the own blocks to every peer and wait for theirs. Releases the GIL.");
}

}  // namespace kvxfer::bindings
