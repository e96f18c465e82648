# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Transports: how bytes get from one agent's registered memory into another's.

Every module here without a leading underscore, ``protocol`` aside, is a transport: it has a
function ``create(agent_name, **options)``. Adding a transport is adding one such file. A transport
outside this package is named by its dotted module path.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from kvxfer import InvalidArgumentError, UnsupportedError
from kvxfer.transports.protocol import Transport

__all__ = ["available", "create"]

_PROTOCOL_MODULE = "protocol"


def available() -> list[str]:
    """Return the names of the transports in this package, installed libraries or not.

    Examples
    --------
    >>> "loopback" in available()
    True
    """
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(n for n in names if not n.startswith("_") and n != _PROTOCOL_MODULE)


def create(name: str, agent_name: str, **options: Any) -> Transport:
    """Make one agent of a transport, importing what it needs only then.

    Parameters
    ----------
    name : str
        One of ``available()``, or the dotted path of a module with a function ``create``.
    agent_name : str
        The agent's name: printable ASCII, unique among the agents that meet each other.
    **options
        What the transport's own ``create`` takes.

    Raises
    ------
    InvalidArgumentError
        If there is no such transport.
    UnsupportedError
        If a library that the transport needs is not installed.
    """
    module = _load(name)
    try:
        transport: Transport = module.create(agent_name, **options)
    except ImportError as error:
        raise _missing_library(name, error) from error
    return transport


def _load(name: str) -> ModuleType:
    path = name if "." in name else f"{__name__}.{name}"
    if "." not in name and name not in available():
        raise InvalidArgumentError(
            f"transport {name!r} does not exist, expected one of {', '.join(available())}, "
            "or the dotted path of a module"
        )
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise _missing_library(name, error) from error
    if not callable(getattr(module, "create", None)):
        raise InvalidArgumentError(f"module {path} is not a transport: it has no create function")
    return module


def _missing_library(name: str, error: ImportError) -> UnsupportedError:
    remedy = "" if "." in name else f"; install it with pip install 'kvxfer[{name}]'"
    return UnsupportedError(f"transport {name!r} needs a library that is missing ({error}){remedy}")
