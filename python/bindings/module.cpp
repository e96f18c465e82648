// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
  using namespace kvxfer::bindings;
  module.doc() = "Native core of kvxfer. Use the names that the kvxfer package exports.";
  bind_error(module);
  bind_build_info(module);
  bind_memory_view(module);
  bind_sharding(module);
  bind_pool_layout(module);
  bind_page_table(module);
  bind_relayout(module);
  bind_segment(module);
  bind_pack_plan(module);
  bind_write_list(module);
  bind_copy_rows(module);
  bind_gather_path(module);
  bind_gather_shape(module);
  bind_gather_plan(module);
  bind_scratch_layout(module);
  bind_gather_handshake(module);
  bind_host_allgather(module);
}
