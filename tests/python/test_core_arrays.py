# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Arrays at the boundary: page ids and addresses in, memory of any owner, views out."""

import array
import gc
import mmap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kvxfer import (
    CapacityError,
    InvalidArgumentError,
    PackBufferLayout,
    PageTable,
    Plane,
    PlaneKind,
    PoolLayout,
    Relayout,
    Segment,
    Sharding,
    direct_writes,
    memory_view,
    pack_rows,
    packed_writes,
    unpack_rows,
)

PLANES = [Plane(layer, PlaneKind.LATENT, 8) for layer in range(2)]
LAYOUT = PoolLayout(4, 2**22, PLANES)

# --- page ids and addresses ----------------------------------------------------------------------

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">i8"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_page_ids_of_any_integer_type(dtype: str) -> None:
    table = PageTable(LAYOUT, np.array([5, 0, 100], dtype))
    assert table.pages.dtype == np.int64
    assert table.pages.tolist() == [5, 0, 100]


@pytest.mark.parametrize(
    "pages",
    [
        [7, 3],
        (7, 3),
        array.array("q", [7, 3]),
        np.array([7, 9, 3, 9], np.int32)[::2],
        np.array([3, 7])[::-1],
        [np.int32(7), 3],
        range(7, 2, -4),
    ],
)
def test_page_ids_of_any_sequence(pages: Any) -> None:
    assert PageTable(LAYOUT, pages).pages.tolist() == [7, 3]


def test_no_pages_at_all() -> None:
    for pages in ([], np.zeros(0, np.int32), np.zeros(0)):
        table = PageTable(LAYOUT, pages, first_position=8)
        assert (table.pages.tolist(), table.end_position) == ([], 8)


@pytest.mark.parametrize(
    ("pages", "got"),
    [
        (np.array([1.0, 2.0]), "float64"),
        (np.array([1, 2], np.float16), "float16"),
        ([1, 2.5], "float64"),
        ([True, False], "bool"),
        (np.array([True]), "bool"),
        (["1", "2"], "<U1"),
        (np.array([1, 2], object), "object"),
        ([1, None], "object"),
        ([2**64, 1], "object"),
        (np.array([1j]), "complex128"),
        (np.array([1], "M8[s]"), "datetime64"),
    ],
)
def test_page_ids_that_are_no_integers_are_refused(pages: Any, got: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"pages of an integer type, got {got}"):
        PageTable(LAYOUT, pages)
    with pytest.raises(InvalidArgumentError, match=f"plane_addresses of an integer.* got {got}"):
        PageTable(LAYOUT, [1], plane_addresses=pages)


@pytest.mark.parametrize(("pages", "got"), [([[1], [2]], 2), (5, 0), (np.int64(5), 0)])
def test_page_ids_are_of_one_dimension(pages: Any, got: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"pages of one dimension, got {got}"):
        PageTable(LAYOUT, pages)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([0, -1], r"\[0, 4194304\), got pages\[1\] = -1"),
        ([2**22], r"\[0, 4194304\), got pages\[0\] = 4194304"),
        ([3, 5, 3], "page 3 twice"),
        (np.array([2**64 - 1], np.uint64), r"\[0, 4194304\)"),
        (np.array([2**31], np.uint32), "got .* = 2147483648"),
    ],
)
def test_page_ids_outside_the_pool_are_refused(pages: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        PageTable(LAYOUT, pages)


def test_a_table_keeps_its_own_copy_of_the_pages() -> None:
    pages = np.array([5, 2])
    addresses = np.array([4096, 8192])
    table = PageTable(LAYOUT, pages, plane_addresses=addresses)
    pages[:] = 9
    addresses[:] = 0
    assert table.pages.tolist() == [5, 2]
    assert table.plane_addresses.tolist() == [4096, 8192]


@pytest.mark.parametrize("address", [2**47, 2**62, 2**63 - 2**31])
def test_addresses_beyond_32_bits_stay_exact(address: int) -> None:
    layout = PoolLayout(4, 1000, PLANES[:1])
    relayout = Relayout(layout, layout)
    source = PageTable(layout, [999], plane_addresses=[address])
    destination = PageTable(layout, [5], plane_addresses=np.array([address], np.uint64))
    writes = direct_writes(relayout, [Segment(0, 4, True)], source, destination)
    assert writes.runs.tolist() == [[address + 999 * 32, address + 5 * 32, 32]]
    writes = packed_writes(relayout, [Segment(0, 4, True)], 2**62, destination)
    assert writes.runs.tolist() == [[2**62, address + 5 * 32, 32]]


def test_addresses_that_wrap_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"plane_addresses\[0\]"):
        PageTable(LAYOUT, [1], plane_addresses=[2**63 - 8, 4096])
    with pytest.raises(InvalidArgumentError, match="each of 2 planes, got 1"):
        PageTable(LAYOUT, [1], plane_addresses=[4096])


