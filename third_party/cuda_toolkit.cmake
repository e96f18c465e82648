# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

# Finds the CUDA compiler and toolkit. Sets KVXFER_HAS_CUDA; links through CUDA::cudart_static.
# Honours CUDAToolkit_ROOT, CMAKE_CUDA_COMPILER and CMAKE_CUDA_ARCHITECTURES.
set(KVXFER_HAS_CUDA OFF)
set(_kvxfer_cuda_install "run 'apt-get install cuda-toolkit-13-0' with NVIDIA's package source \
and put its nvcc on the PATH, or set CMAKE_CUDA_COMPILER")

if(NOT KVXFER_CUDA STREQUAL "OFF" AND EXISTS "${PROJECT_SOURCE_DIR}/cuda/CMakeLists.txt")
  if(CUDAToolkit_ROOT AND NOT CMAKE_CUDA_COMPILER)
    find_program(CMAKE_CUDA_COMPILER nvcc HINTS "${CUDAToolkit_ROOT}/bin" NO_DEFAULT_PATH)
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "CUDA architectures to build for" FORCE)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL KVXFER_MIN_CUDA)
      find_package(CUDAToolkit ${KVXFER_MIN_CUDA} REQUIRED)
      set(KVXFER_HAS_CUDA ON)
    endif()
  endif()
endif()

if(KVXFER_HAS_CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  message(STATUS "kvxfer: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}: "
                 "${CMAKE_CUDA_COMPILER}")
elseif(KVXFER_CUDA STREQUAL "ON")
  message(FATAL_ERROR "KVXFER_CUDA=ON, but no CUDA compiler >= ${KVXFER_MIN_CUDA} was found "
                      "(found: '${CMAKE_CUDA_COMPILER}' '${CMAKE_CUDA_COMPILER_VERSION}'): "
                      "${_kvxfer_cuda_install}")
elseif(KVXFER_CUDA STREQUAL "OFF")
  message(STATUS "kvxfer: CUDA is left out (KVXFER_CUDA=OFF)")
elseif(NOT EXISTS "${PROJECT_SOURCE_DIR}/cuda/CMakeLists.txt")
  message(STATUS "kvxfer: CUDA is left out (this source tree has no cuda/)")
else()
  message(STATUS "kvxfer: CUDA is left out (no CUDA compiler >= ${KVXFER_MIN_CUDA} found; "
                 "to build it, ${_kvxfer_cuda_install})")
endif()
