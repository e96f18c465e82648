// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/native_enum.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <utility>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/gather_path.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

void bind_enums(py::module_& module) {
  py::native_enum<GatherPath>(module, "GatherPath", "enum.Enum", "How a prefix gather runs.")
      .value("NONE", GatherPath::kNone)
      .value("HOST_COPY", GatherPath::kHostCopy)
      .value("SM", GatherPath::kSm)
      .value("COPY_ENGINE", GatherPath::kCopyEngine)
      .finalize();
  py::native_enum<FallbackReason>(module, "FallbackReason", "enum.Enum",
                                  "Why copy engines are not used; NONE when they are.")
      .value("NONE", FallbackReason::kNone)
      .value("ONE_RANK", FallbackReason::kOneRank)
      .value("HOST_POOL", FallbackReason::kHostPool)
      .value("SWITCHED_OFF", FallbackReason::kSwitchedOff)
      .value("MEMORY_SAVER", FallbackReason::kMemorySaver)
      .value("CUSTOM_POOL", FallbackReason::kCustomPool)
      .value("SEVERAL_NODES", FallbackReason::kSeveralNodes)
      .value("NCCL_MISSING", FallbackReason::kNcclMissing)
      .value("NCCL_TOO_OLD", FallbackReason::kNcclTooOld)
      .value("NCCL_DIFFERS", FallbackReason::kNcclDiffers)
      .value("DRIVER_TOO_OLD", FallbackReason::kDriverTooOld)
      .value("CUMEM_OFF", FallbackReason::kCuMemOff)
      .value("WINDOWS_OFF", FallbackReason::kWindowsOff)
      .value("POLICY_CONTRADICTED", FallbackReason::kPolicyContradicted)
      .value("REGISTRATION_FAILED", FallbackReason::kRegistrationFailed)
      .value("NULL_WINDOW", FallbackReason::kNullWindow)
      .finalize();
  py::native_enum<WindowOutcome>(module, "WindowOutcome", "enum.Enum",
                                 "What became of a rank's registration.")
      .value("REGISTERED", WindowOutcome::kRegistered)
      .value("NULL", WindowOutcome::kNull)
      .value("FAILED", WindowOutcome::kFailed)
      .finalize();
}

constexpr const char* kConditionsDoc = R"(What one rank found before memory is allocated.

Parameters
----------
is_switched_on, is_host_pool, has_memory_saver, has_custom_pool : bool
    Of the rank's pool and process.
node : str
    Equal for the ranks of one node.
nccl_code : int
    Version code of the library that was found, such as 23102; 0 for none.
driver_version : int
    As cuDriverGetVersion gives it, such as 13000.
nccl_cumem_enable, nccl_win_enable, nccl_cta_policy : str
    Values of the environment variables of these names, empty where unset. Nothing here sets one.
)";

void bind_conditions(py::module_& module) {
  py::class_<RankConditions>(module, "RankConditions", kConditionsDoc)
      .def(py::init<>())
      .def_readwrite("is_switched_on", &RankConditions::is_switched_on)
      .def_readwrite("is_host_pool", &RankConditions::is_host_pool)
      .def_readwrite("has_memory_saver", &RankConditions::has_memory_saver)
      .def_readwrite("has_custom_pool", &RankConditions::has_custom_pool)
      .def_readwrite("node", &RankConditions::node)
      .def_readwrite("nccl_code", &RankConditions::nccl_code)
      .def_readwrite("driver_version", &RankConditions::driver_version)
      .def_readwrite("nccl_cumem_enable", &RankConditions::nccl_cumem_enable)
      .def_readwrite("nccl_win_enable", &RankConditions::nccl_win_enable)
      .def_readwrite("nccl_cta_policy", &RankConditions::nccl_cta_policy)
      .def(py::self == py::self);
}

void bind_verdict(py::module_& module) {
  py::class_<GatherVerdict>(module, "GatherVerdict",
                            "Path and reason, the same on every rank of the group.")
      .def_readonly("path", &GatherVerdict::path)
      .def_readonly("reason", &GatherVerdict::reason)
      .def_readonly("ranks", &GatherVerdict::ranks, "That gave the reason.")
      .def_readonly("explanation", &GatherVerdict::explanation,
                    "What was found, and what would change it.")
      .def(py::self == py::self)
      .def("__repr__", [](const GatherVerdict& v) {
        return detail::message("GatherVerdict('", v.explanation, "')");
      });
  module.def(
      "decide_gather_path",
      [](const std::vector<RankConditions>& conditions) { return decide_gather_path(conditions); },
      py::arg("of_every_rank"),
      R"(Decide from the conditions of all ranks, in rank order, so that all take one path.

Raises
------
InvalidArgumentError
    For no rank, or host pools beside device pools.
)");
  module.def(
      "decide_after_registration",
      [](const GatherVerdict& before, const std::vector<WindowOutcome>& outcomes) {
        return decide_after_registration(before, outcomes);
      },
      py::arg("before"), py::arg("of_every_rank"),
      "The verdict after registration: copy engines only if every rank has a window.");
}

}  // namespace

void bind_gather_path(py::module_& module) {
  bind_enums(module);
  bind_conditions(module);
  bind_verdict(module);
  module.def(
      "nccl_version",
      [](std::int64_t code) {
        const NcclVersion version = nccl_version(code);
        return py::make_tuple(version.major, version.minor, version.patch);
      },
      py::arg("code"), "Major, minor and patch number of NCCL's version code.");
}

}  // namespace kvxfer::bindings
