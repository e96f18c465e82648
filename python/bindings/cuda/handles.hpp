// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <kvxfer/cuda/stream.hpp>

#include <pybind11/pybind11.h>

namespace kvxfer::bindings::cuda {

/// The stream of an integer handle, of torch (cuda_stream), of CuPy (ptr), or of any object with
/// __cuda_stream__. @throws InvalidArgumentError for anything else.
[[nodiscard]] kvxfer::cuda::StreamRef stream_of(const pybind11::object& object);

/// The event of None (no event), of an integer handle, of torch (cuda_event) or of CuPy (ptr).
/// @throws InvalidArgumentError for anything else, and for a torch event that was never recorded.
[[nodiscard]] cudaEvent_t event_of(const pybind11::object& object);

}  // namespace kvxfer::bindings::cuda