@pytest.mark.parametrize("size", [4.0, np.float64(4), "4", None])
def test_counts_are_whole_numbers(size: Any) -> None:
    with pytest.raises(TypeError):
        PoolLayout(size, 10, PLANES)
    with pytest.raises(TypeError):
        Sharding(size, 0)
    assert PoolLayout(np.int32(4), np.uint8(10), PLANES).page_size == 4


# --- views that outlive what they show -----------------------------------------------------------


def test_views_keep_their_owner_alive() -> None:
    layout = PoolLayout(4, 10, PLANES)
    table = PageTable(layout, [5, 2], plane_addresses=[1 << 40, 1 << 41])
    pages, addresses = table.pages, table.plane_addresses
    writes = direct_writes(Relayout(layout, layout), [Segment(0, 8, True)], table, table)
    runs, offsets = writes.runs, writes.segment_offsets
    expected = (pages.tolist(), addresses.tolist(), runs.tolist(), offsets.tolist())
    del table, writes, layout
    gc.collect()
    [PageTable(LAYOUT, range(i, i + 50)) for i in range(200)]  # takes memory that was given back
    assert (pages.tolist(), addresses.tolist(), runs.tolist(), offsets.tolist()) == expected


def test_runs_are_a_view_of_the_list() -> None:
    layout = PoolLayout(4, 10, PLANES)
    table = PageTable(layout, [5, 2], plane_addresses=[1 << 40, 1 << 41])
    writes = direct_writes(Relayout(layout, layout), [Segment(0, 8, True)], table, table)
    assert (writes.runs.dtype, writes.runs.shape) == (np.int64, (len(writes), 3))
    assert writes.runs.flags.c_contiguous
    assert writes.runs.ctypes.data == writes.runs.ctypes.data
    assert writes.runs.base is writes
    empty = direct_writes(Relayout(layout, layout), [Segment(0, 0, True)], table, table)
    assert (empty.runs.shape, empty.segment_offsets.tolist(), len(empty)) == ((0, 3), [0, 0], 0)


def test_views_cannot_change_a_checked_value() -> None:
    layout = PoolLayout(4, 10, PLANES)
    table = PageTable(layout, [5, 2], plane_addresses=[1 << 40, 1 << 41])
    writes = direct_writes(Relayout(layout, layout), [Segment(0, 8, True)], table, table)
    for view in (table.pages, table.plane_addresses, writes.runs, writes.segment_offsets):
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0


def test_a_table_and_a_relayout_keep_their_layouts_alive() -> None:
    table = PageTable(PoolLayout(4, 10, PLANES, sharding=Sharding(2, 1)), [5])
    relayout = Relayout(PoolLayout(4, 10, PLANES), PoolLayout(4, 12, PLANES))
    gc.collect()
    assert table.layout.sharding == Sharding(2, 1)
    assert (relayout.source.page_count, relayout.destination.page_count) == (10, 12)
    source = relayout.source
    del relayout
    gc.collect()
    assert source.planes[1].layer == 1


