// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "bindings.hpp"

PYBIND11_MODULE(_cuda, module) {
  using namespace kvxfer::bindings::cuda;
  module.doc() = "CUDA part of kvxfer. Use kvxfer.cuda, which says why when it is missing.";
  // These register the types that the signatures name.
  pybind11::module_::import("kvxfer._core");
  pybind11::module_::import("kvxfer._collective");
  bind_check(module);
  bind_completion(module);
  bind_copy_rows(module);
  bind_stream_calls(module);
}
