# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Answers of a server as they are kept, and the verdict on each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Answer", "Expectation", "Outcome", "Record", "count_outcomes", "judge"]

# "error": no complete answer. "not_sent": another request of the repeat had failed. "tokens": other
# numbers of prompt or generated tokens. "cached": another number of cached tokens.
Outcome = Literal["ok", "error", "not_sent", "tokens", "cached"]


@dataclass(frozen=True)
class Answer:
    """What came back for one request.

    Attributes
    ----------
    ttft_s : float or None
        From the beginning of the request to its first event; None where none came.
    elapsed_s : float
        From the beginning of the request to the end of its answer.
    event_count : int
        Events that came, the closing mark not counted.
    response : dict or None
        The last event.
    error : str or None
        Why the answer is not complete.
    """

    ttft_s: float | None
    elapsed_s: float
    event_count: int
    response: dict[str, Any] | None
    error: str | None


@dataclass(frozen=True)
class Expectation:
    """What a right answer says of its request, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Record:
    """One request of a measured repeat: its answer and the verdict on it.

    ``request``: its number; the other fields as in ``Answer``. ``problem``: words for an outcome
    other than "ok".
    """

    request: int
    outcome: Outcome
    problem: str | None
    ttft_s: float | None
    elapsed_s: float | None
    event_count: int
    cached_tokens: int | None
    response: dict[str, Any] | None


def judge(request: int, answer: Answer | None, expected: Expectation) -> Record:
    """Hold an answer against what a measured request must say.

    Parameters
    ----------
    request : int
        Number of the request.
    answer : Answer or None
        None for a request that was not sent.
    expected : Expectation
        What the server must report of it.

    Returns
    -------
    Record
        With the first of the problems that it has.
    """
    if answer is None:
        problem = "another request had failed before it was sent"
        return Record(request, "not_sent", problem, None, None, 0, None, None)
    outcome, problem_found = _verdict(answer, expected)
    cached_tokens = _reported(answer, "cached_tokens")
    return Record(
        request,
        outcome,
        problem_found,
        answer.ttft_s,
        answer.elapsed_s,
        answer.event_count,
        cached_tokens if isinstance(cached_tokens, int) else None,
        answer.response,
    )


def count_outcomes(records: Sequence[Record]) -> dict[Outcome, int]:
    """Return how many records have each outcome that occurs."""
    return dict(Counter(record.outcome for record in records))


def _verdict(answer: Answer, expected: Expectation) -> tuple[Outcome, str | None]:
    if answer.error is not None:
        return "error", answer.error
    counts: list[tuple[Outcome, str, int]] = [
        ("tokens", "prompt_tokens", expected.prompt_tokens),
        ("tokens", "completion_tokens", expected.completion_tokens),
        ("cached", "cached_tokens", expected.cached_tokens),
    ]
    for outcome, name, wanted in counts:
        got = _reported(answer, name)
        # True is equal to 1 and no count.
        if got != wanted or isinstance(got, bool):
            return outcome, f"meta_info.{name}: got {got}, expected {wanted}"
    return "ok", None


def _reported(answer: Answer, name: str) -> object:
    meta_info = (answer.response or {}).get("meta_info")
    return meta_info.get(name) if isinstance(meta_info, dict) else None
