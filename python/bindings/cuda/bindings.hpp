// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <pybind11/pybind11.h>

// One bind_<header>() per public header of the CUDA part, each in its own bind_<header>.cpp.
namespace kvxfer::bindings::cuda {

void bind_check(pybind11::module_& module);
void bind_completion(pybind11::module_& module);
void bind_copy_rows(pybind11::module_& module);
void bind_stream_calls(pybind11::module_& module);

}  // namespace kvxfer::bindings::cuda
