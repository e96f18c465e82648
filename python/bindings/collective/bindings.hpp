// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <pybind11/pybind11.h>

namespace kvxfer::bindings::collective {

void bind_errors(pybind11::module_& module);
void bind_nccl_api(pybind11::module_& module);
void bind_communicator(pybind11::module_& module);
void bind_symmetric_window(pybind11::module_& module);
void bind_copy_engine_gather(pybind11::module_& module);

}  // namespace kvxfer::bindings::collective
