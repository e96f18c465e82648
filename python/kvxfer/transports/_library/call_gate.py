# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Counts the calls that are inside a library, so that its agent is not destroyed under them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvxfer import InvalidArgumentError
from kvxfer.errors import DeadlineError


class CallGate:
    """Open until ``shut``.

    Parameters
    ----------
    agent_name : str
        Stands in messages.
    """

    def __init__(self, agent_name: str) -> None:
        self._agent_name = agent_name
        self._changed = threading.Condition()
        self._inside_count = 0
        self._is_shut = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Be inside for the length of a block.

        Raises
        ------
        InvalidArgumentError
            After ``shut``.
        """
        if not self.enter():
            raise InvalidArgumentError(f"agent {self._agent_name!r} is closed")
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> bool:
        """Go inside; returns False after ``shut``. Each True wants one ``leave``."""
        with self._changed:
            if self._is_shut:
                return False
            self._inside_count += 1
            return True

    def leave(self) -> None:
        """Go outside again."""
        with self._changed:
            self._inside_count -= 1
            if not self._inside_count:
                self._changed.notify_all()

    def shut(self, timeout_s: float) -> None:
        """Let nobody in any more and wait until everybody is outside.

        Raises
        ------
        DeadlineError
            If calls are still inside after ``timeout_s``; it may be tried again.
        """
        with self._changed:
            self._is_shut = True
            if not self._changed.wait_for(lambda: not self._inside_count, timeout_s):
                raise DeadlineError(
                    "deadline",
                    "",
                    None,
                    f"{self._inside_count} calls of agent {self._agent_name!r} have not returned "
                    f"within {timeout_s} s",
                )
