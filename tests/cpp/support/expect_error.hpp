// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvxfer/error.hpp>

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <typeinfo>

namespace kvxfer::support {

/// Calls `action` and expects exactly `Expected` (not a relative) with all parts in its message.
template <class Expected, class Action>
void expect_error(Action action, std::initializer_list<const char*> parts) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(typeid(error), typeid(Expected)) << error.what();
    for (const char* part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "expected \"" << part << "\" in: " << error.what();
    }
    return;
  }
  std::string wanted;
  for (const char* part : parts)
    wanted += std::string(" ") + part;
  ADD_FAILURE() << "nothing was thrown where an error was expected:" << wanted;
}

}  // namespace kvxfer::support
