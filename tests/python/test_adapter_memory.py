# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""State and metadata of an engine, addressed by item; agents of several GPUs."""

from typing import Any

import numpy as np
import pytest

from kvxfer import InvalidArgumentError
from kvxfer.adapters import DeviceAgents, EngineMemory, MetadataArray, StateArray
from kvxfer.transfer import StateComponent
from kvxfer.transfer.pool import MemorySpan
from support.scripted_transport import ScriptedTransport, ScriptedWire


def array(**fields: Any) -> StateArray:
    given = {"kind": "conv", "address": 1000, "item_bytes": 24, "item_count": 4, **fields}
    return StateArray(**given)


def test_items_of_an_array_are_blocks_of_a_component() -> None:
    got = array(row_count=3, ranks=4, rank=2, replica=1).component([3, 0])
    assert got == StateComponent(
        kind="conv",
        addresses=(1072, 1000),
        row_bytes=8,
        row_count=3,
        ranks=4,
        rank=2,
        replica=1,
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"item_bytes": -1}, "item_bytes is -1, expected >= 0"),
        ({"item_count": 0}, "item_count is 0, expected >= 1"),
        ({"row_count": 0}, "row_count is 0, expected >= 1"),
        ({"row_count": 5}, "item_bytes is 24, expected a multiple of row_count 5"),
    ],
)
def test_an_array_that_cannot_be_is_refused(fields: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"state conv: {words}"):
        array(**fields)


def test_groups_share_their_items_and_may_have_none() -> None:
    memory = EngineMemory(
        state=[
            [array(kind="conv"), array(kind="ssm", address=2000)],
            [array(kind="swa", address=3000)],
            [array(kind="index", address=4000)],
        ]
    )
    got = memory.components([[2], None, np.array([0, 1])])
    assert [(c.kind, c.addresses) for c in got] == [
        ("conv", (1048,)),
        ("ssm", (2048,)),
        ("index", (4000, 4024)),
    ]
    assert memory.components(None) == []
    with pytest.raises(InvalidArgumentError, match="state items of 1 groups given, expected 3"):
        memory.components([[2]])
    with pytest.raises(InvalidArgumentError, match="swa: item 4, expected 0 to 3"):
        memory.components([[0], [4], None])


def test_spans_of_state_are_disjoint_and_not_empty() -> None:
    memory = EngineMemory(
        state=[[array(), array(address=1048), array(address=5000, item_bytes=0)], [array()]]
    )
    assert memory.state_spans == [MemorySpan(1000, 144)]


def test_metadata_is_read_and_written_by_item() -> None:
    ids = np.arange(8, dtype=np.int64).reshape(4, 2)
    scores = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
    memory = EngineMemory(metadata=[MetadataArray.of(ids), MetadataArray.of(scores)])
    assert (memory.metadata_bytes, memory.metadata_item_count) == (28, 4)
    content = memory.read_metadata(2)
    assert content == ids[2].tobytes() + scores[2].tobytes()
    before = ids.copy(), scores.copy()
    memory.write_metadata(1, content)
    assert np.array_equal(ids[1], before[0][2])
    assert np.array_equal(scores[1], before[1][2])
    assert np.array_equal(ids[[0, 2, 3]], before[0][[0, 2, 3]])
    for wrong in (content[:-1], content + b"x"):
        with pytest.raises(InvalidArgumentError, match=f"has {len(wrong)} bytes, expected 28"):
            memory.write_metadata(1, wrong)
    for item in (-1, 4):
        with pytest.raises(InvalidArgumentError, match=f"metadata: item {item}, expected 0 to 3"):
            memory.read_metadata(item)


def test_an_array_without_items_is_no_metadata() -> None:
    with pytest.raises(InvalidArgumentError, match="0 bytes in 0 items"):
        MetadataArray.of(np.empty((0, 4)))


def test_a43_every_gpu_has_an_agent_on_its_own_interface() -> None:
    """sglang#34346: the engine of rank 0 served every rank, over one interface."""
    wire, made = ScriptedWire(), []

    def make(gpu: int, interface: str) -> ScriptedTransport:
        made.append((gpu, interface))
        return wire.create(f"gpu{gpu}")

    agents = DeviceAgents({gpu: f"nic{gpu}" for gpu in range(4)}, make)
    first = [agents.agent(gpu) for gpu in range(4)]
    assert made == [(0, "nic0"), (1, "nic1"), (2, "nic2"), (3, "nic3")]
    assert len({id(agent) for agent in first}) == 4
    assert agents.agent(2) is first[2]
    assert agents.agent() is first[0]
    with pytest.raises(InvalidArgumentError, match=r"GPU 4 .* expected one of \[0, 1, 2, 3\]"):
        agents.agent(4)
    assert agents.in_use == {0: "nic0", 1: "nic1", 2: "nic2", 3: "nic3"}
    agents.close()
    assert all(agent.is_closed for agent in first if isinstance(agent, ScriptedTransport))
    assert agents.in_use == {}


def test_a43_a_mapping_without_gpus_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expected one entry per GPU"):
        DeviceAgents({}, lambda gpu, interface: ScriptedWire().create("x"))
