# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Row copies on device memory from Python, against the host loops."""

import os
import time
from typing import Any

import numpy as np
import pytest

import kvxfer
import kvxfer.cuda
from kvxfer import PackBufferLayout, PageTable, Plane, PlaneKind, PoolLayout, Relayout, Sharding

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

PAGE_SIZE = 64
TOKENS = 700
PAGES = 11
RANKS = 4
PLANES = 3
ROW_BYTES = 576


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        if os.environ.get("KVXFER_REQUIRE_GPU") == "1":
            pytest.fail("KVXFER_REQUIRE_GPU=1, but torch sees no device")
        pytest.skip("no device")
    return module


def pool_layout(sharding: Sharding) -> PoolLayout:
    planes = [Plane(layer, PlaneKind.LATENT, ROW_BYTES) for layer in range(PLANES)]
    return PoolLayout(PAGE_SIZE, PAGES + 2, planes, sharding=sharding)


class Rig:
    """A pool on the device, its copy on the host, and a plan for four ranks."""

    def __init__(self, torch: Any) -> None:
        rng = np.random.default_rng(5)
        source = pool_layout(Sharding())
        relayouts = [Relayout(source, pool_layout(Sharding(RANKS, r))) for r in range(RANKS)]
        self.relayouts = relayouts
        self.layout = PackBufferLayout(relayouts, PAGES * PAGE_SIZE)
        self.segment = kvxfer.Segment(0, TOKENS, True)
        self.plan = self.layout.plan(self.segment)
        self.pages = rng.permutation(PAGES + 2)[:PAGES].astype(np.int64)
        self.host_pool = rng.integers(
            0, 256, (PLANES, (PAGES + 2) * PAGE_SIZE, ROW_BYTES), dtype=np.uint8
        )
        self.pool = torch.from_numpy(self.host_pool).cuda()
        self.addresses = [self.pool[p].data_ptr() for p in range(PLANES)]
        self.source = source
        self.table = PageTable(source, self.pages, plane_addresses=self.addresses)
        self.tables = kvxfer.cuda.PackTables(self.layout, self.addresses)
        self.buffer = torch.full((self.layout.bytes,), 165, dtype=torch.uint8, device="cuda")

    def expected(self) -> np.ndarray[Any, Any]:
        addresses = [int(plane.ctypes.data) for plane in self.host_pool]
        table = PageTable(self.source, self.pages, plane_addresses=addresses)
        buffer = np.full(self.layout.bytes, 165, dtype=np.uint8)
        kvxfer.pack_rows(self.layout, self.plan, table, buffer)
        return buffer


@pytest.fixture
def rig(torch: Any) -> Rig:
    return Rig(torch)


def test_pack_takes_a_torch_tensor_and_a_torch_stream(torch: Any, rig: Rig) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    kvxfer.cuda.pack_rows(rig.tables, rig.plan, rig.table, rig.buffer, stream=stream)
    stream.synchronize()
    assert np.array_equal(rig.buffer.cpu().numpy(), rig.expected())


def test_pack_takes_a_raw_pointer_a_handle_and_few_multiprocessors(torch: Any, rig: Rig) -> None:
    memory = (rig.buffer.data_ptr(), rig.buffer.numel())
    stream = torch.cuda.current_stream().cuda_stream
    kvxfer.cuda.pack_rows(rig.tables, rig.plan, rig.table, memory, stream=stream, max_ctas=2)
    torch.cuda.synchronize()
    assert np.array_equal(rig.buffer.cpu().numpy(), rig.expected())


def test_pack_takes_cupy(torch: Any, rig: Rig) -> None:
    cupy = pytest.importorskip("cupy")
    buffer = cupy.full(rig.layout.bytes, 165, dtype=cupy.uint8)
    cupy.cuda.get_current_stream().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    kvxfer.cuda.pack_rows(rig.tables, rig.plan, rig.table, buffer, stream=stream)
    stream.synchronize()
    assert np.array_equal(cupy.asnumpy(buffer), rig.expected())


