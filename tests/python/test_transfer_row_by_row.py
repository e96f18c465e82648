# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The mode that benchmarks compare with: rows one by one, by name only, and counted."""

from typing import Any

import pytest

from kvxfer import InvalidArgumentError, PageTable, Relayout, Segment, direct_writes
from kvxfer.transfer import RoomState, TransferOptions
from support.transfer_world import Transfer, World

TOKENS = 61


def direct_write_count(transfer: Transfer) -> int:
    """Writes that the planner lists for the whole request without a pack buffer."""
    count = 0
    for source, source_pages in zip(transfer.sources, transfer.source_pages, strict=True):
        for rank, pages in zip(transfer.destinations, transfer.destination_pages, strict=True):
            tables = [
                PageTable(
                    side.layout,
                    of_side.ids,
                    first_position=of_side.first_position,
                    plane_addresses=[array.ctypes.data for array in side.arrays],
                )
                for side, of_side in ((source, source_pages), (rank, pages))
            ]
            segment = Segment(transfer.prefix, transfer.end, True)
            count += len(direct_writes(Relayout(source.layout, rank.layout), [segment], *tables))
    return count


@pytest.mark.parametrize(
    ("source_ranks", "destination_ranks", "prefix"), [(1, 2, 0), (1, 4, 16), (2, 4, 0)]
)
def test_every_row_is_one_write_and_a_send_is_one_segment(
    source_ranks: int, destination_ranks: int, prefix: int
) -> None:
    world = World()
    sources = world.group("p", source_ranks, packing="row_by_row")
    destinations = world.group("d", destination_ranks)
    transfer = Transfer(world, sources, destinations, TOKENS, prefix=prefix)
    transfer.run()
    transfer.check_rows()
    results = [sender.result() for sender in transfer.senders]
    metrics = [result.metrics for result in results]
    expected = direct_write_count(transfer)
    assert expected == (TOKENS - prefix) * 2, "one a row and plane: no run joins rows here"
    assert sum(m.row_by_row_writes for m in metrics) == expected
    assert sum(m.writes for m in metrics) == sum(m.row_writes for m in metrics) == expected
    assert sum(m.packed_writes for m in metrics) == 0
    assert all(sender.capacity_tokens is None for sender in transfer.senders)
    for rank, result in enumerate(results):
        assert result.modes == {
            d.name: "row_by_row" if index % source_ranks == rank else "none"
            for index, d in enumerate(destinations)
        }
        served = list(result.modes.values()).count("row_by_row")
        assert result.metrics.segments == served, "one send is one segment a receiver"
    for receiver in transfer.receivers:
        assert set(receiver.result().modes.values()) - {"none"} == {"in_place"}
    world.check_idle()


def test_runs_of_interleaved_rows_stay_joined() -> None:
    """Four tokens side by side on both sides are one write, as in the published fallback."""
    world = World()
    source = world.add("p0", packing="row_by_row")
    transfer = Transfer(world, [source], world.group("d", 2, interleave=4), 32)
    transfer.run()
    transfer.check_rows()
    metrics = transfer.senders[0].result().metrics
    assert metrics.row_by_row_writes == direct_write_count(transfer) == 32 // 4 * 2
    assert metrics.row_writes == 64


def test_state_metadata_and_parts_travel_as_ever() -> None:
    """Three sends are three segments; what follows the rows is no row."""
    world = World()
    source, destinations = world.add("p0", packing="row_by_row"), world.group("d", 2)
    transfer = Transfer(world, [source], destinations, TOKENS, metadata_bytes=64)
    transfer.open(state=[])
    transfer.send(20, is_final=False)
    world.poll(3)
    transfer.send(40, is_final=False)
    transfer.send(TOKENS, is_final=True, metadata=b"first token 7")
    world.finish(*transfer.rooms)
    transfer.check_rows()
    metrics = transfer.senders[0].result().metrics
    assert (metrics.segments, metrics.row_by_row_writes) == (3 * 2, TOKENS * 2)
    assert metrics.writes == TOKENS * 2 + len(destinations), "one write of metadata a receiver"
    assert [room.metadata for room in transfer.receivers] == [b"first token 7"] * 2
    world.check_idle()


@pytest.mark.parametrize("options", [{}, {"packing": "auto"}, {"pack_buffer_count": 1}])
@pytest.mark.parametrize("landing", ["auto", "in_place", "landing"])
def test_no_other_setting_leads_to_rows_one_by_one(options: dict[str, Any], landing: str) -> None:
    world = World()
    source = world.add("p0", write_cost_us=0.001, **options)
    transfer = Transfer(world, [source], world.group("d", 2), TOKENS, landing=landing)
    transfer.run()
    transfer.check_rows()
    result = transfer.senders[0].result()
    assert result.metrics.row_by_row_writes == 0
    assert result.metrics.writes == result.metrics.packed_writes
    assert "row_by_row" not in result.modes.values()


def test_a_relayout_that_needs_no_packing_is_what_it_always_is() -> None:
    world = World()
    source = world.add("p0", packing="row_by_row")
    transfer = Transfer(world, [source], [world.add("d0")], TOKENS)
    transfer.run()
    transfer.check_rows()
    result = transfer.senders[0].result()
    assert result.modes == {"d0": "in_place"}
    assert result.metrics.row_by_row_writes == 0
    assert result.metrics.writes < result.metrics.row_writes


def test_a_rank_that_owns_no_token_completes() -> None:
    world = World()
    source, destinations = world.add("p0", packing="row_by_row"), world.group("d", 4)
    transfer = Transfer(world, [source], destinations, 2)
    transfer.run()
    transfer.check_rows()
    assert transfer.senders[0].result().modes == {
        "d0": "row_by_row",
        "d1": "row_by_row",
        "d2": "none",
        "d3": "none",
    }
    world.check_idle()


@pytest.mark.parametrize("destination_ranks", [1, 2])
def test_a_receiver_that_lands_is_refused_on_both_sides(destination_ranks: int) -> None:
    world = World()
    source = world.add("p0", packing="row_by_row")
    transfer = Transfer(
        world, [source], world.group("d", destination_ranks), TOKENS, landing="landing"
    )
    transfer.run()
    for room in transfer.rooms:
        assert room.state is RoomState.FAILED
        assert "landing mode is 'landing', but the source packs nothing" in str(room.error)
    transfer.check_untouched()


def test_there_is_no_pack_buffer() -> None:
    """Only planes and metadata are registered at the source."""
    world = World()
    named, usual = world.add("n0", packing="row_by_row"), world.add("u0")
    counts = [rank.manager._services.buffers.ring.slot_count for rank in (named, usual)]
    assert counts == [0, TransferOptions().pack_buffer_count]
    assert TransferOptions(packing="row_by_row").sends
    assert not TransferOptions(role="receiver").packs


def test_another_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="packing is 'rows', expected auto or row_by"):
        TransferOptions(packing="rows")  # type: ignore[arg-type]
