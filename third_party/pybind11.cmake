# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

# Finds pybind11 of the Python that the build uses. Honours pybind11_ROOT.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT pybind11_ROOT AND NOT pybind11_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 ${KVXFER_MIN_PYBIND11} CONFIG QUIET)
if(NOT pybind11_FOUND)
  message(FATAL_ERROR "pybind11 >= ${KVXFER_MIN_PYBIND11} was not found for ${Python_EXECUTABLE}: "
                      "run '${Python_EXECUTABLE} -m pip install pybind11==3.1.0', "
                      "or set pybind11_ROOT")
endif()
message(STATUS "kvxfer: pybind11 ${pybind11_VERSION}: ${pybind11_DIR}")
