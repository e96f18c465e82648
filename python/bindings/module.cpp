// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
  using namespace kvxfer::bindings;
  module.doc() = "Native core of kvxfer. Use the names that the kvxfer package exports.";
  bind_error(module);
  bind_build_info(module);
}