def test_a_layout_that_was_asked_for_serves_as_any_other() -> None:
    table = PageTable(PoolLayout(4, 10, PLANES), [5])
    relayout = Relayout(PoolLayout(4, 10, PLANES), PoolLayout(4, 12, PLANES))
    gc.collect()
    again = Relayout(relayout.source, relayout.destination)
    assert again == relayout
    assert PageTable(table.layout, [6]).layout == relayout.source
    assert PageTable(relayout.destination, [11]).end_position == 4
    rows = relayout.source_rows(0, 4, PageTable(relayout.source, [2]))
    assert rows.tolist() == [8, 9, 10, 11]


# --- memory of any owner -------------------------------------------------------------------------


class CudaArray:
    """What a CUDA library's array says about itself; there is no memory behind it."""

    def __init__(
        self,
        shape: tuple[int, ...],
        typestr: str = "|u1",
        strides: tuple[int, ...] | None = None,
        *,
        is_read_only: bool = False,
        device: Any = None,
    ) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "data": (0x7F0000000000, is_read_only),
        }
        if device is not None:
            self.device = device


class WithIndex:
    def __init__(self, **names: int) -> None:
        self.__dict__.update(names)


class DlpackOnly:
    """Hides an array behind DLPack, as other libraries do."""

    def __init__(self, owner: Any, **request: Any) -> None:
        self.owner = owner
        self.request = request

    def __dlpack__(self) -> Any:
        return self.owner.__dlpack__(**self.request)


@pytest.mark.parametrize(
    ("owner", "size"),
    [
        (np.zeros((4, 576), np.uint8), 2304),
        (np.zeros((2, 3), np.float64), 48),
        (np.zeros(5, np.complex64), 40),
        (np.zeros((), np.int32), 4),
        (np.zeros((0, 7)), 0),
        (np.zeros((8, 2))[2:4], 32),
        (np.zeros((3, 1, 2), np.int16, order="F")[:, :, :1][:1], 2),
        (bytearray(9), 9),
        (array.array("i", [1, 2]), 8),
        (memoryview(bytearray(6))[2:], 4),
        (mmap.mmap(-1, 4096), 4096),
    ],
)
def test_buffers_are_seen_where_they_lie(owner: Any, size: int) -> None:
    view = memory_view(owner)
    assert (view.size_bytes, view.device, view.is_read_only) == (size, "cpu", False)
    if size:
        assert view.address == np.frombuffer(owner, np.uint8).ctypes.data


def test_an_offset_is_part_of_the_address() -> None:
    owner = np.zeros((8, 2))
    assert memory_view(owner[3:]).address == owner.ctypes.data + 48
    assert memory_view(DlpackOnly(owner[3:])).address == owner.ctypes.data + 48


def test_read_only_buffers_say_so() -> None:
    owner = np.zeros(3)
    owner.flags.writeable = False
    assert memory_view(owner).is_read_only
    assert memory_view(b"abc").is_read_only
    assert memory_view(CudaArray((3,), is_read_only=True)).is_read_only


@pytest.mark.parametrize(
    "owner",
    [np.zeros((4, 4)).T, np.zeros(8)[::2], np.zeros((4, 4))[:, :2], np.zeros(4)[::-1]],
)
def test_arrays_with_gaps_are_refused(owner: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="C-contiguous array"):
        memory_view(owner)
    with pytest.raises(InvalidArgumentError, match="C-contiguous array"):
        memory_view(DlpackOnly(owner))


