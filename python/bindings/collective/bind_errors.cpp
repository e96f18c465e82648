// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/nccl_api.hpp>
#include <kvxfer/cuda/rank_group.hpp>

#include <exception>
#include <string>
#include <vector>

#include "bindings.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::collective {

namespace {

PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<py::object> nccl_error_type;

py::object make_nccl_error() {
  const py::object error = py::module_::import("kvxfer._core").attr("Error");
  PyObject* type = PyErr_NewExceptionWithDoc(
      "kvxfer.NcclError", "A call of NCCL failed; code is its status.", error.ptr(), nullptr);
  if (type == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(type);
}

std::string named(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (const std::int64_t rank : ranks)
    text += (text.empty() ? (ranks.size() == 1 ? "rank " : "ranks ") : ", ") + std::to_string(rank);
  return text;
}

void raise_transfer_error(const char* name, const char* kind,
                          const std::vector<std::int64_t>& ranks, const char* words) {
  const py::object type = py::module_::import("kvxfer.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(kind, named(ranks), py::none(), words).ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const kvxfer::cuda::NcclError& error) {
    const py::object& type = nccl_error_type.get_stored();
    const py::object value = type(error.what());
    value.attr("code") = error.code();
    PyErr_SetObject(type.ptr(), value.ptr());
  } catch (const kvxfer::cuda::DeadlineError& error) {
    raise_transfer_error("DeadlineError", "deadline", error.missing_ranks(), error.what());
  } catch (const kvxfer::cuda::GroupError& error) {
    raise_transfer_error("TransferError", "group", error.failed_ranks(), error.what());
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  module.attr("NcclError") =
      nccl_error_type.call_once_and_store_result(make_nccl_error).get_stored();
  py::register_local_exception_translator(translate);
}

}  // namespace kvxfer::bindings::collective
