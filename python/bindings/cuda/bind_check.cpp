// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/check.hpp>

#include <exception>

#include "bindings.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::cuda {

namespace {

PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<py::object> cuda_error_type;

py::object make_cuda_error() {
  const py::object error = py::module_::import("kvxfer._core").attr("Error");
  PyObject* type = PyErr_NewExceptionWithDoc(
      "kvxfer.CudaError", "A CUDA call failed; code is its status.", error.ptr(), nullptr);
  if (type == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(type);
}

void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const kvxfer::cuda::CudaError& error) {
    const py::object& type = cuda_error_type.get_stored();
    const py::object value = type(error.what());
    value.attr("code") = static_cast<int>(error.code());
    PyErr_SetObject(type.ptr(), value.ptr());
  }
}

}  // namespace

void bind_check(py::module_& module) {
  module.attr("CudaError") =
      cuda_error_type.call_once_and_store_result(make_cuda_error).get_stored();
  py::register_local_exception_translator(translate);
}

}  // namespace kvxfer::bindings::cuda
