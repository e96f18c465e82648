// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace kvxfer::bindings {

/// Where a caller's array lies. The caller keeps the array alive; a view owns nothing.
struct TensorView {
  std::int64_t address;
  std::int64_t size_bytes;
  std::string device;  ///< "cpu" or "cuda:<index>"
  bool is_read_only;
};

/// View of any C-contiguous array: the buffer protocol (NumPy, bytearray),
/// __cuda_array_interface__, or DLPack (torch, CuPy, JAX; both capsule forms).
/// @throws InvalidArgumentError for anything else, and for an array with gaps.
[[nodiscard]] TensorView tensor_view(const pybind11::object& object);

}  // namespace kvxfer::bindings
