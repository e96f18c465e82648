// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/symmetric_window.hpp>
#include <kvxfer/error.hpp>

#include <pybind11/stl.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "../dlpack.hpp"
#include "bindings.hpp"
#include "python_calls.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::collective {

namespace {

using kvxfer::cuda::Communicator;
using kvxfer::cuda::SymmetricWindow;
using kvxfer::cuda::WindowView;

DlDevice device_of(const std::string& name) {
  constexpr std::string_view kPrefix = "cuda:";
  if (name == "cpu") return {kDlCpu, 0};
  DlDevice device{kDlCuda, 0};
  const bool is_cuda = name.compare(0, kPrefix.size(), kPrefix) == 0;
  const char* end = name.data() + name.size();
  const auto parsed =
      std::from_chars(name.data() + (is_cuda ? kPrefix.size() : 0), end, device.index);
  kvxfer::detail::require(
      is_cuda && parsed.ec == std::errc{} && parsed.ptr == end && device.index >= 0,
      "expected device 'cuda:<index>' or 'cpu', got '", name, "'");
  return device;
}

/// A view and the device that its memory is on.
struct DeviceView {
  WindowView view;
  DlDevice device;
};

struct DeviceWindow {
  SymmetricWindow window;
  DlDevice device;
};

/// What a capsule owns: the tensor's description, and the view that keeps the memory.
template <class Managed>
struct Exported {
  explicit Exported(const DeviceView& from)
      : view(from.view), size_bytes(view.size_bytes()), managed() {
    managed.manager_context = this;
    managed.deleter = [](Managed* tensor) {
      delete static_cast<Exported*>(tensor->manager_context);
    };
    managed.tensor = {view.data(), from.device, 1, kDlUint, 8, 1, &size_bytes, nullptr, 0};
  }

  WindowView view;
  std::int64_t size_bytes;
  Managed managed;
};

template <class Managed, const char* const& kName>
void drop_unused(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kName) != 1) return;  // its consumer renamed it
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName));
  managed->deleter(managed);
}

constexpr const char* kPlainName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

template <class Managed, const char* const& kName>
py::object capsule_of(std::unique_ptr<Exported<Managed>> exported) {
  PyObject* capsule = PyCapsule_New(&exported->managed, kName, &drop_unused<Managed, kName>);
  if (capsule == nullptr) throw py::error_already_set();
  static_cast<void>(exported.release());  // the capsule's now
  return py::reinterpret_steal<py::object>(capsule);
}

py::object dlpack(const DeviceView& view, const py::object& /*stream*/,
                  const std::optional<std::pair<int, int>>& max_version,
                  const py::object& /*dl_device*/, const std::optional<bool>& copy) {
  kvxfer::detail::require(!copy.value_or(false), "expected no copy of a window's view, got one");
  if (!max_version.has_value() || max_version->first < 1) {
    return capsule_of<DlManagedTensor, kPlainName>(
        std::make_unique<Exported<DlManagedTensor>>(view));
  }
  auto exported = std::make_unique<Exported<DlManagedTensorVersioned>>(view);
  exported->managed.major = 1;
  return capsule_of<DlManagedTensorVersioned, kVersionedName>(std::move(exported));
}

void bind_view(py::module_& module) {
  py::class_<DeviceView>(module, "WindowView", py::release_gil_before_calling_cpp_dtor(),
                         R"(Bytes of a window as an array: uint8, shape (size_bytes,), by DLPack.

It and what is made of it keep the memory; the window can close before.
)")
      .def_property_readonly("size_bytes", [](const DeviceView& v) { return v.view.size_bytes(); })
      .def("__dlpack__", &dlpack, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none())
      .def("__dlpack_device__",
           [](const DeviceView& v) { return std::pair(v.device.type, v.device.index); });
}

constexpr const char* kDoc = R"(A registered allocation of every rank of a communicator.

