// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/symmetric_window.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "communicator_state.hpp"

namespace kvxfer::cuda {

/// The allocation. Holds the communicator, so that memory is freed before NCCL ends.
class WindowMemory {
 public:
  WindowMemory(std::shared_ptr<CommunicatorState> communicator, DeviceCalls device,
               std::int64_t size_bytes)
      : communicator_(std::move(communicator)), device_(std::move(device)) {
    const NcclApi& api = communicator_->api();
    void* memory = nullptr;
    nccl_check(api, api.mem_alloc(&memory, static_cast<std::size_t>(size_bytes)), "ncclMemAlloc");
    data_ = static_cast<std::byte*>(memory);
  }
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;
  ~WindowMemory() {
    // A device that failed reads nothing any more, so the memory goes in any case.
    keep_failure([this] { device_.synchronize(); });
    keep_failure([this] {
      const NcclApi& api = communicator_->api();
      nccl_check(api, api.mem_free(data_), "ncclMemFree");
    });
  }

  /// Runs a release; what it throws is kept with the communicator.
  template <class Action>
  void keep_failure(Action action) noexcept {
    try {
      action();
    } catch (const std::exception& error) {
      communicator_->keep_release_failure(error.what());
    }
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] CommunicatorState& communicator() const noexcept { return *communicator_; }
  [[nodiscard]] const DeviceCalls& device() const noexcept { return device_; }

 private:
  std::shared_ptr<CommunicatorState> communicator_;
  DeviceCalls device_;
  std::byte* data_ = nullptr;
};

struct SymmetricWindow::Registration {
  std::shared_ptr<WindowMemory> memory;  // null once closed
  std::int64_t size_bytes = 0;
  NcclWindow window = nullptr;
  std::vector<WindowOutcome> outcomes;

  void enroll() {
    CommunicatorState& communicator = memory->communicator();
    try {
      communicator.wait(communicator.api().comm_window_register(
                            communicator.handle(), memory->data(),
                            static_cast<std::size_t>(size_bytes), &window, kNcclWindowSymmetric),
                        "ncclCommWindowRegister");
    } catch (const DeadlineError&) {
      // NCCL writes `window` when it is done, so it must not outlast this object.
      communicator.abort();
      throw;
    }
  }

