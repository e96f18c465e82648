# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Who asks whom: every head and token of a rank comes from exactly one rank of the other engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer import InvalidArgumentError
from kvxfer.adapters._connector.settings import ConnectorSettings
from kvxfer.adapters._connector.shape import EngineShape
from support.bounded import bounded


@st.composite
def shapes(draw: st.DrawFn, heads: int) -> EngineShape:
    tp_size = draw(st.sampled_from([n for n in (1, 2, 4, 8) if heads % n == 0 or n % heads == 0]))
    replicas = max(1, tp_size // heads)
    dcp_size = draw(st.sampled_from([n for n in (1, 2, 4, 8) if replicas % n == 0]))
    return EngineShape(heads, tp_size, draw(st.integers(1, 3)), dcp_size, draw(st.integers(1, 4)))


def owned(shape: EngineShape, rank: int) -> set[tuple[int, int]]:
    """(head, position) pairs of a rank, for the first positions, by the rule in words."""
    per_rank = shape.total_heads / shape.tp_size
    first = int(rank * per_rank)
    heads = range(first, first + max(1, int(per_rank)))
    shard = rank % shape.dcp_size
    return {
        (head, position)
        for head in heads
        for position in range(64)
        if position // shape.interleave % shape.dcp_size == shard
    }


@given(st.data(), st.sampled_from([1, 2, 4, 8]))
@bounded(200)
def test_every_row_has_one_source(data: st.DataObject, heads: int) -> None:
    source, target = data.draw(shapes(heads)), data.draw(shapes(heads))
    askers = dict.fromkeys(range(source.tp_size), 0)
    for rank in range(target.tp_size):
        ranks = source.sources_for(target, rank)
        served: list[tuple[int, int]] = []
        for asked in ranks:
            served += owned(source, asked) & owned(target, rank)
            askers[asked] += target.pp_size
        assert sorted(served) == sorted(owned(target, rank))
    for rank, count in askers.items():
        assert source.asker_count(target, rank) == count


def test_neighbours_ask_different_copies() -> None:
    source, target = EngineShape(1, 4), EngineShape(1, 4)
    assert [source.sources_for(target, rank) for rank in range(4)] == [[0], [1], [2], [3]]
    assert [source.asker_count(EngineShape(1), rank) for rank in range(4)] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (EngineShape(3, 2), "3 KV heads over 2"),
        (EngineShape(4, 4, dcp_size=2), "dcp_size is 2, expected a divisor of 1"),
        (EngineShape(2, 8, dcp_size=3), "dcp_size is 3, expected a divisor of 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shape: EngineShape, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        shape.check()


def test_settings_come_from_one_dictionary() -> None:
    settings = ConnectorSettings.of(
        {"transport": "nixl", "decode": {"tp_size": 2}, "options": {"pack_tokens": 64}}
    )
    assert settings.transport == "nixl"
    assert settings.transfer_options().pack_tokens == 64
    assert settings.receivers(EngineShape(4)) == EngineShape(4, 2)
    assert ConnectorSettings.of({}).receivers(EngineShape(4, 4)) == EngineShape(4, 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wire": "nixl"}, r"\['wire'\] do not exist, expected .*'transport'"),
        ({"transport": 3}, "transport"),
        ({"options": {"pack_tokens": 0}}, "pack_tokens is 0"),
        ({"options": {"packs": 1}}, "packs"),
    ],
)
def test_wrong_settings_are_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ConnectorSettings.of(values)


def test_a_decode_engine_that_cannot_be_is_refused() -> None:
    settings = ConnectorSettings.of({"decode": {"tp_size": 3}})
    with pytest.raises(InvalidArgumentError, match="4 KV heads over 3"):
        settings.receivers(EngineShape(4))
    with pytest.raises(InvalidArgumentError, match="tp_sizes"):
        ConnectorSettings.of({"decode": {"tp_sizes": 2}}).receivers(EngineShape(4))


def test_the_secret_is_the_files_content(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "secret"
    path.write_bytes(b"0123456789abcdef\n")
    assert ConnectorSettings.of({"secret_file": str(path)}).secret() == b"0123456789abcdef"
    assert ConnectorSettings.of({}).secret() is None