@pytest.mark.parametrize("owner", [3, None, "text", [1, 2], object()])
def test_what_is_no_array_is_refused_by_its_type(owner: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got <class '{type(owner).__name__}'>"):
        memory_view(owner)


@pytest.mark.parametrize("request_version", [{}, {"max_version": (1, 0)}])
def test_both_forms_of_dlpack_capsules(request_version: dict[str, Any]) -> None:
    owner = np.arange(12, dtype=np.float32).reshape(3, 4)
    references = weakref.getweakrefcount(owner)
    view = memory_view(DlpackOnly(owner, **request_version))
    assert (view.address, view.size_bytes, view.device) == (owner.ctypes.data, 48, "cpu")
    assert not view.is_read_only
    assert weakref.getweakrefcount(owner) == references


def test_a_view_through_dlpack_keeps_nothing() -> None:
    class Owner(np.ndarray):
        pass

    owner = np.zeros(3).view(Owner)
    watch = weakref.ref(owner)
    memory_view(DlpackOnly(owner))
    memory_view(DlpackOnly(owner, max_version=(1, 0)))
    del owner
    gc.collect()
    assert watch() is None


def test_a_read_only_array_behind_versioned_dlpack() -> None:
    owner = np.zeros(3)
    owner.flags.writeable = False
    assert memory_view(DlpackOnly(owner, max_version=(1, 0))).is_read_only


def test_a_versioned_capsule_is_asked_for() -> None:
    class Frozen:
        def __dlpack__(self, **request: Any) -> Any:
            owner = np.zeros(3)
            owner.flags.writeable = False
            return owner.__dlpack__(**request)

    assert memory_view(Frozen()).is_read_only


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "got <class '.*Owner'>: 'data'"),
        ({"data": (None, False)}, "got <class '.*Owner'> with fields of other types"),
        ({"shape": (-5,)}, r"at most 2\^48 elements, got an extent of -5"),
        ({"shape": (2**40, 2**40)}, r"at most 2\^48 elements, got an extent of 1099511627776"),
        ({"shape": (3, 4), "strides": (4,)}, "a stride for each of 2 dimensions, got 1"),
    ],
)
def test_cuda_arrays_that_describe_none_are_refused(fields: dict[str, Any], words: str) -> None:
    class Owner:
        pass

    owner: Any = Owner()
    whole = {"data": (64, False), "typestr": "<f4", "shape": (3,), "version": 3}
    owner.__cuda_array_interface__ = {**whole, **fields} if fields else {}
    with pytest.raises(InvalidArgumentError, match=words):
        memory_view(owner)


def test_an_owner_that_refuses_is_heard() -> None:
    class Owner:
        def __dlpack__(self, **request: Any) -> Any:
            raise BufferError("not now")

    with pytest.raises(InvalidArgumentError, match="Owner'>: not now"):
        memory_view(Owner())
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgumentError, match="tensors that require gradient"):
        memory_view(torch.zeros(3, requires_grad=True))


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros((4, 3), dtype=torch.bfloat16)
    view = memory_view(tensor[1:])
    assert (view.address, view.size_bytes, view.device) == (tensor.data_ptr() + 6, 18, "cpu")
    assert memory_view(torch.zeros(5, dtype=torch.bool)).size_bytes == 5
    assert memory_view(torch.zeros((0, 3))).size_bytes == 0
    with pytest.raises(InvalidArgumentError, match="C-contiguous"):
        memory_view(tensor.t())


@pytest.mark.parametrize(
    ("owner", "size", "device"),
    [
        (CudaArray((4, 576)), 2304, "cuda:0"),
        (CudaArray((2, 3), "<f4", (12, 4)), 24, "cuda:0"),
        (CudaArray((2, 1, 3), "<f2", (6, 998, 2)), 12, "cuda:0"),
        (CudaArray((0, 3), "<f8"), 0, "cuda:0"),
        (CudaArray((3,), device=WithIndex(index=2)), 3, "cuda:2"),
        (CudaArray((3,), device=WithIndex(id=1)), 3, "cuda:1"),
        (CudaArray((3,), device=WithIndex(index=None)), 3, "cuda:0"),
    ],
)
def test_cuda_arrays(owner: CudaArray, size: int, device: str) -> None:
    view = memory_view(owner)
    assert (view.address, view.size_bytes, view.device) == (0x7F0000000000, size, device)


@pytest.mark.parametrize(
    ("shape", "typestr", "strides"),
    [((2, 3), "<f4", (4, 8)), ((2,), "<f4", (8,)), ((2,), "<f4", (5,)), ((2,), "<f4", (-4,))],
)
def test_cuda_arrays_with_gaps_are_refused(
    shape: tuple[int, ...], typestr: str, strides: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidArgumentError, match="C-contiguous array"):
        memory_view(CudaArray(shape, typestr, strides))


# --- memory that rows are packed into ------------------------------------------------------------


