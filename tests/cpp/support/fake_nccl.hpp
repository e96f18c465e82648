// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a test tells the fake libnccl, and what it reads back. The fake runs the ranks as threads of
// one process: ncclAllGather copies between their buffers once all have called.

namespace kvxfer::support {

inline constexpr int kNoRank = -1;

struct FakeNcclScript {
  int version = 23102;
  int null_window_rank = kNoRank;     ///< registers with success and no window
  int failing_window_rank = kNoRank;  ///< registration fails
  int failing_alloc_rank = kNoRank;
  int unaligned_rank = kNoRank;  ///< gets memory 256 bytes beyond a multiple of 4,096
  int slow_rank = kNoRank;       ///< joins a communicator slow_ms late
  int slow_ms = 0;
  int hanging_window_rank = kNoRank;  ///< registration stays in progress
  int failing_link_rank = kNoRank;    ///< its asynchronous state is a remote error once connected
};

using ScriptFakeNccl = void (*)(const FakeNcclScript*);  ///< "fake_nccl_script"; clears the log
using NoteInFakeNccl = void (*)(int rank, const char*);  ///< "fake_nccl_note"
/// "fake_nccl_log": lines "rank call", alive until the same thread calls again.
using LogOfFakeNccl = const char* (*)();

}  // namespace kvxfer::support
