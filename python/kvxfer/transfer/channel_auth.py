# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Proof of a shared secret for one-way connections, without a byte of input or output.

The dialer sends a nonce; the listener answers with its own and proves that it knows the secret.
Both derive a key for this connection, under which every message carries a number that only rises.
What was recorded on one connection therefore means nothing on another, and nothing can be repeated,
reordered or altered on the same one. Messages are authenticated, not encrypted.

Without a secret, messages travel plain, and either side refuses the other's kind of message.
"""

import hashlib
import hmac
import secrets
import struct
from collections import OrderedDict
from enum import Enum

from kvxfer import InvalidArgumentError

__all__ = ["Dialer", "DialerState", "Listener"]

_NONCE_BYTES = 32
_MAC_BYTES = 32
_TAG_BYTES = 8
_NUMBER = struct.Struct("<Q")
_MIN_SECRET_BYTES = 16
_MAX_HANDSHAKES = 4

# First byte of every frame.
_PLAIN = b"P"  # message without a secret
_HELLO = b"H"  # dialer's nonce
_CHALLENGE = b"C"  # listener's nonce and proof
_SEALED = b"D"  # tag of the session, number, MAC, message
_RENEW = b"R"  # the session of that tag is not known here: begin again
_REFUSE = b"N"  # the other side has a secret and this one has none, or the other way round


def checked_secret(secret: bytes | None) -> bytes | None:
    """Return a secret that may be used.

    Raises
    ------
    InvalidArgumentError
        If it is shorter than 16 bytes.
    """
    if secret is not None and len(secret) < _MIN_SECRET_BYTES:
        raise InvalidArgumentError(
            f"secret has {len(secret)} bytes, expected at least {_MIN_SECRET_BYTES}"
        )
    return secret


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _session_key(secret: bytes, dialer_nonce: bytes, listener_nonce: bytes) -> bytes:
    return _mac(secret, b"kvxfer session", dialer_nonce, listener_nonce)


def _proof(secret: bytes, dialer_nonce: bytes, listener_nonce: bytes) -> bytes:
    return _mac(secret, b"kvxfer listener", dialer_nonce, listener_nonce)


class DialerState(Enum):
    """Whether a dialer may send messages."""

    WAITING = "waiting"
    OPEN = "open"
    REFUSED = "refused"


class Dialer:
    """The sending end of one connection."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._nonce = b""
        self._tag = b""
        self._key = b""
        self._number = 0
        self.state = DialerState.OPEN if secret is None else DialerState.WAITING

    def begin(self) -> bytes | None:
        """Return the frame that opens the connection, None where none is needed."""
        if self._secret is None:
            return None
        self.state = DialerState.WAITING
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        return _HELLO + self._nonce

    def take(self, frame: bytes) -> bytes | None:
        """Take in a frame of the listener; return one to send back, if there is any."""
        kind, body = frame[:1], frame[1:]
        if kind == _REFUSE:
            self.state = DialerState.REFUSED
        elif kind == _CHALLENGE and self.state is DialerState.WAITING:
            self._take_challenge(body)
        elif kind == _RENEW and self.state is DialerState.OPEN and body == self._tag:
            return self.begin()
        return None

    def seal(self, message: bytes) -> bytes:
        """Return the frame of a message; the state must be OPEN."""
        if self._secret is None:
            return _PLAIN + message
        self._number += 1
        number = _NUMBER.pack(self._number)
        return b"".join(
            (_SEALED, self._tag, number, _mac(self._key, self._tag, number, message), message)
        )

    def _take_challenge(self, body: bytes) -> None:
        nonce, proof = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
        if self._secret is None or len(nonce) != _NONCE_BYTES:
            return
        if not hmac.compare_digest(proof, _proof(self._secret, self._nonce, nonce)):
            return
        self._key = _session_key(self._secret, self._nonce, nonce)
        self._tag = nonce[:_TAG_BYTES]
        self._number = 0
        self.state = DialerState.OPEN


class _Session:
    """What a listener knows of one connection.

    Handshakes that no message has used yet stand beside the session in use, a few at most, so that
    a hello from someone else neither ends nor prevents it.
    """

    def __init__(self) -> None:
        self.tag = b""
        self.number = 0
        self.keys: OrderedDict[bytes, bytes] = OrderedDict()

    def offer(self, tag: bytes, key: bytes) -> None:
        """Add a handshake."""
        self.keys[tag] = key
        while len(self.keys) > _MAX_HANDSHAKES:
            oldest = next(other for other in self.keys if other != self.tag)
            del self.keys[oldest]

    def use(self, tag: bytes, number: int) -> None:
        """Note that a message of a handshake was authentic."""
        if tag != self.tag:
            self.keys.pop(self.tag, None)
            self.tag = tag
        self.number = number


class Listener:
    """The receiving end of all connections.

    Parameters
    ----------
    secret : bytes or None
    limit_count : int
        Most connections; the one that was silent longest gives way.
    """

    def __init__(self, secret: bytes | None, limit_count: int) -> None:
        self._secret = secret
        self._limit_count = limit_count
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self.refused_count = 0

    def take(self, connection: bytes, frame: bytes) -> tuple[bytes | None, bytes | None]:
        """Take in a frame of a connection.

        Returns
        -------
        reply : bytes or None
            A frame to send back.
        message : bytes or None
            A message, if the frame was one and its sender knows the secret.
        """
        kind, body = frame[:1], frame[1:]
        if self._secret is None:
            if kind == _PLAIN:
                return None, body
            self.refused_count += 1
            return (_REFUSE if kind == _HELLO else None), None
        if kind == _HELLO and len(body) == _NONCE_BYTES:
            return self._challenge(self._secret, connection, body), None
        if kind == _SEALED:
            return self._open(connection, body)
        self.refused_count += 1
        return (_REFUSE if kind == _PLAIN else None), None

    def _challenge(self, secret: bytes, connection: bytes, dialer_nonce: bytes) -> bytes:
        session = self._sessions.setdefault(connection, _Session())
        self._sessions.move_to_end(connection)
        if len(self._sessions) > self._limit_count:
            self._sessions.popitem(last=False)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        session.offer(nonce[:_TAG_BYTES], _session_key(secret, dialer_nonce, nonce))
        return _CHALLENGE + nonce + _proof(secret, dialer_nonce, nonce)

    def _open(self, connection: bytes, body: bytes) -> tuple[bytes | None, bytes | None]:
        number_at, mac_at = _TAG_BYTES, _TAG_BYTES + _NUMBER.size
        message_at = mac_at + _MAC_BYTES
        tag, number, mac = body[:number_at], body[number_at:mac_at], body[mac_at:message_at]
        message = body[message_at:]
        if len(mac) != _MAC_BYTES:
            self.refused_count += 1
            return None, None
        session = self._sessions.get(connection)
        key = session.keys.get(tag) if session is not None else None
        if session is None or key is None:
            self.refused_count += 1
            return _RENEW + tag, None
        last = session.number if tag == session.tag else 0
        value = _NUMBER.unpack(number)[0]
        if value <= last or not hmac.compare_digest(mac, _mac(key, tag, number, message)):
            self.refused_count += 1
            return None, None
        session.use(tag, value)
        self._sessions.move_to_end(connection)
        return None, message
