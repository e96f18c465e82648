# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The names under which one engine knows others."""

import socket


class SessionNames:
    """Gives every life of a peer's engine a name of its own.

    Mooncake keeps what it has learnt about a name, such as the port that takes bytes, for as long
    as the engine lives, and a worker that is started again may get the address of the one before:
    its writes would go where nobody listens. An IPv4 address can be written in many ways, and each
    of them is another name to Mooncake.
    """

    def __init__(self) -> None:
        self._generations: dict[tuple[str, int], list[bytes]] = {}

    def name_of(self, host: str, port: int, generation: bytes) -> str:
        """Return the name of the engine of one generation; the same one whenever it is asked for.

        Raises
        ------
        OSError
            If a host name has no address.

        Examples
        --------
        >>> names = SessionNames()
        >>> [names.name_of("10.0.0.9", 15001, life) for life in (b"first", b"second", b"first")]
        ['10.0.0.9:15001', '10.0.0.011:15001', '10.0.0.9:15001']
        """
        generations = self._generations.setdefault((host, port), [])
        if generation not in generations:
            generations.append(generation)
        index = generations.index(generation)
        if index == 0:
            return f"{host}:{port}"
        network, _, last = socket.gethostbyname(host).rpartition(".")
        # Digits after leading zeros are octal.
        return f"{network}.{'0' * index}{int(last):o}:{port}"
