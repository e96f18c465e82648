// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/nccl_api.hpp"

#include <dlfcn.h>

#include <climits>
#include <cstddef>

namespace kvxfer::cuda {

namespace {

// Offsets of NCCL 2.31.2's structures on x86-64.
static_assert(sizeof(NcclConfig) == 72 && offsetof(NcclConfig, net_name) == 32 &&
              offsetof(NcclConfig, comm_name) == 48 && offsetof(NcclConfig, cta_policy) == 60);
static_assert(sizeof(NcclCollConfig) == 64 && offsetof(NcclCollConfig, algorithm) == 40 &&
              offsetof(NcclCollConfig, cta_policy) == 52 &&
              offsetof(NcclCollConfig, profiler_tag) == 56);

constexpr unsigned int kMagic = 0xcafebeef;
constexpr std::int64_t kPolicySince = 22800;
constexpr std::int64_t kUnknownFrom = 30000;

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

class Loader {
 public:
  void* open(const std::string& path, int flags) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    if (library == nullptr) {
      tried_ += "\n  " + path + (flags == 0 ? ": " + loader_error() : ": not in the process");
    }
    return library;
  }

  void* find(const NcclSearch& search) {
    if (!search.explicit_path.empty()) return open(search.explicit_path, 0);
    void* library = open(search.soname, RTLD_NOLOAD);
    if (library == nullptr && !search.wheel_path.empty()) library = open(search.wheel_path, 0);
    return library != nullptr ? library : open(search.soname, 0);
  }

  [[nodiscard]] const std::string& tried() const { return tried_; }

 private:
  std::string tried_;
};

template <class Function>
void bind_optional(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
}

template <class Function>
void bind(void* library, const char* symbol, Function*& function, const std::string& path) {
  bind_optional(library, symbol, function);
  if (function == nullptr) {
    throw UnsupportedError(
        detail::message("expected ", path, " to have ", symbol, ", got a library without it"));
  }
}

std::string path_of(void* symbol, const std::string& fallback) {
  Dl_info info{};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return fallback;
  return info.dli_fname;
}

void bind_all(void* library, NcclApi& api) {
  const std::string& path = api.path;
  bind(library, "ncclGetErrorString", api.get_error_string, path);
  bind(library, "ncclGetUniqueId", api.get_unique_id, path);
  bind(library, "ncclCommInitRankConfig", api.comm_init_rank_config, path);
  bind(library, "ncclCommDestroy", api.comm_destroy, path);
  bind(library, "ncclCommAbort", api.comm_abort, path);
  bind(library, "ncclCommGetAsyncError", api.comm_get_async_error, path);
  bind(library, "ncclAllGather", api.all_gather, path);
  bind(library, "ncclGroupStart", api.group_start, path);
  bind(library, "ncclGroupEnd", api.group_end, path);
  bind_optional(library, "ncclGetLastError", api.get_last_error);
  bind_optional(library, "ncclCommFinalize", api.comm_finalize);
  bind_optional(library, "ncclMemAlloc", api.mem_alloc);
  bind_optional(library, "ncclMemFree", api.mem_free);
  bind_optional(library, "ncclCommWindowRegister", api.comm_window_register);
  bind_optional(library, "ncclCommWindowDeregister", api.comm_window_deregister);
  bind_optional(library, "ncclGetPeerDevicePointer", api.get_peer_device_pointer);
  bind_optional(library, "ncclAllGatherConfig", api.all_gather_config);
}

}  // namespace

NcclError::~NcclError() = default;

std::shared_ptr<const NcclApi> load_nccl(const NcclSearch& search) {
  Loader loader;
  void* library = loader.find(search);
  if (library == nullptr) {
    throw UnsupportedError(detail::message("expected an NCCL library, got none of:", loader.tried(),
                                           "\ninstall nvidia-nccl-cu13>=2.31.2 or give a path"));
  }
  auto api = std::make_shared<NcclApi>();
  int (*get_version)(int*) = nullptr;
  bind(library, "ncclGetVersion", get_version, search.explicit_path + search.soname);
  api->path = path_of(reinterpret_cast<void*>(get_version), search.soname);
  int code = 0;
  if (const int status = get_version(&code); status != kNcclSuccess) {
    throw NcclError(status, detail::message("ncclGetVersion of ", api->path, " gave ", status));
  }
  api->version_code = code;
  bind_all(library, *api);
  return api;
}

void nccl_check(const NcclApi& api, int status, const char* call) {
  if (status == kNcclSuccess) return;
  const char* meaning = api.get_error_string(status);
  const char* last = api.get_last_error == nullptr ? "" : api.get_last_error(nullptr);
  throw NcclError(status, detail::message(call, " failed with ", status, " (", meaning, ") ",
                                          last == nullptr ? "" : last));
}

NcclConfig make_nccl_config(const NcclApi& api, int cta_policy) {
  if (api.version_code >= kUnknownFrom) {
    throw UnsupportedError(
        detail::message("expected NCCL below 3.0.0, whose ncclConfig_t is known, "
                        "got version code ",
                        api.version_code, " at ", api.path));
  }
  const bool has_policy = api.version_code >= kPolicySince;
  if (!has_policy && cta_policy != 0) {
    throw UnsupportedError(
        detail::message("expected NCCL >= 2.28.0 for a policy of a communicator, "
                        "got version code ",
                        api.version_code, " at ", api.path));
  }
  NcclConfig config{};
  config.size = has_policy ? sizeof(NcclConfig) : offsetof(NcclConfig, cga_cluster_size);
  config.magic = kMagic;
  config.version = static_cast<unsigned int>(api.version_code);
  config.blocking = 0;
  config.cga_cluster_size = config.min_ctas = config.max_ctas = INT_MIN;
  config.split_share = config.traffic_class = config.collnet_enable = INT_MIN;
  config.shrink_share = config.nvls_ctas = INT_MIN;
  config.cta_policy = cta_policy == 0 ? INT_MIN : cta_policy;
  return config;
}

}  // namespace kvxfer::cuda
