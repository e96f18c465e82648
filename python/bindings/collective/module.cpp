// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "bindings.hpp"

PYBIND11_MODULE(_collective, module) {
  using namespace kvxfer::bindings::collective;
  module.doc() = "NCCL bound at run time. Use the names that kvxfer.sharded exports.";
  pybind11::module_::import("kvxfer._core");  // registers the types that the signatures name
  bind_errors(module);
  bind_nccl_api(module);
  bind_communicator(module);
  bind_symmetric_window(module);
  bind_copy_engine_gather(module);
}
