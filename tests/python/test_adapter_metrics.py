# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What managers count, and how it is exported: sums, Prometheus, NVTX ranges."""

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from kvxfer import UnsupportedError
from kvxfer.adapters import MetricsExporter, TransferTotals
from kvxfer.adapters.ranges import find_annotate
from kvxfer.transfer import RoomMetrics
from support.adapter_world import Job, Site, wait_until
from support.scripted_transport import ScriptedWire
from support.transfer_world import ManualClock


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as made:
        yield made
        made.check_idle()


def test_a44_a_request_tells_bytes_and_the_seconds_in_which_they_moved() -> None:
    """sglang#31993: writes of 2, 2 and 1 s with 5 s between them are 5 active seconds, not 1."""
    clock = ManualClock()
    with Site(wire=ScriptedWire()) as site:
        source, destination = site.add("p", clock=clock), site.add("d", clock=clock)
        job = Job([source], [destination], 100).open()
        assert site.wire is not None
        for end, seconds in ((40, 2.0), (80, 2.0), (100, 1.0)):
            job.send(end, is_final=end == 100)
            wait_until(lambda: len(site.wire.running()) == 1)  # type: ignore[union-attr]
            clock.advance(seconds)
            site.wire.complete_all()
            wait_until(lambda: not site.wire.live())  # type: ignore[union-attr]
            clock.advance(0.0 if end == 100 else 5.0)
        job.wait().check()
        metrics = job.senders[0].transfer_metrics
        assert (metrics.bytes, metrics.active_s, metrics.span_s) == (100 * 16, 5.0, 15.0)
        assert metrics.bytes_per_s == 320.0
        assert metrics.segments == job.senders[0].send_count == 3
        wait_until(lambda: source.manager.totals["sender"].requests == 1)
        totals = source.manager.totals["sender"]
        assert (totals.bytes, totals.active_s, totals.sends) == (1600, 5.0, 3)
        site.check_idle()


def test_the_wait_for_a_buffer_is_counted() -> None:
    clock = ManualClock()
    with Site(wire=ScriptedWire()) as site:
        options: dict[str, Any] = {"clock": clock, "pack_buffer_count": 1}
        source, destinations = site.add("p", **options), site.group("d", 2, clock=clock)
        wire = site.wire
        assert wire is not None
        job = Job([source], destinations, 16, landing="in_place").open()
        job.send(16, is_final=True)

        def is_waiting() -> bool:
            return source.manager.counters["pack_buffer_rooms_waiting"] == 1

        # The clock stands still until the room has found that no buffer is free.
        wait_until(lambda: len(wire.running()) == 2 and is_waiting())
        clock.advance(3.0)
        wire.complete_all()
        wait_until(lambda: len(wire.running()) == 2 and not is_waiting())
        clock.advance(0.5)
        wire.complete_all()
        job.wait().check()
        assert job.senders[0].transfer_metrics.buffer_wait_s == 3.0


def test_totals_add_up_over_requests_of_every_end(site: Site) -> None:
    source, destinations = site.add("p"), site.group("d", 2)
    jobs = [Job([source], destinations, 21, room=room, seed=room, item=1).run() for room in (1, 2)]
    aborted = Job([source], destinations, 21, room=3).open()
    aborted.senders[0].abort()
    aborted.wait()
    wait_until(lambda: source.manager.totals["sender"].requests == 3)
    wait_until(lambda: all(d.manager.totals["receiver"].requests == 3 for d in destinations))
    totals = source.manager.totals
    row_bytes = sum(plane.row_bytes for plane in source.layout.planes)
    assert totals["sender"].bytes == 2 * 21 * row_bytes
    assert totals["sender"].state_bytes == 2 * 2 * 2 * 48
    assert totals["sender"].metadata_bytes == 2 * 2 * 24
    assert totals["sender"].sends == sum(job.senders[0].send_count for job in jobs)
    assert totals["sender"].packed_writes < totals["sender"].writes
    assert totals["receiver"] == TransferTotals()
    received = [d.manager.totals["receiver"].bytes for d in destinations]
    assert received == [2 * 11 * row_bytes, 2 * 10 * row_bytes]
    counters = source.manager.counters
    assert (counters["failed_aborted"], counters["failed_polls"]) == (1, 0)
    assert counters["transport_posted"] == counters["transport_released"] > 0


def test_every_sum_is_a_field_of_a_request() -> None:
    totals = TransferTotals()
    totals.add(RoomMetrics(bytes=3, writes=2, active_s=0.5, span_s=9.0))
    totals.add(RoomMetrics(bytes=4, active_s=0.25))
    assert totals == TransferTotals(requests=2, bytes=7, writes=2, active_s=0.75)


def test_prometheus_sees_every_manager_by_name(site: Site) -> None:
    library = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    registry = library.CollectorRegistry()
    exporter = MetricsExporter(registry)
    source, destinations = site.add("p"), site.group("d", 2)
    for worker in site.workers:
        exporter.add(worker.manager)
    Job([source], destinations, 21).run().check()
    wait_until(lambda: source.manager.totals["sender"].requests == 1)

    def value(name: str, **labels: str) -> float | None:
        found: float | None = registry.get_sample_value(name, {"agent": source.name, **labels})
        return found

    row_bytes = sum(plane.row_bytes for plane in source.layout.planes)
    assert value("kvxfer_transfer_bytes_total", side="sender") == 21 * row_bytes
    assert value("kvxfer_transfer_sends_total", side="sender") == 3
    assert value("kvxfer_transfer_requests_total", side="sender") == 1
    assert value("kvxfer_manager_sender_rooms") == 0
    posted = source.manager.counters["transport_posted"]
    assert value("kvxfer_manager_events_total", event="transport_posted") == posted
    text = library.generate_latest(registry).decode()
    names = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert all(name.startswith("kvxfer_") for name in names)
    assert text.count("# TYPE kvxfer_transfer_active_seconds_total counter") == 1
    exporter.remove(source.manager)
    assert value("kvxfer_transfer_bytes_total", side="sender") is None
    exporter.remove(source.manager)
    exporter.close()
    assert "kvxfer" not in library.generate_latest(registry).decode()


def test_without_prometheus_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UnsupportedError, match="pip install prometheus_client"):
        MetricsExporter()


def test_ranges_are_made_where_nvtx_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[tuple[str, str, str]] = []

    @contextlib.contextmanager
    def annotate(message: str, domain: str) -> Iterator[None]:
        entered.append((message, domain, threading.current_thread().name))
        yield

    fake = types.ModuleType("nvtx")
    fake.__spec__ = types.SimpleNamespace(name="nvtx")  # type: ignore[assignment]
    fake.annotate = annotate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    with Site() as site:
        source, destination = site.add("p"), site.add("d", sharding=None)
        Job([source], [destination], 21, landing="landing").run().check()
        threads = {worker.manager.worker_name for worker in site.workers}
    assert {message for message, _, _ in entered} == {"poll", "job", "pack", "unpack"}
    assert {domain for _, domain, _ in entered} == {"kvxfer"}
    assert {thread for _, _, thread in entered} <= threads | {"MainThread"}
    packs = [thread for message, _, thread in entered if message == "pack"]
    assert packs == [f"kvxfer {source.name}"] * 3


def test_ranges_are_nothing_without_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with find_annotate()("pack") as entered:
        assert entered is None
