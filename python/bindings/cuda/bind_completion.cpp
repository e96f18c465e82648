// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <kvxfer/cuda/completion.hpp>

#include "bindings.hpp"
#include "handles.hpp"

namespace py = pybind11;

namespace kvxfer::bindings::cuda {

void bind_completion(py::module_& module) {
  using kvxfer::cuda::CompletionWords;
  py::class_<CompletionWords>(module, "CompletionWords", py::release_gil_before_calling_cpp_dtor(),
                              R"(Words in page-locked memory that streams write and a poller reads.

All are 0 at first. The streams that were asked to write must have run before the words go.

Parameters
----------
count : int
    Number of 32-bit words.

Raises
------
UnsupportedError
    If the driver has no stream memory operations; events work everywhere.
)")
      .def(py::init<std::int64_t>(), py::arg("count"))
      .def(
          "write",
          [](const CompletionWords& words, std::int64_t index, std::uint32_t value,
             const py::object& stream) { words.write(index, value, stream_of(stream)); },
          py::arg("index"), py::arg("value"), py::kw_only(), py::arg("stream"),
          "Enqueue: the word becomes `value` after all work enqueued on `stream` before.")
      .def(
          "wait",
          [](const CompletionWords& words, std::int64_t index, std::uint32_t value,
             const py::object& stream) { words.wait(index, value, stream_of(stream)); },
          py::arg("index"), py::arg("value"), py::kw_only(), py::arg("stream"),
          "Enqueue: what follows on `stream` starts once the word has reached `value`.")
      .def("read", &CompletionWords::read, py::arg("index"), "The word's value.")
      .def("set", &CompletionWords::set, py::arg("index"), py::arg("value"),
           "Set the word from the host.")
      .def("__len__", [](const CompletionWords& words) { return words.count(); });
}

}  // namespace kvxfer::bindings::cuda
