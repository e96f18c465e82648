// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include <pybind11/native_enum.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <utility>

#include "bindings.hpp"
#include "kvxfer/error.hpp"
#include "kvxfer/scratch_layout.hpp"

namespace py = pybind11;

namespace kvxfer::bindings {

namespace {

const char* name_of(BlockOrder order) {
  switch (order) {
    case BlockOrder::kDense:
      return "DENSE";
    case BlockOrder::kJoined:
      return "JOINED";
  }
  return "";
}

void bind_spec(py::module_& module) {
  py::native_enum<BlockOrder>(module, "BlockOrder", "enum.Enum",
                              "How the blocks of a layer's tensors lie in the prefix region.")
      .value("DENSE", BlockOrder::kDense)
      .value("JOINED", BlockOrder::kJoined)
      .finalize();
  py::class_<ScratchTensor>(module, "ScratchTensor",
                            "One tensor of a layer's gathered prefix and the bytes of its page.")
      .def(py::init([](std::string name, std::int64_t page_bytes) {
             return ScratchTensor{std::move(name), page_bytes};
           }),
           py::arg("name"), py::arg("page_bytes"))
      .def_readonly("name", &ScratchTensor::name)
      .def_readonly("page_bytes", &ScratchTensor::page_bytes)
      .def(py::self == py::self)
      .def("__repr__", [](const ScratchTensor& t) {
        return detail::message("ScratchTensor('", t.name, "', ", t.page_bytes, ")");
      });
  py::class_<ScratchSpec>(module, "ScratchSpec", R"(What a window holds; equal on all ranks.

Parameters
----------
tensors : list[ScratchTensor]
    Of one layer, in the order that all ranks use.
shape : GatherShape
    Gives the ranks and the regions of a slot.
order : BlockOrder
    DENSE: a gather for each tensor. JOINED: one gather for all of them.
slot_count : int
    Slots of the window.
)")
      .def(py::init([](std::vector<ScratchTensor> tensors, const GatherShape& shape,
                       BlockOrder order, std::int64_t slot_count) {
             return ScratchSpec{
                 std::move(tensors),       order,     shape.ranks, shape.prefix_region_pages,
                 shape.chunk_region_pages, slot_count};
           }),
           py::arg("tensors"), py::arg("shape"), py::kw_only(),
           py::arg_v("order", BlockOrder::kDense, "BlockOrder.DENSE"), py::arg("slot_count") = 2)
      .def_readonly("tensors", &ScratchSpec::tensors)
      .def_readonly("order", &ScratchSpec::order)
      .def_readonly("ranks", &ScratchSpec::ranks)
      .def_readonly("prefix_region_pages", &ScratchSpec::prefix_region_pages)
      .def_readonly("chunk_region_pages", &ScratchSpec::chunk_region_pages)
      .def_readonly("slot_count", &ScratchSpec::slot_count)
      .def(py::self == py::self)
      .def("__repr__", [](const ScratchSpec& s) {
        return detail::message(
            "ScratchSpec(<", s.tensors.size(), " tensors>, order=", name_of(s.order),
            ", ranks=", s.ranks, ", prefix_region_pages=", s.prefix_region_pages,
            ", chunk_region_pages=", s.chunk_region_pages, ", slot_count=", s.slot_count, ")");
      });
  module.def(
      "largest_spec", [](const std::vector<ScratchSpec>& specs) { return largest_spec(specs); },
      py::arg("specs"),
      "The one specification that serves the ranks these come from, in rank order.");
}

void bind_records(py::module_& module) {
  py::class_<ScratchView>(module, "ScratchView", "Pages of one tensor in one slot.")
      .def_readonly("offset_bytes", &ScratchView::offset_bytes, "Of page 0, in the window.")
      .def_readonly("page_bytes", &ScratchView::page_bytes)
      .def_readonly("page_count", &ScratchView::page_count)
      .def(py::self == py::self)
      .def("__repr__", [](const ScratchView& v) {
        return detail::message("ScratchView(offset_bytes=", v.offset_bytes,
                               ", page_bytes=", v.page_bytes, ", page_count=", v.page_count, ")");
      });
  py::class_<BlockSpan>(module, "BlockSpan", "Blocks of all ranks that one gather fills, in place.")
      .def_readonly("offset_bytes", &BlockSpan::offset_bytes, "Of rank 0's block, in the window.")
      .def_readonly("stride_bytes", &BlockSpan::stride_bytes, "From one block to the next.")
      .def_readonly("bytes", &BlockSpan::bytes, "Of one block up to its last row.")
      .def(py::self == py::self)
      .def("__repr__", [](const BlockSpan& s) {
        return detail::message("BlockSpan(offset_bytes=", s.offset_bytes,
                               ", stride_bytes=", s.stride_bytes, ", bytes=", s.bytes, ")");
      });
}

void bind_block_layout(py::module_& module) {
  py::class_<BlockLayout>(module, "BlockLayout",
                          R"(Where the blocks of one batch lie in every slot of a layout.

Parameters
----------
scratch : ScratchLayout
    Of the window.
block_pages : int
    Pages of each tensor for each rank: GatherPlan.block_pages.

Raises
------
CapacityError
    If that exceeds a rank's share of the prefix region.
)")
      .def(py::init<const ScratchLayout&, std::int64_t>(), py::arg("scratch"),
           py::arg("block_pages"))
      .def_property_readonly("block_pages", &BlockLayout::block_pages)
      .def_property_readonly("padding_bytes", &BlockLayout::padding_bytes,
                             "Bytes from a block to the next that hold no row.")
      .def("page_map", &BlockLayout::page_map, py::arg("tensor"),
           "Numbers of the pages in the tensor's view.")
      .def("spans", &BlockLayout::spans, py::arg("slot"), "The gathers that fill the slot.")
      .def("block_offset_bytes", &BlockLayout::block_offset_bytes, py::arg("slot"),
           py::arg("tensor"), py::arg("rank"),
           "Where the rank packs its pages of a tensor, in the window.");
}

}  // namespace

void bind_scratch_layout(py::module_& module) {
  bind_spec(module);
  bind_records(module);
  py::class_<ScratchLayout>(module, "ScratchLayout",
                            R"(Where every slot and tensor lies in a symmetric window.

Offsets are a pure function of the specification. Slots and dense tensors start at multiples of 4,096 bytes.
In joined order the views of a slot start at the same byte; each owns the pages its PageMap leads to.

Parameters
----------
spec : ScratchSpec
    Equal on all ranks.

Raises
------
InvalidArgumentError
    For no tensor, two of one name, or sizes out of range.

Examples
--------
>>> from kvxfer.sharded import *
>>> shape = GatherShape(
...     ranks=4, page_size=64, logical_page_count=512, prefix_region_pages=16, chunk_region_pages=3
... )
>>> tensors = [ScratchTensor("kv", 64 * 576), ScratchTensor("index_k", 64 * 132)]
>>> layout = ScratchLayout(ScratchSpec(tensors, shape, order=BlockOrder.JOINED))
>>> BlockLayout(layout, 4).spans(0)
[BlockSpan(offset_bytes=0, stride_bytes=405504, bytes=185856)]
)")
      .def(py::init<ScratchSpec>(), py::arg("spec"))
      .def_property_readonly("spec", [](const ScratchLayout& l) { return l.spec(); })
      .def_property_readonly("slot_bytes", &ScratchLayout::slot_bytes)
      .def_property_readonly("bytes", &ScratchLayout::bytes, "Size of the window.")
      .def_property_readonly("fingerprint", &ScratchLayout::fingerprint,
                             "Hash of every offset, to be compared over the ranks.")
      .def("view", &ScratchLayout::view, py::arg("slot"), py::arg("tensor"))
      .def(py::self == py::self)
      .def("__repr__", [](const ScratchLayout& l) {
        return detail::message("ScratchLayout(<", l.spec().tensors.size(), " tensors>, ",
                               name_of(l.spec().order), ", bytes=", l.bytes(), ")");
      });
  bind_block_layout(module);
}

}  // namespace kvxfer::bindings
