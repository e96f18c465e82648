// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <exception>

#include "bindings.hpp"
#include "kvxfer/error.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {
namespace {

struct ExceptionTypes {
  py::object error;
  py::object invalid_argument;
  py::object capacity;
  py::object unsupported;
};

// Created in the package's name, so that tracebacks and pickles show kvxfer.Error.
py::object make_exception(const char* qualified_name, const char* doc, const py::tuple& bases) {
  PyObject* type = PyErr_NewExceptionWithDoc(qualified_name, doc, bases.ptr(), nullptr);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(type);
}

ExceptionTypes make_exception_types() {
  ExceptionTypes types;
  types.error = make_exception("kvxfer.Error", "Base of every error that kvxfer raises.",
                               py::make_tuple(py::handle(PyExc_RuntimeError)));
  types.invalid_argument =
      make_exception("kvxfer.InvalidArgumentError", "The caller broke a stated precondition.",
                     py::make_tuple(types.error, py::handle(PyExc_ValueError)));
  types.capacity = make_exception("kvxfer.CapacityError",
                                  "What was asked for does not fit a region, a buffer or a window.",
                                  py::make_tuple(types.error));
  types.unsupported =
      make_exception("kvxfer.UnsupportedError", "This build or these two sides cannot do it.",
                     py::make_tuple(types.error));
  return types;
}

PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<ExceptionTypes> exception_types;

void translate(std::exception_ptr pointer) {
  const ExceptionTypes& types = exception_types.get_stored();
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgumentError& error) {
    py::set_error(types.invalid_argument, error.what());
  } catch (const CapacityError& error) {
    py::set_error(types.capacity, error.what());
  } catch (const UnsupportedError& error) {
    py::set_error(types.unsupported, error.what());
  } catch (const Error& error) {
    py::set_error(types.error, error.what());
  }
}

}  // namespace

void bind_error(py::module_& module) {
  const ExceptionTypes& types =
      exception_types.call_once_and_store_result(make_exception_types).get_stored();
  module.attr("Error") = types.error;
  module.attr("InvalidArgumentError") = types.invalid_argument;
  module.attr("CapacityError") = types.capacity;
  module.attr("UnsupportedError") = types.unsupported;
  py::register_exception_translator(translate);
}

}  // namespace kvxfer::bindings
