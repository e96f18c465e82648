# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

# NCCL bound at run time, and what is built on it. Needs no CUDA toolkit, so it is part of every
# build and its rules are tested without a GPU.
add_library(
  kvxfer_collective STATIC
  cuda/src/nccl_api.cpp
  cuda/src/rank_group.cpp
  cuda/src/communicator.cpp
  cuda/src/symmetric_window.cpp
  cuda/src/copy_engine_gather.cpp)
add_library(kvxfer::collective ALIAS kvxfer_collective)
target_include_directories(kvxfer_collective PUBLIC cuda/include PRIVATE cuda/src)
target_link_libraries(
  kvxfer_collective
  PUBLIC kvxfer::core
  PRIVATE kvxfer_warnings ${CMAKE_DL_LIBS})
set_target_properties(
  kvxfer_collective PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                               VISIBILITY_INLINES_HIDDEN ON)
