# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
# Written by `make stubs`; a test compares it with the module.
from __future__ import annotations
import collections.abc
import enum
import kvxfer
import kvxfer._core
import typing

__all__: list[str] = [
    "Communicator",
    "CopyEngineGather",
    "CtaPolicy",
    "NcclApi",
    "NcclError",
    "StreamCalls",
    "SymmetricWindow",
    "WindowView",
    "load_nccl",
]

class NcclError(kvxfer.Error): ...

class NcclApi:
    def __repr__(self) -> str: ...
    @property
    def has_windows(self) -> bool: ...
    @property
    def path(self) -> str: ...
    @property
    def tells_peer_addresses(self) -> bool: ...
    @property
    def version(self) -> tuple[int, int, int]: ...
    @property
    def version_code(self) -> int: ...

class CtaPolicy(enum.Enum):
    DEFAULT = ...
    EFFICIENCY = ...
    ZERO = ...

class Communicator:
    def __init__(
        self,
        api: NcclApi,
        rank: typing.SupportsIndex,
        ranks: typing.SupportsIndex,
        exchange: typing.Any,
        *,
        policy: CtaPolicy = ...,
        bound_seconds: typing.SupportsFloat | typing.SupportsIndex = 60.0,
    ) -> None: ...
    def abort(self) -> None: ...
    def all_gather(
        self,
        address: typing.SupportsIndex,
        block_bytes: typing.SupportsIndex,
        *,
        stream: typing.SupportsIndex,
    ) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...
    @property
    def is_aborted(self) -> bool: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def release_failure(self) -> str: ...

class WindowView:
    def __dlpack__(
        self,
        *,
        stream: typing.Any = None,
        max_version: tuple[typing.SupportsIndex, typing.SupportsIndex] | None = None,
        dl_device: typing.Any = None,
        copy: bool | None = None,
    ) -> typing.Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def size_bytes(self) -> int: ...

class SymmetricWindow:
    def __init__(
        self,
        communicator: Communicator,
        size_bytes: typing.SupportsIndex,
        fingerprint: typing.SupportsIndex,
        *,
        synchronize: typing.Any,
        is_capturing: typing.Any,
        device: str,
    ) -> None: ...
    def all_gather(
        self,
        offset_bytes: typing.SupportsIndex,
        block_bytes: typing.SupportsIndex,
        *,
        stream: typing.SupportsIndex,
    ) -> None: ...
    def close(self) -> None: ...
    def peer_address(
        self, rank: typing.SupportsIndex, offset_bytes: typing.SupportsIndex
    ) -> int: ...
    def view(
        self, offset_bytes: typing.SupportsIndex, size_bytes: typing.SupportsIndex
    ) -> WindowView: ...
    @property
    def is_registered_everywhere(self) -> bool: ...
    @property
    def outcomes(self) -> list[kvxfer._core.WindowOutcome]: ...
    @property
    def size_bytes(self) -> int: ...

class StreamCalls:
    def __init__(self, copy: typing.Any, operate: typing.Any, is_capturing: typing.Any) -> None: ...

class CopyEngineGather:
    def __init__(
        self,
        boards: kvxfer._core.HandshakeBoards,
        rank: typing.SupportsIndex,
        board_memory: typing.Any,
        windows: collections.abc.Sequence[typing.SupportsIndex],
        window_bytes: typing.SupportsIndex,
        calls: StreamCalls,
        *,
        is_replayable: bool = False,
    ) -> None: ...
    def gather(
        self,
        slot: typing.SupportsIndex,
        tag: typing.SupportsIndex,
        spans: collections.abc.Sequence[kvxfer._core.BlockSpan],
        *,
        stream: typing.SupportsIndex,
    ) -> None: ...
    def next_tag(self, slot: typing.SupportsIndex) -> int: ...
    def release(self, slot: typing.SupportsIndex, *, stream: typing.SupportsIndex) -> None: ...
    def wait(
        self,
        slot: typing.SupportsIndex,
        is_ready: typing.Any,
        bound_seconds: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...

def load_nccl(*, explicit_path: str = "", wheel_path: str = "") -> NcclApi: ...
