// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <pybind11/pybind11.h>

// One bind_<header>() per public header of the core, each in its own bind_<header>.cpp. A header's
// types are bound before the headers that use them.
namespace kvxfer::bindings {

void bind_error(pybind11::module_& module);
void bind_build_info(pybind11::module_& module);
void bind_memory_view(pybind11::module_& module);
void bind_sharding(pybind11::module_& module);
void bind_pool_layout(pybind11::module_& module);
void bind_page_table(pybind11::module_& module);
void bind_relayout(pybind11::module_& module);
void bind_segment(pybind11::module_& module);
void bind_pack_plan(pybind11::module_& module);
void bind_write_list(pybind11::module_& module);
void bind_copy_rows(pybind11::module_& module);
void bind_gather_path(pybind11::module_& module);
void bind_gather_shape(pybind11::module_& module);
void bind_gather_plan(pybind11::module_& module);
void bind_scratch_layout(pybind11::module_& module);
void bind_gather_handshake(pybind11::module_& module);
void bind_host_allgather(pybind11::module_& module);

}  // namespace kvxfer::bindings
