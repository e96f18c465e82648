// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/error.hpp"

namespace kvxfer::bindings {

/// Copies a one-dimensional integer array or sequence. Floats are refused rather than cut.
inline std::vector<std::int64_t> int64_vector(const pybind11::object& object, const char* name) {
  namespace py = pybind11;
  const py::array array = py::array::ensure(object);
  if (!array) {
    PyErr_Clear();
    throw InvalidArgumentError(std::string("expected ") + name + " as an integer array, got " +
                               std::string(py::str(py::type::of(object))));
  }
  detail::require(array.ndim() == 1, "expected ", name, " of one dimension, got ", array.ndim());
  const char kind = array.dtype().kind();
  detail::require(array.size() == 0 || kind == 'i' || kind == 'u', "expected ", name,
                  " of an integer type, got ", std::string(py::str(array.dtype())));
  const auto values = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>(array);
  return {values.data(), values.data() + values.size()};
}

/// Hands a vector's memory to NumPy without a copy.
template <class T>
pybind11::array_t<T> array_of(std::vector<T> values) {
  namespace py = pybind11;
  auto* owner = new std::vector<T>(std::move(values));
  const py::capsule capsule(owner, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(static_cast<py::ssize_t>(owner->size()), owner->data(), capsule);
}

/// Read-only array over memory that `owner` keeps.
inline pybind11::array_t<std::int64_t> view_of(const std::vector<pybind11::ssize_t>& shape,
                                               const std::int64_t* data,
                                               const pybind11::object& owner) {
  pybind11::array_t<std::int64_t> array(shape, data, owner);
  array.attr("flags").attr("writeable") = false;
  return array;
}

}  // namespace kvxfer::bindings
