# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

# Finds GoogleTest (GTest::gtest_main, GTest::gmock). Honours GTest_ROOT.
find_package(GTest ${KVXFER_MIN_GOOGLETEST} CONFIG QUIET)
if(NOT GTest_FOUND)
  message(FATAL_ERROR "GoogleTest >= ${KVXFER_MIN_GOOGLETEST} was not found: run "
                      "'apt-get install --no-install-recommends libgtest-dev libgmock-dev', "
                      "or set GTest_ROOT")
endif()
include(GoogleTest)
message(STATUS "kvxfer: GoogleTest ${GTest_VERSION}: ${GTest_DIR}")
