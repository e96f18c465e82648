// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/stream_calls.hpp>

#include "bindings.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::cuda {

void bind_stream_calls(py::module_& module) {
  module.def("stream_calls", &kvxfer::cuda::make_stream_calls,
             R"(What a CopyEngineGather enqueues, by CUDA; not yet run on a GPU.

Raises
------
UnsupportedError
    When the driver has no batched stream memory operations.
CudaError
    When there is no driver.
)");
}

}  // namespace kvxfer::bindings::cuda