class Job:
    """Eight tokens of one plane, packed for one destination."""

    def __init__(self) -> None:
        self.memory = np.arange(10 * 32, dtype=np.uint8)
        self.layout = PoolLayout(4, 10, PLANES[:1])
        self.table = PageTable(self.layout, [7, 2], plane_addresses=[self.memory.ctypes.data])
        self.relayout = Relayout(self.layout, self.layout)
        self.buffer_layout = PackBufferLayout([self.relayout], 8)
        self.segment = Segment(0, 8, True)
        self.packed = bytes([*range(224, 256), *range(64, 96)])

    def pack(self, buffer: Any) -> None:
        plan = self.buffer_layout.plan(self.segment)
        pack_rows(self.buffer_layout, plan, self.table, buffer)


@pytest.mark.parametrize("make", [bytearray, lambda n: np.zeros(n, np.uint8), np.zeros])
def test_rows_are_packed_into_any_writable_buffer(make: Any) -> None:
    job = Job()
    buffer = make(64)
    job.pack(buffer)
    assert bytes(memoryview(buffer).cast("B"))[:64] == job.packed


def test_rows_are_packed_into_torch_memory() -> None:
    torch = pytest.importorskip("torch")
    job = Job()
    buffer = torch.zeros((8, 8), dtype=torch.uint8)
    job.pack(buffer)
    assert bytes(buffer.numpy()) == job.packed


def test_buffers_that_cannot_be_written_are_refused() -> None:
    job = Job()
    frozen = np.zeros(64, np.uint8)
    frozen.flags.writeable = False
    for buffer in (frozen, bytes(64)):
        with pytest.raises(InvalidArgumentError, match="writable buffer, got a read-only one"):
            job.pack(buffer)
    with pytest.raises(InvalidArgumentError, match="buffer in host memory, got cuda:0"):
        job.pack(CudaArray((64,)))
    with pytest.raises(InvalidArgumentError, match="C-contiguous"):
        job.pack(np.zeros((8, 16), np.uint8)[:, :8])
    with pytest.raises(CapacityError, match=r"at least 64 bytes .* got 63"):
        job.pack(bytearray(63))


def test_a_buffer_stays_where_it_is_while_rows_are_packed() -> None:
    tokens, row_bytes = 1 << 14, 1 << 10
    memory = np.zeros(tokens * row_bytes, np.uint8)
    layout = PoolLayout(tokens, 1, [Plane(0, PlaneKind.LATENT, row_bytes)])
    table = PageTable(layout, [0], plane_addresses=[memory.ctypes.data])
    buffer_layout = PackBufferLayout([Relayout(layout, layout)], tokens)
    plan = buffer_layout.plan(Segment(0, tokens, True))
    buffer = bytearray(buffer_layout.bytes)
    is_over = threading.Event()

    def pack_until_told() -> None:
        while not is_over.is_set():
            pack_rows(buffer_layout, plan, table, buffer)

    with ThreadPoolExecutor(1) as pool:
        packing = pool.submit(pack_until_told)
        try:
            until = time.monotonic() + 20
            was_refused = False
            while not was_refused and time.monotonic() < until:
                try:
                    buffer.append(0)
                except BufferError:
                    was_refused = True
        finally:
            is_over.set()
        packing.result(20)
    assert was_refused


def test_a_region_to_unpack_may_be_read_only() -> None:
    job = Job()
    target = np.zeros_like(job.memory)
    table = PageTable(job.layout, [7, 2], plane_addresses=[target.ctypes.data])
    unpack_rows(job.relayout, job.segment, job.packed, table)
    assert target.tobytes()[224:256] + target.tobytes()[64:96] == job.packed
    assert np.count_nonzero(target) == 64
    with pytest.raises(CapacityError, match=r"at least 64 bytes .* got 63"):
        unpack_rows(job.relayout, job.segment, job.packed[:63], table)
    with pytest.raises(InvalidArgumentError, match="region in host memory, got cuda:0"):
        unpack_rows(job.relayout, job.segment, CudaArray((64,)), table)
