// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/communicator.hpp"

#include <cstring>
#include <thread>
#include <utility>

#include "communicator_state.hpp"
#include "kvxfer/gather_path.hpp"

namespace kvxfer::cuda {

namespace {

constexpr std::chrono::milliseconds kPollInterval{1};

std::string start_payload(const NcclApi& api, bool is_first) {
  std::string payload = std::to_string(api.version_code) + ' ';
  if (!is_first) return payload;
  NcclUniqueId id{};
  nccl_check(api, api.get_unique_id(&id), "ncclGetUniqueId");
  return payload.append(id.bytes, sizeof(id.bytes));
}

void require_policy(const NcclApi& api, CtaPolicy policy) {
  if (policy != CtaPolicy::kZero || nccl_version(api.version_code) >= kCopyEngineNccl) return;
  throw UnsupportedError(detail::message(
      "expected NCCL >= 2.31.2 for the zero policy, whose first gather may hang two ranks before, "
      "got version code ",
      api.version_code, " at ", api.path));
}

/// The id that rank 0 made, from payloads of one NCCL version.
NcclUniqueId agreed_id(const std::vector<std::string>& payloads) {
  const std::size_t begin = payloads.front().find(' ') + 1;
  NcclUniqueId id{};
  detail::require(payloads.front().size() == begin + sizeof(id.bytes), "expected an id of ",
                  sizeof(id.bytes), " bytes from rank 0, got ", payloads.front().size() - begin);
  std::vector<std::int64_t> others;
  for (std::size_t rank = 1; rank < payloads.size(); ++rank) {
    if (payloads[rank] != payloads.front().substr(0, begin)) {
      others.push_back(static_cast<std::int64_t>(rank));
    }
  }
  if (!others.empty()) {
    throw GroupError(detail::message("expected one NCCL version on all ranks, got code ",
                                     payloads.front().substr(0, begin), "on rank 0 and ",
                                     payloads[static_cast<std::size_t>(others.front())], "on rank ",
                                     others.front()),
                     others);
  }
  std::memcpy(id.bytes, payloads.front().data() + begin, sizeof(id.bytes));
  return id;
}

}  // namespace

CommunicatorState::CommunicatorState(std::shared_ptr<const NcclApi> api,
                                     std::shared_ptr<RankGroup> group,
                                     const CommunicatorOptions& options)
    : api_(std::move(api)), group_(std::move(group)), options_(options) {}

CommunicatorState::~CommunicatorState() {
  try {
    destroy();
  } catch (const std::exception&) {
    abort();
  }
}

NcclComm CommunicatorState::handle() const {
  NcclComm handle = handle_.load();
  detail::require(handle != nullptr, "expected an open communicator, got one that ",
                  is_aborted() ? "was aborted" : "was closed");
  return handle;
}

void CommunicatorState::start(const NcclUniqueId& id) {
  NcclConfig config = make_nccl_config(*api_, static_cast<int>(options_.policy));
  const int status = api_->comm_init_rank_config(&connecting_, static_cast<int>(group_->ranks()),
                                                 id, static_cast<int>(group_->rank()), &config);
  handle_.store(connecting_);
  wait(status, "ncclCommInitRankConfig");
  static_cast<void>(handle());
}

int CommunicatorState::async_state() const {
  const std::lock_guard lock(polling_);
  int state = kNcclSuccess;
  nccl_check(*api_, api_->comm_get_async_error(handle(), &state), "ncclCommGetAsyncError");
  return state;
}

void CommunicatorState::wait(int status, const char* call) const {
  if (status != kNcclInProgress) return nccl_check(*api_, status, call);
  const auto deadline = std::chrono::steady_clock::now() + options_.bound;
  for (;;) {
    const int state = async_state();
    if (state != kNcclInProgress) return nccl_check(*api_, state, call);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw DeadlineError(detail::message("expected ", call, " to end within ",
                                          options_.bound.count(), " ms, got no end"),
                          {});
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

void CommunicatorState::check() const {
  const int state = async_state();
  if (state != kNcclInProgress) nccl_check(*api_, state, "a collective");
}

void CommunicatorState::all_gather(std::byte* received, std::int64_t block_bytes,
                                   CudaStream stream) const {
  detail::require(stream != nullptr, "expected a stream of its own for a gather, got the default");
  detail::require(received != nullptr && block_bytes >= 1,
                  "expected memory and blocks of at least 1 byte, got ", block_bytes, " bytes at ",
                  static_cast<const void*>(received));
  const std::byte* sent = received + group_->rank() * block_bytes;
  wait(api_->all_gather(sent, received, static_cast<std::size_t>(block_bytes), kNcclUint8, handle(),
                        stream),
       "ncclAllGather");
}

void CommunicatorState::abort() noexcept {
  is_aborted_.store(true);
  NcclComm comm = nullptr;
  {
    const std::lock_guard lock(polling_);
    comm = handle_.exchange(nullptr);
  }
  if (comm != nullptr) static_cast<void>(api_->comm_abort(comm));
}

void CommunicatorState::destroy() {
  if (!is_open()) return;
  try {
    if (api_->comm_finalize != nullptr) wait(api_->comm_finalize(handle()), "ncclCommFinalize");
  } catch (const Error&) {
    abort();
    throw;
  }
  NcclComm comm = handle_.exchange(nullptr);
  if (comm != nullptr) nccl_check(*api_, api_->comm_destroy(comm), "ncclCommDestroy");
}

void CommunicatorState::keep_release_failure(const std::string& words) noexcept {
  const std::lock_guard lock(polling_);
  if (release_failure_.empty()) release_failure_ = words;
}

std::string CommunicatorState::release_failure() const {
  const std::lock_guard lock(polling_);
  return release_failure_;
}

Communicator::Communicator(std::shared_ptr<CommunicatorState> state) : state_(std::move(state)) {}
Communicator::~Communicator() = default;

Communicator Communicator::create(std::shared_ptr<const NcclApi> api,
                                  std::shared_ptr<RankGroup> group,
                                  const CommunicatorOptions& options) {
  auto state = std::make_shared<CommunicatorState>(std::move(api), std::move(group), options);
  StepResult mine;
  try {
    require_policy(state->api(), options.policy);
    mine.payload = start_payload(state->api(), state->group().rank() == 0);
  } catch (const Error& error) {
    mine.failure = error.what();
  }
  const NcclUniqueId id =
      agreed_id(agree(state->group(), "start a communicator", mine, options.bound));
  mine = {};
  try {
    state->start(id);
  } catch (const Error& error) {
    mine.failure = error.what();
  }
  try {
    // A peer's own wait may have taken the bound before it comes here.
    static_cast<void>(agree(state->group(), "connect a communicator", mine, 2 * options.bound));
  } catch (const Error&) {
    state->abort();
    throw;
  }
  return Communicator(std::move(state));
}

std::int64_t Communicator::rank() const {
  return state_->group().rank();
}
std::int64_t Communicator::ranks() const {
  return state_->group().ranks();
}
const CommunicatorOptions& Communicator::options() const {
  return state_->options();
}
NcclComm Communicator::handle() const {
  return state_->handle();
}
bool Communicator::is_aborted() const {
  return state_->is_aborted();
}
std::string Communicator::release_failure() const {
  return state_->release_failure();
}
void Communicator::all_gather(std::byte* received, std::int64_t block_bytes,
                              CudaStream stream) const {
  state_->all_gather(received, block_bytes, stream);
}
void Communicator::check() const {
  state_->check();
}
void Communicator::abort() noexcept {
  state_->abort();
}

void Communicator::close() {
  const auto holder_count = state_.use_count() - 1;
  detail::require(holder_count == 0,
                  "expected windows, views and captured graphs to be closed before their "
                  "communicator, got ",
                  holder_count, " that hold it");
  state_->destroy();
}

}  // namespace kvxfer::cuda
