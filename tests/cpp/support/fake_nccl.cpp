// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "support/fake_nccl.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// The fake's own declarations of NCCL's C interface, so that a mistake in the library's is seen.

namespace {

using kvxfer::support::FakeNcclScript;

constexpr int kSuccess = 0;
constexpr int kUnhandledCudaError = 1;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;
constexpr std::chrono::seconds kGatherBound{20};

struct UniqueId {
  char internal[128];
};

struct Team {
  int joined_count = 0;
  int size = 0;
  int finalized_count = 0;
  long gather_count = 0;
  int arrived_count = 0;
  std::vector<const void*> sent;
  std::vector<void*> received;
  std::vector<std::vector<std::byte*>> registered;  // of each rank
};

struct Team;

struct Window {
  Team* team;
  std::size_t number;  // among the registrations of its rank
};

struct Comm {
  Team* team;
  int rank;
  int cta_policy;
  std::chrono::steady_clock::time_point ready_at;
  bool is_connected;
  bool is_registering_forever;
  std::vector<std::unique_ptr<Window>> windows;
};

std::mutex mutex;
std::condition_variable changed;
FakeNcclScript script;
std::map<std::string, Team> teams;
std::string log_lines;
thread_local std::string log_copy;
thread_local int rank_of_thread = kvxfer::support::kNoRank;

void note(int rank, const std::string& call) {
  log_lines += std::to_string(rank) + " " + call + "\n";
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void fake_nccl_script(const FakeNcclScript* next) {
  const std::lock_guard lock(mutex);
  script = *next;
  log_lines.clear();
}

EXPORT void fake_nccl_note(int rank, const char* call) {
  const std::lock_guard lock(mutex);
  note(rank, call);
}

EXPORT const char* fake_nccl_log() {
  const std::lock_guard lock(mutex);
  log_copy = log_lines;
  return log_copy.c_str();
}

EXPORT int ncclGetVersion(int* version) {
  const std::lock_guard lock(mutex);
  *version = script.version;
  return kSuccess;
}

EXPORT const char* ncclGetErrorString(int status) {
  return status == kSuccess ? "no error" : "fake error";
}

EXPORT int ncclGetUniqueId(UniqueId* id) {
  static int next = 0;
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string text = std::to_string(++next);
  std::memcpy(id->internal, text.data(), text.size());
  id->internal[127] = 'z';
  return kSuccess;
}

EXPORT int ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank,
                                  const unsigned char* config) {
  std::size_t config_size = 0;
  unsigned int magic = 0;
  int blocking = 1;
  int policy = 0;
  std::memcpy(&config_size, config, sizeof(config_size));
  std::memcpy(&magic, config + 8, sizeof(magic));
  std::memcpy(&blocking, config + 16, sizeof(blocking));
  if (config_size >= 64) std::memcpy(&policy, config + 60, sizeof(policy));
  if (magic != 0xcafebeef || blocking != 0 || id.internal[127] != 'z') return kInvalidArgument;

  const std::lock_guard lock(mutex);
  rank_of_thread = rank;
  Team& team = teams[std::string(id.internal)];
  team.size = size;
  team.sent.resize(static_cast<std::size_t>(size));
  team.received.resize(static_cast<std::size_t>(size));
  team.registered.resize(static_cast<std::size_t>(size));
  const int wait_ms = rank == script.slow_rank ? script.slow_ms : 0;
  *comm = new Comm{
      &team, rank,  policy, std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms),
      false, false, {}};
  note(rank, "init policy " + std::to_string(policy));
  return kInProgress;
}

EXPORT int ncclCommGetAsyncError(Comm* comm, int* state) {
  const std::lock_guard lock(mutex);
  if (!comm->is_connected && std::chrono::steady_clock::now() >= comm->ready_at) {
    comm->is_connected = true;
    ++comm->team->joined_count;
  }
  const bool is_pending = comm->team->joined_count < comm->team->size;
  *state = is_pending || comm->is_registering_forever ? kInProgress : kSuccess;
  if (!is_pending && comm->rank == script.failing_link_rank) *state = kRemoteError;
  return kSuccess;
}

EXPORT int ncclCommDestroy(Comm* comm) {
  const std::lock_guard lock(mutex);
  note(comm->rank, "destroy");
  delete comm;
  return kSuccess;
}

