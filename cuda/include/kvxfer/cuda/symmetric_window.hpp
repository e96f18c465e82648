// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory that NCCL knows at the same offsets on every rank. One allocation and one
// registration however many slots are cut from it: NCCL takes a new stretch of address space for
// every registration, and runs out (nccl#2331).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kvxfer/cuda/communicator.hpp"
#include "kvxfer/gather_path.hpp"

namespace kvxfer::cuda {

/// What a window needs of the CUDA runtime.
struct DeviceCalls {
  std::function<void()> synchronize;   ///< waits for everything on the device; throws its error
  std::function<bool()> is_capturing;  ///< whether a stream of this thread records a graph
};

/// What every rank must ask for alike.
struct WindowRequest {
  std::int64_t size_bytes = 0;
  std::uint64_t fingerprint = 0;  ///< of the layout of its contents: ScratchLayout::fingerprint()
};

class WindowMemory;

/// A stretch of a window. Copies share the memory, which is freed once when the last one and the
/// window are gone.
class WindowView {
 public:
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  friend class SymmetricWindow;
  WindowView(std::shared_ptr<WindowMemory> memory, std::byte* data, std::int64_t size_bytes)
      : memory_(std::move(memory)), data_(data), size_bytes_(size_bytes) {}

  std::shared_ptr<WindowMemory> memory_;
  std::byte* data_;
  std::int64_t size_bytes_;
};

/// A registered allocation of every rank of a communicator. One thread at a time.
class SymmetricWindow {
 public:
  /// Allocates and registers; collective. An object exists only after all ranks registered and
  /// told each other, so no gather can run before. When a rank fails, all release what they have.
  /// @throws GroupError for a failure of any rank: a request that differs, a thread that captures
  ///         a graph, memory or a registration that NCCL refused, or memory at no multiple of
  ///         4,096.
  /// @throws DeadlineError when ranks do not come within the communicator's bound.
  [[nodiscard]] static SymmetricWindow create(const Communicator& communicator,
                                              const WindowRequest& request, DeviceCalls device);

  SymmetricWindow(const SymmetricWindow&) = delete;
  SymmetricWindow& operator=(const SymmetricWindow&) = delete;
  SymmetricWindow(SymmetricWindow&&) noexcept;
  SymmetricWindow& operator=(SymmetricWindow&&) = delete;
  /// Closes it; a failure is left in Communicator::release_failure().
  ~SymmetricWindow();

  [[nodiscard]] std::int64_t size_bytes() const noexcept;

  /// What registration gave on each rank, none of it a failure. Copy engines need all registered.
  [[nodiscard]] const std::vector<WindowOutcome>& outcomes() const noexcept;
  [[nodiscard]] bool is_registered_everywhere() const noexcept;

  /// @throws InvalidArgumentError outside the window or after close().
  [[nodiscard]] WindowView view(std::int64_t offset_bytes, std::int64_t size_bytes) const;

  /// Where this rank reaches a peer's window; null if it cannot.
  /// @throws UnsupportedError if this NCCL does not say or there is no window.
  [[nodiscard]] std::byte* peer_data(std::int64_t rank, std::int64_t offset_bytes) const;

  /// Enqueues an in-place gather: rank r's `block_bytes` at offset_bytes + r * block_bytes reach
  /// every rank. The window must outlive it.
  /// @throws InvalidArgumentError outside the window, after close() or for the default stream.
  void all_gather(std::int64_t offset_bytes, std::int64_t block_bytes, CudaStream stream) const;

  /// Waits for the device and for all ranks, deregisters, and frees unless a view is alive;
  /// collective, once. The first error is thrown after everything is released.
  /// @throws DeadlineError when ranks do not come; the communicator is aborted then, because they
  ///         may still write here.
  void close();

 private:
  struct Registration;
  explicit SymmetricWindow(std::unique_ptr<Registration> registration);
  void require_inside(std::int64_t offset_bytes, std::int64_t size_bytes) const;
  std::unique_ptr<Registration> registration_;
};

}  // namespace kvxfer::cuda
