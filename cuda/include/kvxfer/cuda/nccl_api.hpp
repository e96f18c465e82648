// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The NCCL functions that a gather needs, bound at run time from a libnccl that is found, so that
// nothing links it and the version in use is known. The table is plain data: a test fills its own.
// Needs no CUDA header; streams are opaque pointers.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kvxfer/error.hpp"

namespace kvxfer::cuda {

/// A call of NCCL failed; code() is its status.
class [[gnu::visibility("default")]] NcclError final : public Error {
 public:
  NcclError(int code, const std::string& message) : Error(message), code_(code) {}
  NcclError(const NcclError&) = default;
  NcclError& operator=(const NcclError&) = default;
  ~NcclError() override;

  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclWindowSymmetric = 1;
inline constexpr std::int64_t kNcclWindowAlignment = 4096;

using NcclComm = struct NcclCommTag*;
using NcclWindow = struct NcclWindowTag*;
using CudaStream = void*;  ///< a cudaStream_t

struct NcclUniqueId {
  char bytes[128];
};

/// The fields of ncclConfig_t that 2.28 to 2.32 share. NCCL reads `size` bytes of it and takes its
/// own defaults for what follows.
struct NcclConfig {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
  int traffic_class;
  const char* comm_name;
  int collnet_enable;
  int cta_policy;
  int shrink_share;
  int nvls_ctas;
};

/// ncclCollConfig_t of 2.31.
struct NcclCollConfig {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  void* extension;
  int min_ctas;
  int max_ctas;
  int nvls_ctas;
  int cga_cluster_size;
  const char* algorithm;
  int force_algorithm;
  int cta_policy;
  std::uint64_t profiler_tag;
};

/// Functions of one library. Those below `Optional` are null where the library lacks them.
struct NcclApi {
  std::string path;               ///< of the library, as the loader knows it
  std::int64_t version_code = 0;  ///< such as 23102

  const char* (*get_error_string)(int) = nullptr;
  int (*get_unique_id)(NcclUniqueId*) = nullptr;
  int (*comm_init_rank_config)(NcclComm*, int, NcclUniqueId, int, NcclConfig*) = nullptr;
  int (*comm_destroy)(NcclComm) = nullptr;
  int (*comm_abort)(NcclComm) = nullptr;
  int (*comm_get_async_error)(NcclComm, int*) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, NcclComm, CudaStream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;

  // Optional
  const char* (*get_last_error)(NcclComm) = nullptr;
  int (*comm_finalize)(NcclComm) = nullptr;
  int (*mem_alloc)(void**, std::size_t) = nullptr;
  int (*mem_free)(void*) = nullptr;
  int (*comm_window_register)(NcclComm, void*, std::size_t, NcclWindow*, int) = nullptr;
  int (*comm_window_deregister)(NcclComm, NcclWindow) = nullptr;
  int (*get_peer_device_pointer)(NcclWindow, std::size_t, int, void**) = nullptr;
  int (*all_gather_config)(const void*, void*, std::size_t, int, NcclComm, CudaStream,
                           const NcclCollConfig*) = nullptr;

  /// Whether memory can be allocated and registered as a symmetric window.
  [[nodiscard]] bool has_windows() const noexcept {
    return mem_alloc != nullptr && mem_free != nullptr && comm_window_register != nullptr &&
           comm_window_deregister != nullptr;
  }
};

/// Where to look for a library, in this order.
struct NcclSearch {
  std::string explicit_path = {};       ///< the only place when given
  std::string soname = "libnccl.so.2";  ///< first the copy that the process holds
  std::string wheel_path = {};          ///< then the nvidia-nccl wheel's; last the soname anywhere
};

/// Loads the first library that is found; it stays loaded for the life of the process.
/// @throws UnsupportedError if there is none, or it lacks a function that is not optional; the
/// message lists what was tried.
[[nodiscard]] std::shared_ptr<const NcclApi> load_nccl(const NcclSearch& search);

/// @throws NcclError naming the call and NCCL's own words unless `status` is success.
void nccl_check(const NcclApi& api, int status, const char* call);

/// A configuration for a communicator that never blocks. `cta_policy` is a mask, 0 for NCCL's own.
/// @throws UnsupportedError where the library's structure is not known: a policy before 2.28, or
/// any version from 3 on.
[[nodiscard]] NcclConfig make_nccl_config(const NcclApi& api, int cta_policy);

}  // namespace kvxfer::cuda