EXPORT int ncclCommAbort(Comm* comm) {
  const std::lock_guard lock(mutex);
  note(comm->rank, "abort");
  delete comm;
  return kSuccess;
}

EXPORT int ncclGroupStart() {
  return kSuccess;
}

EXPORT int ncclGroupEnd() {
  return kSuccess;
}

EXPORT int ncclAllGather(const void* sent, void* received, std::size_t count, int type, Comm* comm,
                         void* stream) {
  if (type != 1 || stream == nullptr) return kInvalidArgument;
  std::unique_lock lock(mutex);
  Team& team = *comm->team;
  note(comm->rank, "all_gather " + std::to_string(count));
  const auto rank = static_cast<std::size_t>(comm->rank);
  team.sent[rank] = sent;
  team.received[rank] = received;
  const long mine = team.gather_count;
  if (++team.arrived_count == team.size) {
    for (std::size_t to = 0; to < team.received.size(); ++to) {
      for (std::size_t from = 0; from < team.sent.size(); ++from) {
        std::memmove(static_cast<std::byte*>(team.received[to]) + from * count, team.sent[from],
                     count);
      }
    }
    team.arrived_count = 0;
    ++team.gather_count;
    changed.notify_all();
  }
  const bool is_done =
      changed.wait_for(lock, kGatherBound, [&] { return team.gather_count > mine; });
  return is_done ? kSuccess : kRemoteError;
}

#ifndef FAKE_NCCL_WITHOUT_OPTIONAL

EXPORT const char* ncclGetLastError(Comm*) {
  return "in the fake";
}

EXPORT int ncclCommFinalize(Comm* comm) {
  const std::lock_guard lock(mutex);
  note(comm->rank, "finalize");
  return kInProgress;
}

EXPORT int ncclMemAlloc(void** memory, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (rank_of_thread == script.failing_alloc_rank) return kUnhandledCudaError;
  auto* block =
      static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 8191 + 256) / 4096 * 4096));
  std::memset(block, 0, bytes);
  const bool is_unaligned = rank_of_thread == script.unaligned_rank;
  *memory = block + (is_unaligned ? 256 : 0);
  note(rank_of_thread, "alloc " + std::to_string(bytes));
  return kSuccess;
}

EXPORT int ncclMemFree(void* memory) {
  const std::lock_guard lock(mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  note(rank_of_thread, "free");
  std::free(static_cast<std::byte*>(memory) - address % 4096);
  return kSuccess;
}

EXPORT int ncclCommWindowRegister(Comm* comm, void* memory, std::size_t bytes, Window** window,
                                  int flags) {
  if (flags != 1) return kInvalidArgument;
  const std::lock_guard lock(mutex);
  note(comm->rank, "register " + std::to_string(bytes));
  if (comm->rank == script.failing_window_rank) return kInvalidUsage;
  *window = nullptr;
  comm->is_registering_forever = comm->rank == script.hanging_window_rank;
  if (!comm->is_registering_forever && comm->rank != script.null_window_rank) {
    auto& own = comm->team->registered[static_cast<std::size_t>(comm->rank)];
    *window = comm->windows.emplace_back(std::make_unique<Window>(comm->team, own.size())).get();
    own.push_back(static_cast<std::byte*>(memory));
  }
  return kInProgress;
}

EXPORT int ncclCommWindowDeregister(Comm* comm, Window* window) {
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(comm->windows.begin(), comm->windows.end(),
                                  [&](const auto& own) { return own.get() == window; });
  const bool is_known = found != comm->windows.end();
  note(comm->rank, is_known ? "deregister" : "deregister of no window");
  if (!is_known) return kInvalidArgument;
  comm->windows.erase(found);
  return kSuccess;
}

EXPORT int ncclGetPeerDevicePointer(Window* window, std::size_t offset, int peer, void** data) {
  if (window == nullptr) return kInvalidArgument;
  const std::lock_guard lock(mutex);
  const auto& registered = window->team->registered[static_cast<std::size_t>(peer)];
  *data = window->number < registered.size() ? registered[window->number] + offset : nullptr;
  return kSuccess;
}

EXPORT int ncclAllGatherConfig(const void* sent, void* received, std::size_t count, int type,
                               Comm* comm, void* stream, const void*) {
  return ncclAllGather(sent, received, count, type, comm, stream);
}

#endif
