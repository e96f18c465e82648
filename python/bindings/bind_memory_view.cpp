// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>

#include <vector>

#include "bindings.hpp"
#include "dlpack.hpp"
#include "kvxfer/error.hpp"
#include "tensor_view.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

/// No array has more elements, so that their bits are within int64.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

/// Elements of the array. @throws InvalidArgumentError if `strides` (in elements) leave gaps or
/// reorder, or for a shape that no array has.
std::int64_t contiguous_count(const std::vector<std::int64_t>& shape,
                              const std::vector<std::int64_t>& strides) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    detail::require(extent >= 0 && (extent == 0 || count <= kMaxElements / extent),
                    "expected an array of at most 2^48 elements, got an extent of ", extent);
    count *= extent;
  }
  detail::require(strides.empty() || strides.size() == shape.size(),
                  "expected a stride for each of ", shape.size(), " dimensions, got ",
                  strides.size());
  if (count == 0 || strides.empty()) return count;
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    detail::require(shape[i] == 1 || strides[i] == expected,
                    "expected a C-contiguous array, got stride ", strides[i],
                    " elements in dimension ", i, " where ", expected, " is contiguous");
    expected *= shape[i];
  }
  return count;
}

std::string device_name(const DlDevice& device) {
  if (device.type == kDlCpu || device.type == kDlCudaHost) return "cpu";
  detail::require(device.type == kDlCuda,
                  "expected an array in host or CUDA memory, got DLPack device type ", device.type);
  return detail::message("cuda:", device.index);
}

/// A versioned capsule where the owner knows them: only those say that memory is read-only.
py::object dlpack_capsule(const py::object& object) {
  try {
    return object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")();
}

TensorView view_of_dlpack(const py::object& object) {
  const py::object capsule = dlpack_capsule(object);
  const bool is_versioned = PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") == 1;
  const char* name = is_versioned ? "dltensor_versioned" : "dltensor";
  void* pointer = PyCapsule_GetPointer(capsule.ptr(), name);
  if (pointer == nullptr) throw py::error_already_set();
  // Not renamed to "used": the capsule stays the owner and releases the tensor when it dies.
  const auto* versioned = static_cast<const DlManagedTensorVersioned*>(pointer);
  const DlTensor& tensor =
      is_versioned ? versioned->tensor : *static_cast<const DlTensor*>(pointer);
  const auto rank = tensor.dimension_count;
  const std::vector<std::int64_t> shape(tensor.shape, tensor.shape + rank);
  std::vector<std::int64_t> strides;
  if (tensor.strides != nullptr) strides.assign(tensor.strides, tensor.strides + rank);
  const std::int64_t element_bits = std::int64_t{tensor.type_bits} * tensor.type_lanes;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
  return {static_cast<std::int64_t>(address), contiguous_count(shape, strides) * element_bits / 8,
          device_name(tensor.device), is_versioned && (versioned->flags & kDlReadOnly) != 0};
}

TensorView view_of_cuda_array(const py::object& object) {
  const auto interface = object.attr("__cuda_array_interface__").cast<py::dict>();
  const auto data = interface["data"].cast<py::tuple>();
  const auto type = py::module_::import("numpy").attr("dtype")(interface["typestr"]);
  const auto item_bytes = type.attr("itemsize").cast<std::int64_t>();
  std::vector<std::int64_t> shape;
  for (const py::handle extent : interface["shape"])
    shape.push_back(extent.cast<std::int64_t>());
  std::vector<std::int64_t> strides;
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    for (const py::handle stride : interface["strides"]) {
      const auto stride_bytes = stride.cast<std::int64_t>();
      detail::require(item_bytes > 0 && stride_bytes % item_bytes == 0,
                      "expected a C-contiguous array, got stride ", stride_bytes,
                      " bytes for elements of ", item_bytes);
      strides.push_back(stride_bytes / item_bytes);
    }
  }
  const py::object device = py::getattr(object, "device", py::none());
  const py::object index = py::getattr(device, "index", py::getattr(device, "id", py::int_(0)));
  return {data[0].cast<std::int64_t>(), contiguous_count(shape, strides) * item_bytes,
          detail::message("cuda:", index.is_none() ? 0 : index.cast<int>()), data[1].cast<bool>()};
}

TensorView view_of_buffer(const py::object& object) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();
    throw InvalidArgumentError("expected a C-contiguous array, got one with gaps");
  }
  const TensorView view{reinterpret_cast<std::int64_t>(buffer.buf), buffer.len, "cpu",
                        buffer.readonly != 0};
  PyBuffer_Release(&buffer);
  return view;
}

InvalidArgumentError no_array(const py::object& object, const std::string& reason) {
  return InvalidArgumentError(detail::message(
      "expected an array (buffer protocol, __cuda_array_interface__ or DLPack), got ",
      std::string(py::str(py::type::of(object))), reason));
}

}  // namespace

TensorView tensor_view(const py::object& object) {
  try {
    // First: CuPy's arrays have a buffer protocol too, which serves host memory only.
    if (py::hasattr(object, "__cuda_array_interface__")) return view_of_cuda_array(object);
    if (PyObject_CheckBuffer(object.ptr()) == 1) return view_of_buffer(object);
    if (py::hasattr(object, "__dlpack__")) return view_of_dlpack(object);
  } catch (const py::error_already_set& error) {  // the owner's own refusal, in its words
    if (!error.matches(PyExc_Exception)) throw;
    throw no_array(object, detail::message(": ", std::string(py::str(error.value()))));
  } catch (const py::cast_error&) {
    throw no_array(object, " with fields of other types");
  }
  throw no_array(object, "");
}

void bind_memory_view(py::module_& module) {
  py::class_<TensorView>(module, "MemoryView", "Where an array lies. It keeps nothing alive.")
      .def_readonly("address", &TensorView::address)
      .def_readonly("size_bytes", &TensorView::size_bytes)
      .def_readonly("device", &TensorView::device, "'cpu' or 'cuda:<index>'.")
      .def_readonly("is_read_only", &TensorView::is_read_only)
      .def("__repr__", [](const TensorView& v) {
        return detail::message("MemoryView(address=", v.address, ", size_bytes=", v.size_bytes,
                               ", device='", v.device, "')");
      });
  module.def("memory_view", &tensor_view, py::arg("array"),
             R"(Address, size and device of an array.

Parameters
----------
array : object
    C-contiguous array of any type: NumPy or another buffer, __cuda_array_interface__, or DLPack. The caller
    keeps it alive while the address is used.

Returns
-------
MemoryView
    ``address``, ``size_bytes``, ``device`` and ``is_read_only``.

Raises
------
InvalidArgumentError
    If it is no array or has gaps.

Examples
--------
>>> import numpy
>>> from kvxfer import memory_view
>>> memory_view(numpy.zeros((4, 576), numpy.uint8)).size_bytes
2304
)");
}

}  // namespace kvxfer::bindings
