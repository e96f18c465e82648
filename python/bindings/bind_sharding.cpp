// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/sharding.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

void bind_token_sharding(py::module_& module) {
  py::class_<Sharding>(module, "Sharding",
                       R"(How tokens are divided over ranks, and which rank this is.

Position ``p`` belongs to rank ``(p // interleave) % ranks``. One rank holds every token; its interleave
means nothing and reads 1.

Parameters
----------
ranks : int
    Ranks of the decode-context-parallel group.
rank : int
    This rank.
interleave : int
    Tokens that stay together. [unit: tokens]

Raises
------
InvalidArgumentError
    If a value is out of range.

Notes
-----
Source: sgl-project/sglang #35762 (interleave 1), vllm-project/vllm #26696 (interleave).

Examples
--------
>>> from kvxfer import Sharding
>>> [Sharding(4, 1).owner(position) for position in range(6)]
[0, 1, 2, 3, 0, 1]
>>> Sharding(4, 1).local_count(0, 6)
2
)")
      .def(py::init<std::int64_t, std::int64_t, std::int64_t>(), py::arg("ranks") = 1,
           py::arg("rank") = 0, py::arg("interleave") = 1)
      .def_property_readonly("ranks", &Sharding::ranks)
      .def_property_readonly("rank", &Sharding::rank)
      .def_property_readonly("interleave", &Sharding::interleave, "Tokens.")
      .def_property_readonly("period_tokens", &Sharding::period_tokens,
                             "Tokens after which ownership repeats.")
      .def("owner", &Sharding::owner, py::arg("position"), "Rank that holds the position.")
      .def("local_index", &Sharding::local_index, py::arg("position"),
           "Index of the position among its owner's tokens.")
      .def("position", &Sharding::position, py::arg("local_index"),
           "Position of this rank's local_index-th token.")
      .def("local_count", &Sharding::local_count, py::arg("begin"), py::arg("end"),
           "Number of this rank's tokens in [begin, end).")
      .def(py::self == py::self)
      .def("__hash__",
           [](const Sharding& s) {
             return py::hash(py::make_tuple(s.ranks(), s.rank(), s.interleave()));
           })
      .def("__repr__", [](const Sharding& s) {
        return detail::message("Sharding(ranks=", s.ranks(), ", rank=", s.rank(),
                               ", interleave=", s.interleave(), ")");
      });
}

}  // namespace

void bind_sharding(py::module_& module) {
  bind_token_sharding(module);
  py::class_<HeadSharding>(module, "HeadSharding",
                           R"(Which KV heads one rank of a tensor-parallel group holds.

With more ranks than heads, every head is held by ``replica_count`` consecutive ranks (GQA replication).

Parameters
----------
total_heads : int
    KV heads of the model.
ranks, rank : int
    The tensor-parallel group and this rank. One of ranks and total_heads divides the other.

Raises
------
InvalidArgumentError
    If a value is out of range or neither count divides the other.

Examples
--------
>>> from kvxfer import HeadSharding
>>> [HeadSharding(4, ranks=8, rank=rank).first_head for rank in range(8)]
[0, 0, 1, 1, 2, 2, 3, 3]
)")
      .def(py::init<std::int64_t, std::int64_t, std::int64_t>(), py::arg("total_heads"),
           py::arg("ranks") = 1, py::arg("rank") = 0)
      .def_property_readonly("total_heads", &HeadSharding::total_heads)
      .def_property_readonly("ranks", &HeadSharding::ranks)
      .def_property_readonly("rank", &HeadSharding::rank)
      .def_property_readonly("first_head", &HeadSharding::first_head)
      .def_property_readonly("head_count", &HeadSharding::head_count, "Heads on this rank.")
      .def_property_readonly("replica_count", &HeadSharding::replica_count,
                             "Ranks that hold the same heads.")
      .def_property_readonly("replica", &HeadSharding::replica, "Which of them this rank is.")
      .def(py::self == py::self)
      .def("__hash__",
           [](const HeadSharding& s) {
             return py::hash(py::make_tuple(s.total_heads(), s.ranks(), s.rank()));
           })
      .def("__repr__", [](const HeadSharding& s) {
        return detail::message("HeadSharding(total_heads=", s.total_heads(), ", ranks=", s.ranks(),
                               ", rank=", s.rank(), ")");
      });
}

}  // namespace kvxfer::bindings
