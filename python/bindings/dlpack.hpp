// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

namespace kvxfer::bindings {

// The structures of the DLPack specification (dmlc.github.io/dlpack), named here as the fields are
// used.
struct DlDevice {
  std::int32_t type;
  std::int32_t index;
};

struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t dimension_count;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DlManagedTensor {
  DlTensor tensor;
  void* manager_context;
  void (*deleter)(DlManagedTensor*);
};

struct DlManagedTensorVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* manager_context;
  void (*deleter)(DlManagedTensorVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};

inline constexpr std::int32_t kDlCpu = 1;
inline constexpr std::int32_t kDlCuda = 2;
inline constexpr std::int32_t kDlCudaHost = 3;
inline constexpr std::uint8_t kDlUint = 1;
inline constexpr std::uint64_t kDlReadOnly = 1;

}  // namespace kvxfer::bindings
