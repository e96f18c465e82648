// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#pragma once

// What kvxfer throws. Host code reports every failure by an exception of this family; the types
// have default visibility, so one thrown in one Python module is recognised in another.

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvxfer {

/// Base of everything that kvxfer throws; never thrown itself.
class [[gnu::visibility("default")]] Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;
};

/// The caller broke a stated precondition.
class [[gnu::visibility("default")]] InvalidArgumentError final : public Error {
 public:
  using Error::Error;
  InvalidArgumentError(const InvalidArgumentError&) = default;
  InvalidArgumentError& operator=(const InvalidArgumentError&) = default;
  ~InvalidArgumentError() override;
};

/// What was asked for does not fit a region, a buffer or a window.
class [[gnu::visibility("default")]] CapacityError final : public Error {
 public:
  using Error::Error;
  CapacityError(const CapacityError&) = default;
  CapacityError& operator=(const CapacityError&) = default;
  ~CapacityError() override;
};

/// This build, or these two shardings, cannot do it; the message says which and what could.
class [[gnu::visibility("default")]] UnsupportedError final : public Error {
 public:
  using Error::Error;
  UnsupportedError(const UnsupportedError&) = default;
  UnsupportedError& operator=(const UnsupportedError&) = default;
  ~UnsupportedError() override;
};

namespace detail {

/// The parts streamed one after another into one string.
template <class... Parts>
[[nodiscard, gnu::cold, gnu::noinline]] std::string message(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return std::move(stream).str();
}

template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void throw_invalid_argument(const Parts&... parts) {
  throw InvalidArgumentError(message(parts...));
}

/// Throws InvalidArgumentError with the joined parts unless `ok`. A call that holds builds no
/// string.
template <class... Parts>
inline void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    throw_invalid_argument(parts...);
  }
}

}  // namespace detail
}  // namespace kvxfer
