# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a connector, from the free dictionary of an engine's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from kvxfer import InvalidArgumentError
from kvxfer.adapters._connector.shape import EngineShape
from kvxfer.transfer import TransferOptions

__all__ = ["ConnectorSettings"]


@dataclass(frozen=True)
class ConnectorSettings:
    """What a user may say about a connector.

    Attributes
    ----------
    transport : str
        "loopback", "nixl", "mooncake", or the dotted path of a module.
    transport_options : mapping
        What the transport's ``create`` takes.
    listen : str
        Where control channels listen: "tcp://host:0" takes any free port.
    advertise : str
        Address that peers are told, where it is another; empty: the one that is listened on.
    secret_file : str
        File with the secret that all engines share, at least 16 bytes; empty: none.
    decode : mapping
        Where decode engines have other sizes than this prefill engine: any of tp_size, pp_size,
        dcp_size, interleave.
    options : mapping
        Fields of ``TransferOptions``.
    """

    transport: str = "loopback"
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    listen: str = "tcp://127.0.0.1:0"
    advertise: str = ""
    secret_file: str = ""
    decode: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ConnectorSettings":
        """Return checked settings.

        Raises
        ------
        InvalidArgumentError
            For a name that does not exist or a value of a wrong type; names those that do.
        """
        known = [entry.name for entry in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InvalidArgumentError(f"settings {unknown} do not exist, expected {known}")
        try:
            settings = msgspec.convert(dict(values), cls)
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(f"connector settings: {error}") from error
        settings.transfer_options()
        return settings

    def transfer_options(self) -> TransferOptions:
        """Return the options of every manager."""
        try:
            return TransferOptions(**self.options)
        except TypeError as error:
            raise InvalidArgumentError(f"connector settings: options: {error}") from error

    def receivers(self, shape: EngineShape) -> EngineShape:
        """Return the sizes of the decode engines that ask an engine of a given shape."""
        merged = {**msgspec.structs.asdict(shape), **self.decode}
        try:
            receivers = msgspec.convert(merged, EngineShape)
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(f"connector settings: decode: {error}") from error
        receivers.check()
        return receivers

    def secret(self) -> bytes | None:
        """Return the shared secret."""
        return Path(self.secret_file).read_bytes().strip() if self.secret_file else None
