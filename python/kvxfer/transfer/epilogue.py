# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What follows a receiver's last row, once: state, metadata and the final completion."""

from collections.abc import Sequence

import numpy as np

from kvxfer import InvalidArgumentError, Segment
from kvxfer.transfer.destination import Destination
from kvxfer.transfer.flight import Outgoing
from kvxfer.transfer.metadata import METADATA_HEADER_BYTES, fill_slot
from kvxfer.transfer.pack_ring import Slot
from kvxfer.transfer.room import RoomMetrics
from kvxfer.transfer.services import Services
from kvxfer.transfer.state import StateComponent, mark_of_sent, state_writes
from kvxfer.transfer.writes import Runs

__all__ = ["Epilogue"]


class Epilogue:
    """State and metadata of one sender's room."""

    def __init__(self, services: Services, room: int) -> None:
        self._services = services
        self._room = room
        self._state: Sequence[StateComponent] = ()
        self._metadata: bytes | None = None

    def set(self, state: Sequence[StateComponent], metadata: bytes | None) -> None:
        """Set what the engine gave with the final send."""
        self._state, self._metadata = state, metadata

    def has_extras(self, destination: Destination) -> bool:
        """Whether more than the completion follows a receiver's rows."""
        return bool(self._state or destination.state) or destination.metadata is not None

    def make(self, destination: Destination) -> tuple[Outgoing, Slot | None] | None:
        """Return the last post for a receiver, and the metadata slot that it reads.

        None: no slot is free yet.

        Raises
        ------
        InvalidArgumentError
            If state or metadata are not what the receiver asked for.
        """
        runs = [self._state_runs(destination)]
        self._check_metadata(destination)
        slot: Slot | None = None
        metadata_bytes = 0
        if destination.metadata is not None and self._metadata is not None:
            slot = self._services.buffers.outbox.lease(self)
            if slot is None:
                return None
            size_bytes = fill_slot(slot, self._room, self._metadata)
            metadata_bytes = len(self._metadata)
            runs.append(np.array([[slot.address, destination.metadata[0], size_bytes]]))
        if destination.final_completion is None:
            whole = Segment(destination.prefix, destination.end, True)
            destination.final_completion = destination.completion(
                self._room, self._services.transport.agent_name, whole, None
            )
        state_bytes = int(runs[0][:, 2].sum())
        notification = destination.final_notification(
            state_bytes, mark_of_sent(self._state, destination.state), metadata_bytes
        )
        all_runs = np.concatenate(runs)
        return Outgoing(destination, lambda: all_runs, notification, is_final=True), slot

    def count(self, destination: Destination, metrics: RoomMetrics) -> None:
        """Count the state and metadata that reached a receiver."""
        metrics.state_bytes += int(self._state_runs(destination)[:, 2].sum())
        if destination.metadata is not None:
            metrics.metadata_bytes += len(self._metadata or b"")

    def drop(self) -> None:
        """Leave the queue for a metadata slot."""
        self._services.buffers.outbox.withdraw(self)

    def _state_runs(self, destination: Destination) -> Runs:
        return state_writes(self._state, destination.state)

    def _check_metadata(self, destination: Destination) -> None:
        if destination.metadata is None:
            return
        if self._metadata is None:
            raise InvalidArgumentError("receiver asked for metadata, but the final send has none")
        room_bytes = destination.metadata[1] - METADATA_HEADER_BYTES
        limit_bytes = min(room_bytes, self._services.options.metadata_slot_bytes)
        if len(self._metadata) > limit_bytes:
            raise InvalidArgumentError(
                f"metadata has {len(self._metadata)} bytes, expected at most {limit_bytes}"
            )
