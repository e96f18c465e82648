// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/copy_engine_gather.hpp>
#include <kvxfer/error.hpp>

#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "../tensor_view.hpp"
#include "bindings.hpp"
#include "python_calls.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::collective {

namespace {

using kvxfer::cuda::CopyEngineGather;
using kvxfer::cuda::CudaStream;
using kvxfer::cuda::GatherTags;
using kvxfer::cuda::PeerCopy;
using kvxfer::cuda::PeerMemory;
using kvxfer::cuda::StreamCalls;
using kvxfer::cuda::WordOperation;

template <class Pointer>
std::uintptr_t address_of(Pointer* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

StreamCalls stream_calls(const py::object& copy, const py::object& operate,
                         const py::object& is_capturing) {
  return {.copy =
              [call = shared_callable(copy, "copy")](std::span<const PeerCopy> copies,
                                                     CudaStream stream) {
                const py::gil_scoped_acquire acquire;
                py::list batch;
                for (const PeerCopy& each : copies)
                  batch.append(py::make_tuple(address_of(each.destination), address_of(each.source),
                                              each.size_bytes));
                (*call)(batch, address_of(stream));
              },
          .operate =
              [call = shared_callable(operate, "operate")](
                  std::span<const WordOperation> operations, CudaStream stream) {
                const py::gil_scoped_acquire acquire;
                py::list batch;
                for (const WordOperation& each : operations)
                  batch.append(py::make_tuple(each.is_wait, address_of(each.word), each.value));
                (*call)(batch, address_of(stream));
              },
          .is_capturing =
              [call = shared_callable(is_capturing, "is_capturing")](CudaStream stream) {
                const py::gil_scoped_acquire acquire;
                return py::bool_((*call)(address_of(stream))).cast<bool>();
              }};
}

constexpr const char* kDoc = R"(One rank's side of gathers by copies into peers' mapped windows.

One handshake and one batch of copies for all tensors of a layer, on a stream. Construct on every
rank, let all ranks meet, then gather. The memory must outlive what is enqueued. One thread at a
time.

Parameters
----------
boards : HandshakeBoards
    Of the group.
rank : int
    Of this process.
board_memory : writable array, HandshakeBoards.bytes, host, at a multiple of 64 bytes
    Shared by the group and registered with the device.
windows : sequence of int, and window_bytes : int
    Address of each rank's window as this rank reaches it, and their size.
calls : StreamCalls
    kvxfer.cuda.stream_calls(), or a test's own.
is_replayable : bool
    For gathers that are captured in a graph; one that a rank leaves out is not seen then.

Raises
------
InvalidArgumentError
    If the memory does not fit.
)";

/// A side together with the array that its words lie in.
struct OwningGather {
  py::object board_memory;
  CopyEngineGather side;
};

std::unique_ptr<OwningGather> make_gather(const HandshakeBoards& boards, std::int64_t rank,
                                          const py::object& board_memory,
                                          const std::vector<std::uintptr_t>& windows,
                                          std::int64_t window_bytes, const StreamCalls& calls,
                                          bool is_replayable) {
  const TensorView view = tensor_view(board_memory);
  kvxfer::detail::require(view.device == "cpu" && !view.is_read_only,
                          "expected boards in writable host memory, got ", view.device,
                          view.is_read_only ? " read-only" : "");
  PeerMemory memory{
      {reinterpret_cast<std::byte*>(view.address), static_cast<std::size_t>(view.size_bytes)},
      {},
      window_bytes};
  for (const std::uintptr_t window : windows)
    memory.windows.push_back(reinterpret_cast<std::byte*>(window));
  const GatherTags kind = is_replayable ? GatherTags::kConstant : GatherTags::kGrowing;
  return std::unique_ptr<OwningGather>(new OwningGather{
      board_memory, CopyEngineGather(boards, rank, std::move(memory), calls, {kind})});
}

void wait(OwningGather& gather, std::int64_t slot, const py::object& is_ready,
          double bound_seconds) {
  const SharedCallable query = shared_callable(is_ready, "is_ready");
  const std::chrono::milliseconds bound(static_cast<std::int64_t>(bound_seconds * 1e3));
  const py::gil_scoped_release release;
  gather.side.wait(
      slot,
      [&query] {
        const py::gil_scoped_acquire acquire;
        return py::bool_((*query)()).cast<bool>();
      },
      bound);
}

}  // namespace

void bind_copy_engine_gather(py::module_& module) {
  py::class_<StreamCalls>(module, "StreamCalls", py::release_gil_before_calling_cpp_dtor(),
                          R"(What a CopyEngineGather enqueues on a stream.

Parameters
----------
copy : callable
    Takes a list of (destination, source, size_bytes) addresses, copied in any order, and a stream.
operate : callable
    Takes a list of (is_wait, word address, value), done one after the other, and a stream.
is_capturing : callable
    Takes a stream.
)")
      .def(py::init(&stream_calls), py::arg("copy"), py::arg("operate"), py::arg("is_capturing"));
  py::class_<OwningGather>(module, "CopyEngineGather", kDoc)
      .def(py::init(&make_gather), py::arg("boards"), py::arg("rank"), py::arg("board_memory"),
           py::arg("windows"), py::arg("window_bytes"), py::arg("calls"), py::kw_only(),
           py::arg("is_replayable") = false)
      .def(
          "next_tag",
          [](const OwningGather& g, std::int64_t slot) { return g.side.next_tag(slot); },
          py::arg("slot"), "Tag of the slot's next gather; always 1 when replayable.")
      .def(
          "release",
          [](OwningGather& g, std::int64_t slot, std::intptr_t stream) {
            g.side.release(slot, reinterpret_cast<CudaStream>(stream));
          },
          py::arg("slot"), py::kw_only(), py::arg("stream"),
          py::call_guard<py::gil_scoped_release>(),
          "Enqueue that peers may write the slot, after what the stream reads of it.")
      .def(
          "gather",
          [](OwningGather& g, std::int64_t slot, std::uint32_t tag,
             const std::vector<BlockSpan>& spans, std::intptr_t stream) {
            g.side.gather(slot, tag, spans, reinterpret_cast<CudaStream>(stream));
          },
          py::arg("slot"), py::arg("tag"), py::arg("spans"), py::kw_only(), py::arg("stream"),
          py::call_guard<py::gil_scoped_release>(), "Enqueue the gather of the spans.")
      .def("wait", &wait, py::arg("slot"), py::arg("is_ready"), py::arg("bound_seconds"),
           R"(Wait on the host until the slot's last gather has run, as is_ready() says.

After the bound the streams of this rank are let go and the group gathers no more.

Raises
------
DeadlineError
    With the ranks that did not come.
TransferError
    With ranks that are at another gather.
)");
}

}  // namespace kvxfer::bindings::collective
