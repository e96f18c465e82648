# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What a connector measured since it was last asked, as plain lists that travel anywhere."""

from kvxfer.transfer import RoomResult

__all__ = ["SERIES", "TransferRecord", "summary"]

# Name of each series -> its words in a log line. Entries of one prefix belong together by place.
SERIES = {
    "received_bytes": "bytes of a load",
    "received_seconds": "seconds from the order of a load to its end",
    "sent_bytes": "bytes of a send",
    "sent_seconds": "seconds in which a send had a write under way",
    "sent_writes": "writes of a send",
    "failures": "kinds of failures, of both sides",
}

Values = dict[str, list[float] | list[str]]


class TransferRecord:
    """Series of one rank."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[float]] = {}
        self._failures: list[str] = []

    def sent(self, results: list[RoomResult]) -> None:
        """Note a send that has ended, over all groups. One that nobody wanted is not noted."""
        if any(result.failure is not None for result in results):
            self.failed([r.failure.kind for r in results if r.failure is not None])
            return
        self._add("sent_bytes", sum(result.metrics.bytes for result in results))
        self._add("sent_seconds", max(result.metrics.active_s for result in results))
        self._add("sent_writes", sum(result.metrics.writes for result in results))

    def received(self, results: list[RoomResult], seconds: float) -> None:
        """Note a load that has ended well, over all groups."""
        self._add("received_bytes", sum(result.metrics.bytes for result in results))
        self._add("received_seconds", seconds)

    def failed(self, kinds: list[str]) -> None:
        """Note a failure by its first kind; an abort by an engine is none."""
        self._failures += [kind for kind in kinds if kind != "aborted"][:1]

    def take(self) -> Values:
        """Return the series since the last call, empty ones left out."""
        values: Values = {name: list(entries) for name, entries in self._numbers.items()}
        if self._failures:
            values["failures"] = self._failures
        self._numbers, self._failures = {}, []
        return values

    def _add(self, name: str, value: float) -> None:
        self._numbers.setdefault(name, []).append(value)


def summary(values: Values) -> dict[str, int | float]:
    """Return a few numbers for a log line.

    Examples
    --------
    >>> numbers = summary({"received_bytes": [3e6, 1e6], "received_seconds": [0.5, 1.5]})
    >>> numbers["loads"], numbers["loaded MB"], numbers["longest load (ms)"], numbers["sends"]
    (2, 4.0, 1500.0, 0)
    """
    numbers = {
        name: [float(v) for v in values.get(name, [])] for name in SERIES if name != "failures"
    }
    return {
        "loads": len(numbers["received_bytes"]),
        "loaded MB": sum(numbers["received_bytes"]) / 1e6,
        "longest load (ms)": 1e3 * max(numbers["received_seconds"], default=0.0),
        "sends": len(numbers["sent_bytes"]),
        "sent MB": sum(numbers["sent_bytes"]) / 1e6,
        "writes": int(sum(numbers["sent_writes"])),
        "failures": len(values.get("failures", [])),
    }
