// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <pybind11/pybind11.h>

// One bind_<header>() per public header of the core, each in its own bind_<header>.cpp.
namespace kvxfer::bindings {

void bind_error(pybind11::module_& module);
void bind_build_info(pybind11::module_& module);

}  // namespace kvxfer::bindings
