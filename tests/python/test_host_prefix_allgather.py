# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Processes that read a sharded prefix through their scratch, layer by layer."""

from collections.abc import Callable

import pytest

from kvxfer.errors import TransferError
from kvxfer.sharded import (
    BlockLayout,
    BlockOrder,
    FallbackReason,
    GatherPath,
    GatherShape,
    HostPrefixAllgather,
    ScratchLayout,
    ScratchSpec,
    ScratchTensor,
)
from support.sharded_world import Job, run

# Distinct pages of the prefixes, two tensors, seven layers, two batches.
COMPARED = {2: 8 * 2 * 7 * 2, 3: 7 * 2 * 7 * 2}


@pytest.mark.parametrize("order", list(BlockOrder))
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_reads_every_page_of_every_layer(ranks: int, order: BlockOrder) -> None:
    found = run(Job(ranks=ranks, order=order))
    assert found == dict.fromkeys(range(ranks), COMPARED[ranks])


def test_a_late_rank_is_waited_for() -> None:
    assert run(Job(wrong_rank=1, wrong="late")) == {0: COMPARED[2], 1: COMPARED[2]}


def test_a_stale_block_is_seen() -> None:
    found = run(Job(wrong_rank=1, wrong="stale", bound_seconds=1.0))
    assert str(found[0]).startswith("AssertionError: batch 1, layer 3, page 1")


def test_a_rank_that_dies_is_named_within_the_bound() -> None:
    found = run(Job(wrong_rank=1, wrong="dies", bound_seconds=1.0))
    assert str(found[0]).startswith("DeadlineError: expected rank 1 at gather 5 of slot 1")
    assert set(found) == {0}


def test_a_rank_that_leaves_a_gather_out_is_seen() -> None:
    found = run(Job(wrong_rank=1, wrong="leaves out", bound_seconds=1.0))
    assert str(found[0]).startswith("DeadlineError: expected rank 1 at gather 5 of slot 1")
    assert str(found[1]).startswith("DeadlineError: expected rank 0 at gather 7 of slot 0")


def small_layout(ranks: int = 1, page_bytes: int = 64) -> ScratchLayout:
    shape = GatherShape(
        ranks=ranks, page_size=1, logical_page_count=8, prefix_region_pages=4, chunk_region_pages=1
    )
    return ScratchLayout(ScratchSpec([ScratchTensor("kv", page_bytes)], shape))


def test_one_rank_gathers_in_turn() -> None:
    layout = small_layout()
    world = HostPrefixAllgather(layout, 0, lambda text: [text])
    blocks = BlockLayout(layout, 2)
    world.block(blocks, 0, 0)[:] = 7
    assert world.gather(0, world.next_tag(0), blocks) is GatherPath.NONE
    assert world.verdict.reason is FallbackReason.ONE_RANK
    assert world.view(0, 0)[:2].min() == 7
    assert world.view(0, 0).shape == (6, 64)
    with pytest.raises(ValueError, match="to be released"):
        world.gather(0, 2, blocks)
    world.release(0)
    with pytest.raises(ValueError, match="expected gather 2 of slot 0, got 3"):
        world.gather(0, 3, blocks)
    world.close()
    world.close()
    with pytest.raises(ValueError, match="got a closed one"):
        world.gather(0, 2, blocks)


def as_rank_1(offer_of_rank_0: str) -> Callable[[str], list[str]]:
    """Answer for a rank 0 that offers this and finds nothing wrong."""
    answers = iter([offer_of_rank_0, ""])
    return lambda text: [next(answers), text]


def test_a_rank_with_another_layout_is_refused() -> None:
    offer = f"{small_layout(2, 128).fingerprint} /proc/self/fd/0"
    with pytest.raises(TransferError, match="rank 1: its layout differs") as caught:
        HostPrefixAllgather(small_layout(2), 1, as_rank_1(offer))
    assert (caught.value.kind, caught.value.peer) == ("group", "rank 1")


def test_a_rank_that_cannot_map_is_told_to_all() -> None:
    layout = small_layout(2)
    with pytest.raises(TransferError, match="rank 1: cannot map /no/file"):
        HostPrefixAllgather(layout, 1, as_rank_1(f"{layout.fingerprint} /no/file"))
