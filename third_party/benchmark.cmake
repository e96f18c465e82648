# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

# Finds Google Benchmark (benchmark::benchmark). Honours benchmark_ROOT.
find_package(benchmark ${KVXFER_MIN_BENCHMARK} CONFIG QUIET)
if(NOT benchmark_FOUND)
  message(FATAL_ERROR "Google Benchmark >= ${KVXFER_MIN_BENCHMARK} was not found: run "
                      "'apt-get install --no-install-recommends libbenchmark-dev', "
                      "or set benchmark_ROOT")
endif()
message(STATUS "kvxfer: Google Benchmark ${benchmark_VERSION}: ${benchmark_DIR}")
