# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Strict JSON: integers are exact, no key stands twice, and what is wrong is named by its path."""

import json
import re
from collections.abc import Iterable

_MAX_DIGITS = 40  # longer integers are kept as text: no field takes one
_MAX_SHOWN = 60
_MAX_SHOWN_DEPTH = 3
_MAX_SHOWN_ITEMS = 4


class InputError(Exception):
    """One field is wrong. The message is one line: field, what it holds, what was expected."""

    def __init__(self, field: str, got: str, expected: str) -> None:
        super().__init__(f"{field}: got {got}, expected {expected}")


class Literal(str):
    """A number that no field takes (1.5, 1e3, NaN, a very long integer), as it was written."""


class JsonObject(dict[str, object]):
    """A JSON object that remembers the first key which stood twice."""

    repeated_key: str | None = None


def parse_json(text: str) -> object:
    """Parse one JSON document.

    Returns
    -------
    object
        Objects are JsonObject; numbers are int, or Literal where they are not plain integers.

    Raises
    ------
    InputError
        If the text is not JSON.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object_of,
            parse_int=_int_of,
            parse_float=Literal,
            parse_constant=Literal,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        got = shown(text[error.pos : error.pos + 20]) if error.pos < len(text) else "the end"
        raise InputError("input", f"{got} at {where}", f"JSON ({error.msg})") from None
    except RecursionError:
        raise InputError("input", "values nested too deeply", "one JSON object") from None


def shown(value: object, depth: int = 0) -> str:
    """Return a value as JSON on one line of ASCII, shortened where it is long."""
    if isinstance(value, Literal):
        text = str(value)
    elif isinstance(value, list):
        text = f"[{_shown_items((shown(v, depth + 1) for v in value), len(value), depth)}]"
    elif isinstance(value, dict):
        items = (f"{shown(k)}: {shown(v, depth + 1)}" for k, v in value.items())
        text = f"{{{_shown_items(items, len(value), depth)}}}"
    else:
        text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def wrong(field: str, value: object, expected: str) -> InputError:
    """Return the error for a value that is not what the field takes."""
    return InputError(field, shown(value), expected)


def join(path: str, key: str) -> str:
    """Return the path of an object's field."""
    name = key if re.fullmatch(r"[A-Za-z0-9_]{1,40}", key) else shown(key)
    return f"{path}.{name}" if path else name


def expect_int(value: object, path: str, low: int, high: int) -> int:
    """Return an integer of [low, high]; true and 1.0 are none."""
    if type(value) is not int or not low <= value <= high:
        raise wrong(path, value, f"an integer in [{low}, {high}]")
    return value


def expect_list(value: object, path: str, of: str) -> list[object]:
    """Return a list; ``of`` says what it should hold."""
    if not isinstance(value, list):
        raise wrong(path, value, f"a list of {of}")
    return value


def expect_object(
    value: object, path: str, required: Iterable[str], optional: Iterable[str] = ()
) -> JsonObject:
    """Return an object that has all required fields, perhaps the optional ones, and no other."""
    fields, more = list(required), list(optional)
    if not isinstance(value, JsonObject):
        raise wrong(path or "input", value, f"an object with {_listed(fields)}")
    if value.repeated_key is not None:
        raise InputError(join(path, value.repeated_key), "the field twice", "it once")
    for key in fields:
        if key not in value:
            raise InputError(join(path, key), "nothing", "this field")
    for key in value:
        if key not in fields and key not in more:
            raise wrong(join(path, key), value[key], f"only {_listed(fields + more)}")
    return value


def _object_of(pairs: list[tuple[str, object]]) -> JsonObject:
    result = JsonObject()
    for key, value in pairs:
        if key in result and result.repeated_key is None:
            result.repeated_key = key
        result[key] = value
    return result


def _int_of(text: str) -> int | Literal:
    return int(text) if len(text) <= _MAX_DIGITS else Literal(text)


def _shown_items(items: Iterable[str], count: int, depth: int) -> str:
    if count == 0:
        return ""
    if depth >= _MAX_SHOWN_DEPTH:
        return "..."
    first = [item for item, _ in zip(items, range(_MAX_SHOWN_ITEMS), strict=False)]
    return ", ".join(first) + (", ..." if count > _MAX_SHOWN_ITEMS else "")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
