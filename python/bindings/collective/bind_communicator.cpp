// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/communicator.hpp>

#include <pybind11/native_enum.h>

#include <memory>

#include "bindings.hpp"
#include "python_calls.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::collective {

namespace {

using kvxfer::cuda::Communicator;
using kvxfer::cuda::CommunicatorOptions;
using kvxfer::cuda::CtaPolicy;
using kvxfer::cuda::NcclApi;

constexpr const char* kDoc =
    R"(Ranks connected by NCCL for prefix gathers, with a policy of their own.

Collective: every rank constructs it, and a failure on one fails all of them. One thread at a time,
except abort().

Parameters
----------
api : NcclApi
    Of one version on all ranks.
rank, ranks : int
    Of this process, and of the group.
exchange : callable
    Takes this rank's text and returns those of all ranks, in rank order. It has its own bound; a
    TimeoutError that it raises ends the wait.
policy : CtaPolicy
    ZERO for copy engines.
bound_seconds : float
    Of each wait for NCCL.

Raises
------
TransferError
    On every rank, for a failure of any: a zero policy with NCCL before 2.31.2, different versions,
    NCCL's own.
DeadlineError
    When ranks do not come within the bound.
)";

std::unique_ptr<Communicator> connect(const std::shared_ptr<NcclApi>& api, std::int64_t rank,
                                      std::int64_t ranks, const py::object& exchange,
                                      CtaPolicy policy, double bound_seconds) {
  auto group = std::make_shared<PythonGroup>(rank, ranks, exchange);
  const CommunicatorOptions options{
      .policy = policy,
      .bound = std::chrono::milliseconds(static_cast<std::int64_t>(bound_seconds * 1e3))};
  const py::gil_scoped_release release;
  return std::make_unique<Communicator>(Communicator::create(api, std::move(group), options));
}

}  // namespace

void bind_communicator(py::module_& module) {
  py::native_enum<CtaPolicy>(module, "CtaPolicy", "enum.Enum", "NCCL's policy of a communicator.")
      .value("DEFAULT", CtaPolicy::kDefault)
      .value("EFFICIENCY", CtaPolicy::kEfficiency)
      .value("ZERO", CtaPolicy::kZero)
      .finalize();
  py::class_<Communicator>(module, "Communicator", py::release_gil_before_calling_cpp_dtor(), kDoc)
      .def(py::init(&connect), py::arg("api"), py::arg("rank"), py::arg("ranks"),
           py::arg("exchange"), py::kw_only(),
           py::arg_v("policy", CtaPolicy::kZero, "CtaPolicy.ZERO"), py::arg("bound_seconds") = 60.0)
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("ranks", &Communicator::ranks)
      .def_property_readonly("is_aborted", &Communicator::is_aborted)
      .def_property_readonly(
          "release_failure", &Communicator::release_failure,
          "First failure of a release that nobody could be told; empty for none.")
      .def(
          "all_gather",
          [](const Communicator& communicator, std::uintptr_t address, std::int64_t block_bytes,
             std::intptr_t stream) {
            communicator.all_gather(reinterpret_cast<std::byte*>(address), block_bytes,
                                    reinterpret_cast<void*>(stream));
          },
          py::arg("address"), py::arg("block_bytes"), py::kw_only(), py::arg("stream"),
          py::call_guard<py::gil_scoped_release>(),
          R"(Enqueue an in-place gather in ordinary device memory.

Block r, at address + r * block_bytes, reaches all ranks. The stream is the handle of one of its
own, not 0. The memory must outlive the gather.
)")
      .def("check", &Communicator::check, py::call_guard<py::gil_scoped_release>(),
           "Raise NcclError if a peer or a link failed since.")
      .def("abort", &Communicator::abort, py::call_guard<py::gil_scoped_release>(),
           "End everything in flight on this rank without waiting for peers.")
      .def("close", &Communicator::close, py::call_guard<py::gil_scoped_release>(),
           "End it, bounded; refused while a window or a view holds it.");
}

}  // namespace kvxfer::bindings::collective