def test_pack_waits_for_the_event_that_it_is_given(torch: Any, rig: Rig) -> None:
    forward, side = torch.cuda.Stream(), torch.cuda.Stream()
    final = rig.pool.clone()
    rig.pool.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(forward):
        torch.cuda._sleep(20_000_000)
        rig.pool.copy_(final)
        written = torch.cuda.Event()
        written.record(forward)
    kvxfer.cuda.pack_rows(rig.tables, rig.plan, rig.table, rig.buffer, stream=side, after=written)
    side.synchronize()
    assert np.array_equal(rig.buffer.cpu().numpy(), rig.expected())


def test_unpack_and_copy_equal_the_source(torch: Any, rig: Rig) -> None:
    stream = torch.cuda.current_stream()
    kvxfer.cuda.pack_rows(rig.tables, rig.plan, rig.table, rig.buffer, stream=stream)
    target = torch.zeros_like(rig.pool)
    addresses = [target[p].data_ptr() for p in range(PLANES)]
    back = [Relayout(pool_layout(Sharding(RANKS, r)), rig.source) for r in range(RANKS)]
    table = PageTable(rig.source, rig.pages[::-1].copy(), plane_addresses=addresses)
    regions = [
        (r.index, rig.segment, rig.buffer[r.offset_bytes : r.offset_bytes + r.bytes])
        for r in rig.plan.regions
    ]
    tables = kvxfer.cuda.UnpackTables(back, addresses)
    kvxfer.cuda.unpack_rows(tables, regions, table, stream=stream)
    whole = Relayout(rig.source, rig.source)
    copied = torch.zeros_like(rig.pool)
    copied_addresses = [copied[p].data_ptr() for p in range(PLANES)]
    copy_tables = kvxfer.cuda.CopyTables(whole, rig.addresses, copied_addresses)
    copied_table = PageTable(rig.source, rig.pages, plane_addresses=copied_addresses)
    kvxfer.cuda.copy_rows(copy_tables, rig.segment, rig.table, copied_table, stream=stream)
    torch.cuda.synchronize()
    from_rows = torch.from_numpy(whole.source_rows(0, TOKENS, rig.table)).cuda()
    to_rows = torch.from_numpy(whole.destination_rows(0, TOKENS, table)).cuda()
    assert torch.equal(target[:, to_rows], rig.pool[:, from_rows])
    assert torch.equal(copied[:, from_rows], rig.pool[:, from_rows])
    assert int(copied.count_nonzero()) == int(copied[:, from_rows].count_nonzero())


def test_bad_calls_raise_and_leave_the_device_usable(torch: Any, rig: Rig) -> None:
    stream = torch.cuda.current_stream()

    def pack(buffer: Any, stream: Any = stream) -> None:
        kvxfer.cuda.pack_rows(rig.tables, rig.plan, rig.table, buffer, stream=stream)

    with pytest.raises(kvxfer.CapacityError, match="pack buffer of at least"):
        pack(rig.buffer[: rig.plan.regions[-1].offset_bytes])
    with pytest.raises(kvxfer.InvalidArgumentError, match="device memory"):
        pack(np.zeros(rig.layout.bytes, np.uint8))
    with pytest.raises(kvxfer.InvalidArgumentError, match="expected a stream"):
        pack(rig.buffer, stream="stream")
    pack(rig.buffer)
    torch.cuda.synchronize()
    assert np.array_equal(rig.buffer.cpu().numpy(), rig.expected())


def test_a_word_tells_that_the_rows_are_there(torch: Any, rig: Rig) -> None:
    stream = torch.cuda.current_stream()
    words = kvxfer.cuda.CompletionWords(2)
    kvxfer.cuda.pack_rows(rig.tables, rig.plan, rig.table, rig.buffer, stream=stream)
    words.write(1, 9, stream=stream)
    deadline = time.monotonic() + 30
    while words.read(1) != 9:
        assert time.monotonic() < deadline
    assert words.read(0) == 0
    assert len(words) == 2
