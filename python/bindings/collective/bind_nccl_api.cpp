// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/nccl_api.hpp>
#include <kvxfer/error.hpp>
#include <kvxfer/gather_path.hpp>

#include "bindings.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::collective {

void bind_nccl_api(py::module_& module) {
  using kvxfer::cuda::NcclApi;
  py::class_<NcclApi, std::shared_ptr<NcclApi>>(
      module, "NcclApi", "Functions of one NCCL library, which stays loaded.")
      .def_readonly("path", &NcclApi::path, "Of the library, as the loader knows it.")
      .def_readonly("version_code", &NcclApi::version_code, "Such as 23102.")
      .def_property_readonly(
          "version",
          [](const NcclApi& api) {
            const NcclVersion version = nccl_version(api.version_code);
            return py::make_tuple(version.major, version.minor, version.patch);
          },
          "Major, minor and patch number.")
      .def_property_readonly("has_windows", &NcclApi::has_windows,
                             "Whether memory can be registered as a symmetric window.")
      .def_property_readonly(
          "tells_peer_addresses",
          [](const NcclApi& api) { return api.get_peer_device_pointer != nullptr; },
          "Whether it says where a peer's window is mapped.")
      .def("__repr__", [](const NcclApi& api) {
        return kvxfer::detail::message("NcclApi('", api.path, "', version_code=", api.version_code,
                                       ")");
      });
  module.def(
      "load_nccl",
      [](const std::string& explicit_path, const std::string& wheel_path) {
        // The bindings hold it as a mutable type; nothing of it can be changed from Python.
        return std::const_pointer_cast<NcclApi>(
            kvxfer::cuda::load_nccl({.explicit_path = explicit_path, .wheel_path = wheel_path}));
      },
      py::kw_only(), py::arg("explicit_path") = "", py::arg("wheel_path") = "",
      py::call_guard<py::gil_scoped_release>(),
      R"(Load the first NCCL library that is found.

Parameters
----------
explicit_path : str
    The only place when given.
wheel_path : str
    Tried after the copy that the process holds, and before the loader's own places.

Raises
------
UnsupportedError
    If there is none, or it lacks a function that is needed; the message lists what was tried.
)");
}

}  // namespace kvxfer::bindings::collective
