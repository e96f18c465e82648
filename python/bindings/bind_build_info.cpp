// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/typing.h>

#include "bindings.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

void bind_build_info(py::module_& module) {
  module.def(
      "compiled_facts",
      [] {
        py::typing::Dict<py::str, py::str> facts;
        facts["version"] = KVXFER_VERSION;
        facts["compiler"] = KVXFER_COMPILER;
        facts["build_type"] = KVXFER_BUILD_TYPE;
        facts["sanitize"] = KVXFER_SANITIZERS;
        facts["cuda_architectures"] = KVXFER_CUDA_ARCHITECTURES;
        return facts;
      },
      "What the build settled: str values; cuda_architectures is empty without CUDA.");
}

}  // namespace kvxfer::bindings