  /// Where NCCL gave a window and still knows it: an aborted communicator has none.
  void deregister() {
    NcclWindow registered = std::exchange(window, nullptr);
    CommunicatorState& communicator = memory->communicator();
    if (registered == nullptr || !communicator.is_open()) return;
    communicator.wait(communicator.api().comm_window_deregister(communicator.handle(), registered),
                      "ncclCommWindowDeregister");
  }
};

namespace {

void require_request(const WindowRequest& request, const DeviceCalls& device, const NcclApi& api) {
  detail::require(device.synchronize && device.is_capturing,
                  "expected both device calls of a window, got an empty one");
  detail::require(request.size_bytes >= 1, "expected a window of at least 1 byte, got ",
                  request.size_bytes);
  detail::require(!device.is_capturing(),
                  "expected no graph capture while a window is registered, got one");
  if (!api.has_windows()) {
    throw UnsupportedError(
        detail::message("expected NCCL with symmetric windows, got version code ", api.version_code,
                        " at ", api.path));
  }
}

void require_alignment(const std::byte* data) {
  const auto rest = reinterpret_cast<std::uintptr_t>(data) % kNcclWindowAlignment;
  detail::require(rest == 0, "expected window memory at a multiple of ", kNcclWindowAlignment,
                  " bytes, got ", rest, " bytes beyond one");
}

/// Runs a part of a collective step; what it throws becomes the rank's failure.
template <class Action>
StepResult attempted(Action action) {
  StepResult result;
  try {
    result.payload = action();
  } catch (const std::exception& error) {
    result.failure = error.what();
    if (result.failure.empty()) result.failure = "an error without words";
  }
  return result;
}

void require_equal(const std::vector<std::string>& requests) {
  for (std::size_t rank = 1; rank < requests.size(); ++rank) {
    if (requests[rank] == requests.front()) continue;
    throw GroupError(
        detail::message("expected every rank to ask for the window of rank 0 (bytes, layout: ",
                        requests.front(), "), got ", requests[rank], " on rank ", rank),
        {static_cast<std::int64_t>(rank)});
  }
}

}  // namespace

SymmetricWindow::SymmetricWindow(std::unique_ptr<Registration> registration)
    : registration_(std::move(registration)) {}
SymmetricWindow::SymmetricWindow(SymmetricWindow&&) noexcept = default;

SymmetricWindow::~SymmetricWindow() {
  if (registration_ == nullptr || registration_->memory == nullptr) return;
  const std::shared_ptr<WindowMemory> memory = registration_->memory;
  memory->keep_failure([this] { close(); });
}

SymmetricWindow SymmetricWindow::create(const Communicator& communicator,
                                        const WindowRequest& request, DeviceCalls device) {
  const std::shared_ptr<CommunicatorState> state = communicator.hold();
  const auto bound = state->options().bound;
  auto registration = std::make_unique<Registration>();
  registration->size_bytes = request.size_bytes;

  const StepResult allocated = attempted([&] {
    require_request(request, device, state->api());
    registration->memory =
        std::make_shared<WindowMemory>(state, std::move(device), request.size_bytes);
    require_alignment(registration->memory->data());
    return detail::message(request.size_bytes, ", ", request.fingerprint);
  });
  require_equal(agree(state->group(), "allocate a window", allocated, bound));

  const StepResult registered = attempted([&] {
    registration->enroll();
    return std::string(registration->window == nullptr ? "null" : "registered");
  });
  try {
    // A peer's own wait may have taken the bound before it comes here.
    for (const std::string& outcome :
         agree(state->group(), "register a window", registered, 2 * bound)) {
      registration->outcomes.push_back(outcome == "null" ? WindowOutcome::kNull
                                                         : WindowOutcome::kRegistered);
    }
  } catch (const Error&) {
    static_cast<void>(attempted([&] {
      registration->deregister();
      return std::string();
    }));
    throw;
  }
  return SymmetricWindow(std::move(registration));
}

std::int64_t SymmetricWindow::size_bytes() const noexcept {
  return registration_->size_bytes;
}

const std::vector<WindowOutcome>& SymmetricWindow::outcomes() const noexcept {
  return registration_->outcomes;
}

bool SymmetricWindow::is_registered_everywhere() const noexcept {
  return std::all_of(outcomes().begin(), outcomes().end(),
                     [](WindowOutcome outcome) { return outcome == WindowOutcome::kRegistered; });
}

void SymmetricWindow::require_inside(std::int64_t offset_bytes, std::int64_t size_bytes) const {
  detail::require(registration_->memory != nullptr, "expected an open window, got a closed one");
  const std::int64_t limit = registration_->size_bytes;
  detail::require(offset_bytes >= 0 && size_bytes >= 1 && size_bytes <= limit - offset_bytes,
                  "expected bytes inside a window of ", limit, ", got ", size_bytes, " at ",
                  offset_bytes);
}

WindowView SymmetricWindow::view(std::int64_t offset_bytes, std::int64_t size_bytes) const {
  require_inside(offset_bytes, size_bytes);
  return {registration_->memory, registration_->memory->data() + offset_bytes, size_bytes};
}

std::byte* SymmetricWindow::peer_data(std::int64_t rank, std::int64_t offset_bytes) const {
  require_inside(offset_bytes, 1);
  const CommunicatorState& communicator = registration_->memory->communicator();
  const NcclApi& api = communicator.api();
  const std::int64_t ranks = communicator.group().ranks();
  detail::require(rank >= 0 && rank < ranks, "expected rank in [0, ", ranks, "), got ", rank);
  if (api.get_peer_device_pointer == nullptr || registration_->window == nullptr) {
    throw UnsupportedError(detail::message(
        "expected NCCL to tell where a peer's window is, got ",
        registration_->window == nullptr ? "no window" : "a library without that function"));
  }
  void* data = nullptr;
  nccl_check(
      api,
      api.get_peer_device_pointer(registration_->window, static_cast<std::size_t>(offset_bytes),
                                  static_cast<int>(rank), &data),
      "ncclGetPeerDevicePointer");
  return static_cast<std::byte*>(data);
}

void SymmetricWindow::all_gather(std::int64_t offset_bytes, std::int64_t block_bytes,
                                 CudaStream stream) const {
  detail::require(registration_->memory != nullptr, "expected an open window, got a closed one");
  const CommunicatorState& communicator = registration_->memory->communicator();
  const std::int64_t ranks = communicator.group().ranks();
  detail::require(block_bytes >= 1 && block_bytes <= registration_->size_bytes / ranks,
                  "expected blocks of 1 to ", registration_->size_bytes / ranks, " bytes, got ",
                  block_bytes);
  require_inside(offset_bytes, ranks * block_bytes);
  communicator.all_gather(registration_->memory->data() + offset_bytes, block_bytes, stream);
}

void SymmetricWindow::close() {
  if (registration_->memory == nullptr) return;
  CommunicatorState& communicator = registration_->memory->communicator();
  std::exception_ptr first_error;
  const auto run = [&](auto action) {
    try {
      action();
    } catch (const std::exception&) {
      if (first_error == nullptr) first_error = std::current_exception();
    }
  };
  const StepResult drained = attempted([&] {
    registration_->memory->device().synchronize();
    return std::string();
  });
  run([&] {
    try {
      static_cast<void>(
          agree(communicator.group(), "close a window", drained, communicator.options().bound));
    } catch (const DeadlineError&) {
      communicator.abort();
      throw;
    }
  });
  run([&] { registration_->deregister(); });
  registration_->memory.reset();
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

}  // namespace kvxfer::cuda
