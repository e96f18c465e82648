# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Sums over the transfers of managers, and their export to Prometheus."""

import importlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, TypeAlias

from kvxfer import UnsupportedError
from kvxfer.transfer import RoomMetrics

__all__ = ["MetricsExporter", "Side", "TransferTotals"]

Side: TypeAlias = Literal["sender", "receiver"]


@dataclass
class TransferTotals:
    """Sums over the requests of one side that have ended; fields as in ``RoomMetrics``.

    ``requests``: how many; ``sends``: sends that the engine made, for requests that are open, too.
    """

    requests: int = 0
    sends: int = 0
    bytes: int = 0
    failed_bytes: int = 0
    state_bytes: int = 0
    metadata_bytes: int = 0
    segments: int = 0
    writes: int = 0
    packed_writes: int = 0
    row_by_row_writes: int = 0
    row_writes: int = 0
    active_s: float = 0.0
    buffer_wait_s: float = 0.0

    def add(self, metrics: RoomMetrics) -> None:
        """Add a request whose writes are over."""
        for field in fields(self):
            if hasattr(metrics, field.name):
                total = getattr(self, field.name) + getattr(metrics, field.name)
                setattr(self, field.name, total)
        self.requests += 1


class _Counted(Protocol):
    """What the exporter reads of a manager."""

    @property
    def name(self) -> str: ...

    @property
    def totals(self) -> dict[Side, TransferTotals]: ...

    @property
    def counters(self) -> dict[str, int]: ...


# Field of the totals -> subject and unit of the metric, and what it is.
_SUMS = {
    "bytes": ("transfer_bytes", "Bytes of rows that have arrived."),
    "failed_bytes": ("transfer_failed_bytes", "Bytes of rows whose write failed."),
    "state_bytes": ("transfer_state_bytes", "Bytes of state that have arrived."),
    "metadata_bytes": ("transfer_metadata_bytes", "Bytes of metadata that have arrived."),
    "active_s": (
        "transfer_active_seconds",
        "Seconds in which a request had a write or an unpack under way, summed over requests.",
    ),
    "buffer_wait_s": (
        "transfer_buffer_wait_seconds",
        "Seconds in which a segment waited for a pack buffer or a landing region.",
    ),
    "segments": ("transfer_segments", "Segments, counted once per peer."),
    "writes": ("transfer_writes", "Writes that were posted."),
    "packed_writes": ("transfer_packed_writes", "Writes out of a pack buffer."),
    "row_by_row_writes": (
        "transfer_row_by_row_writes",
        "Writes that took rows one by one; 0 unless a benchmark asked for it.",
    ),
    "row_writes": ("transfer_row_writes", "Writes that the same rows would take one by one."),
    "requests": ("transfer_requests", "Requests that have ended and whose writes are over."),
    "sends": ("transfer_sends", "Sends that the engine made."),
}

# Counters of a manager that go up and down.
_GAUGES = {
    "sender_rooms": "Senders that are open, or whose writes may still run.",
    "receiver_rooms": "Receivers that are open, or whose writes may still run.",
    "held_page_rooms": "Requests whose pages must not be reused.",
    "pack_buffers_leased": "Pack buffers in use.",
    "pack_buffer_rooms_waiting": "Requests that wait for a pack buffer.",
    "landing_regions_held": "Landing regions in use.",
    "landing_rooms_waiting": "Requests that wait for a landing region.",
    "metadata_slots_leased": "Metadata slots in use.",
    "lingering_rooms": "Ended requests whose writes may still run.",
    "early_messages": "Messages about requests that are not open yet.",
}


class MetricsExporter:
    """Exports managers to a Prometheus registry, read whenever it is scraped.

    Names are ``kvxfer_<subject>_<unit>`` with ``_total`` for sums; labels are ``agent`` and, for
    sums of transfers, ``side``. Everything else that a manager counts is in
    ``kvxfer_manager_events_total`` by label ``event``.

    Parameters
    ----------
    registry : prometheus_client.CollectorRegistry, optional
        The library's default registry when omitted.

    Raises
    ------
    UnsupportedError
        If prometheus_client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            library = importlib.import_module("prometheus_client")
            self._families = importlib.import_module("prometheus_client.core")
        except ImportError as error:
            raise UnsupportedError(
                f"metrics need a package that is missing ({error}); install it with "
                "pip install prometheus_client"
            ) from error
        self._lock = threading.Lock()
        self._managers: dict[str, _Counted] = {}
        self._registry = registry if registry is not None else library.REGISTRY
        self._registry.register(self)

    def add(self, manager: _Counted) -> None:
        """Export a manager; one of the same name takes its place."""
        with self._lock:
            self._managers[manager.name] = manager

    def remove(self, manager: _Counted) -> None:
        """Export a manager no more. Unknown ones are ignored."""
        with self._lock:
            if self._managers.get(manager.name) is manager:
                del self._managers[manager.name]

    def close(self) -> None:
        """Leave the registry."""
        self._registry.unregister(self)

    def collect(self) -> Iterator[Any]:
        """Yield the metric families, as a registry asks for them."""
        with self._lock:
            managers = list(self._managers.values())
        totals = [(m.name, side, sums) for m in managers for side, sums in m.totals.items()]
        for field, (name, text) in _SUMS.items():
            family = self._families.CounterMetricFamily(
                f"kvxfer_{name}", text, labels=["agent", "side"]
            )
            for agent, side, sums in totals:
                family.add_metric([agent, side], getattr(sums, field))
            yield family
        yield from self._collect_counters([(m.name, m.counters) for m in managers])

    def _collect_counters(self, counted: list[tuple[str, dict[str, int]]]) -> Iterator[Any]:
        for name, text in _GAUGES.items():
            gauge = self._families.GaugeMetricFamily(
                f"kvxfer_manager_{name}", text, None, ["agent"]
            )
            for agent, counters in counted:
                gauge.add_metric([agent], counters.get(name, 0))
            yield gauge
        events = self._families.CounterMetricFamily(
            "kvxfer_manager_events",
            "Other things that a manager counts.",
            labels=["agent", "event"],
        )
        for agent, counters in counted:
            for event in sorted(counters.keys() - _GAUGES.keys()):
                events.add_metric([agent, event], counters[event])
        yield events
