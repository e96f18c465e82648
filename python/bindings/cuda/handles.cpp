// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "handles.hpp"

#include <kvxfer/error.hpp>

#include <cstdint>
#include <string>

namespace py = pybind11;

namespace kvxfer::bindings::cuda {

namespace {

std::string type_name(const py::object& object) {
  return py::str(py::type::of(object).attr("__name__"));
}

}  // namespace

kvxfer::cuda::StreamRef stream_of(const py::object& object) {
  std::intptr_t handle = 0;
  if (py::isinstance<py::int_>(object)) {
    handle = object.cast<std::intptr_t>();
  } else if (py::hasattr(object, "__cuda_stream__")) {
    handle = object.attr("__cuda_stream__")().cast<py::tuple>()[1].cast<std::intptr_t>();
  } else if (py::hasattr(object, "cuda_stream")) {
    handle = object.attr("cuda_stream").cast<std::intptr_t>();
  } else if (py::hasattr(object, "ptr")) {
    handle = object.attr("ptr").cast<std::intptr_t>();
  } else {
    kvxfer::detail::throw_invalid_argument(
        "expected a stream: an integer handle, a torch or CuPy stream, or an object with "
        "__cuda_stream__, got ",
        type_name(object));
  }
  return kvxfer::cuda::StreamRef(reinterpret_cast<cudaStream_t>(handle));
}

cudaEvent_t event_of(const py::object& object) {
  if (object.is_none()) return nullptr;
  std::intptr_t handle = 0;
  if (py::isinstance<py::int_>(object)) {
    handle = object.cast<std::intptr_t>();
  } else if (py::hasattr(object, "cuda_event")) {
    handle = object.attr("cuda_event").cast<std::intptr_t>();
  } else if (py::hasattr(object, "ptr")) {
    handle = object.attr("ptr").cast<std::intptr_t>();
  }
  kvxfer::detail::require(handle != 0,
                          "expected a recorded event: an integer handle, a torch or CuPy event, "
                          "or None, got ",
                          handle == 0 ? type_name(object) : std::string());
  return reinterpret_cast<cudaEvent_t>(handle);
}

}  // namespace kvxfer::bindings::cuda