Collective: every rank constructs and closes it. Registered once, however many views are cut from
it; freed once, when it is closed and the last view is gone. Its destructor closes it. One thread at
a time.

Parameters
----------
communicator : Communicator
    Of the ranks.
size_bytes, fingerprint : int
    ScratchLayout.bytes and ScratchLayout.fingerprint, equal on all ranks.
synchronize : callable
    Waits for everything on the device, as torch.cuda.synchronize does.
is_capturing : callable
    Whether a stream of this thread records a graph, as torch.cuda.is_current_stream_capturing says.
device : str
    Of the memory: 'cuda:<index>'.

Raises
------
TransferError
    On every rank, for a failure of any: a request that differs, a thread that captures, memory or
    registration that NCCL refused.
DeadlineError
    When ranks do not come within the communicator's bound.
)";

std::unique_ptr<DeviceWindow> open(const Communicator& communicator, std::int64_t size_bytes,
                                   std::uint64_t fingerprint, const py::object& synchronize,
                                   const py::object& is_capturing, const std::string& device) {
  kvxfer::cuda::DeviceCalls calls = device_calls(synchronize, is_capturing);
  const DlDevice where = device_of(device);
  const py::gil_scoped_release release;
  return std::unique_ptr<DeviceWindow>(new DeviceWindow{
      SymmetricWindow::create(communicator, {.size_bytes = size_bytes, .fingerprint = fingerprint},
                              std::move(calls)),
      where});
}

}  // namespace

void bind_symmetric_window(py::module_& module) {
  bind_view(module);
  py::class_<DeviceWindow>(module, "SymmetricWindow", py::release_gil_before_calling_cpp_dtor(),
                           kDoc)
      .def(py::init(&open), py::arg("communicator"), py::arg("size_bytes"), py::arg("fingerprint"),
           py::kw_only(), py::arg("synchronize"), py::arg("is_capturing"), py::arg("device"))
      .def_property_readonly("size_bytes",
                             [](const DeviceWindow& w) { return w.window.size_bytes(); })
      .def_property_readonly(
          "outcomes", [](const DeviceWindow& w) { return w.window.outcomes(); },
          "What registration gave on each rank: for decide_after_registration().")
      .def_property_readonly(
          "is_registered_everywhere",
          [](const DeviceWindow& w) { return w.window.is_registered_everywhere(); })
      .def(
          "view",
          [](const DeviceWindow& w, std::int64_t offset_bytes, std::int64_t size_bytes) {
            return DeviceView{w.window.view(offset_bytes, size_bytes), w.device};
          },
          py::arg("offset_bytes"), py::arg("size_bytes"))
      .def(
          "peer_address",
          [](const DeviceWindow& w, std::int64_t rank, std::int64_t offset_bytes) {
            return reinterpret_cast<std::uintptr_t>(w.window.peer_data(rank, offset_bytes));
          },
          py::arg("rank"), py::arg("offset_bytes"),
          "Where this rank reaches a peer's window; 0 if it cannot.")
      .def(
          "all_gather",
          [](const DeviceWindow& w, std::int64_t offset_bytes, std::int64_t block_bytes,
             std::intptr_t stream) {
            w.window.all_gather(offset_bytes, block_bytes, reinterpret_cast<void*>(stream));
          },
          py::arg("offset_bytes"), py::arg("block_bytes"), py::kw_only(), py::arg("stream"),
          py::call_guard<py::gil_scoped_release>(),
          R"(Enqueue an in-place gather: block r, at offset_bytes + r * block_bytes, reaches all ranks.

The stream is the handle of one of its own, not 0. The window must outlive the gather.
)")
      .def(
          "close", [](DeviceWindow& w) { w.window.close(); },
          py::call_guard<py::gil_scoped_release>(),
          "Drain the device and the ranks, deregister, and free unless a view is alive; once.");
}

}  // namespace kvxfer::bindings::collective
