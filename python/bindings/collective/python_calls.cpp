// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "python_calls.hpp"

#include <kvxfer/error.hpp>

namespace py = pybind11;

namespace kvxfer::bindings::collective {

namespace {

py::str text_of(const std::string& bytes) {
  PyObject* text =
      PyUnicode_DecodeLatin1(bytes.data(), static_cast<py::ssize_t>(bytes.size()), nullptr);
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

std::string bytes_of(const py::handle& text) {
  const auto bytes =
      py::reinterpret_steal<py::bytes>(PyUnicode_AsLatin1String(py::str(text).ptr()));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

}  // namespace

SharedCallable shared_callable(const py::object& callable, const char* name) {
  kvxfer::detail::require(PyCallable_Check(callable.ptr()) == 1, "expected ", name,
                          " that can be called, got ",
                          std::string(py::str(py::type::of(callable))));
  return {new py::object(callable), [](py::object* object) {
            const py::gil_scoped_acquire acquire;
            delete object;
          }};
}

PythonGroup::PythonGroup(std::int64_t rank, std::int64_t ranks, const py::object& exchange)
    : rank_(rank), ranks_(ranks), exchange_(shared_callable(exchange, "exchange")) {
  kvxfer::detail::require(rank >= 0 && rank < ranks, "expected rank in [0, ", ranks, "), got ",
                          rank);
}

std::vector<std::string> PythonGroup::exchange(const std::string& message,
                                               std::chrono::milliseconds /*bound*/) {
  const py::gil_scoped_acquire acquire;
  std::vector<std::string> messages;
  try {
    for (const py::handle text : (*exchange_)(text_of(message)))
      messages.push_back(bytes_of(text));
  } catch (const py::error_already_set& error) {
    if (error.matches(PyExc_TimeoutError)) throw kvxfer::cuda::DeadlineError(error.what(), {});
    if (!error.matches(PyExc_Exception)) throw;
    throw kvxfer::cuda::GroupError(
        kvxfer::detail::message("expected the ranks to exchange texts, got ", error.what()), {});
  }
  if (static_cast<std::int64_t>(messages.size()) != ranks_) {
    throw kvxfer::cuda::GroupError(
        kvxfer::detail::message("expected exchange to return the texts of ", ranks_, " ranks, got ",
                                messages.size()),
        {});
  }
  return messages;
}

kvxfer::cuda::DeviceCalls device_calls(const py::object& synchronize,
                                       const py::object& is_capturing) {
  const SharedCallable drain = shared_callable(synchronize, "synchronize");
  const SharedCallable capturing = shared_callable(is_capturing, "is_capturing");
  return {.synchronize =
              [drain] {
                const py::gil_scoped_acquire acquire;
                (*drain)();
              },
          .is_capturing =
              [capturing] {
                const py::gil_scoped_acquire acquire;
                return py::bool_((*capturing)()).cast<bool>();
              }};
}

}  // namespace kvxfer::bindings::collective
