# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Who this manager talks to: the handshake once per peer, heartbeats, and what a restart means."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np

from kvxfer import Error, InvalidArgumentError, PoolLayout
from kvxfer.transfer.mailer import Mailer
from kvxfer.transfer.messages import Hello, Identity, Ping, Pong, Refused, clipped
from kvxfer.transfer.options import TransferOptions
from kvxfer.transfer.terms import Pair
from kvxfer.transports.protocol import RegionTable, Transport

_MAX_LINKS = 4096
_MAX_STRANGERS = 1024
_MAX_CLAIMS = 64

__all__ = ["Link", "LinkState", "Peer", "PeerEvents", "PeerTable"]


@dataclass(eq=False)
class Peer:
    """One life of another manager, as it described itself."""

    name: str
    address: str
    generation: int
    layout: PoolLayout
    plane_addresses: tuple[int, ...]
    memory: RegionTable
    write_cost_us: float
    _pairs: dict[str, Pair] = field(default_factory=dict)

    def pair_to(self, destination: PoolLayout) -> Pair:
        """Return the relayout from this peer to the own pool; see ``Pair``."""
        if "to" not in self._pairs:
            self._pairs["to"] = Pair(self.layout, destination)
        return self._pairs["to"]

    def pair_from(self, source: PoolLayout) -> Pair:
        """Return the relayout from the own pool to this peer; see ``Pair``."""
        if "from" not in self._pairs:
            self._pairs["from"] = Pair(source, self.layout)
        return self._pairs["from"]

    def describes(self, address: int, size_bytes: int) -> bool:
        """Return whether a range lies inside one region that the peer registered."""
        sizes = np.array([size_bytes], dtype=np.int64)
        return self.memory.first_outside(np.array([address], dtype=np.int64), sizes) is None


class LinkState(Enum):
    """What is known of an address."""

    ASKED = "asked"
    KNOWN = "known"
    DOWN = "down"
    REFUSED = "refused"


@dataclass(eq=False)
class Link:
    """One address. ``is_wanted``: the engine named it, so it is asked again when it is down.

    ``reason`` says why it is down or refused; of one that is asked, why it was down before.
    """

    address: str
    state: LinkState
    is_wanted: bool
    next_beat: float
    peer: Peer | None = None
    reason: str = ""
    misses: int = 0
    has_spoken: bool = True


class PeerEvents(Protocol):
    """What a manager does when a peer comes or goes."""

    def peer_known(self, peer: Peer) -> None:
        """Go on with what waited for the peer."""
        ...

    def peer_lost(self, peer: Peer, reason: str, is_dead: bool) -> None:
        """End what depends on the peer. ``is_dead``: its writes are certain to be over."""
        ...

    def address_refused(self, address: str, reason: str) -> None:
        """End what waits for a peer that cannot be worked with."""
        ...


class PeerTable:
    """Links by address, peers by name.

    Names are unique: of two managers with one name the first is kept and the other refused. A hello
    from the address of a known peer is its successor's, because two processes cannot listen there;
    one from elsewhere proves nothing about the peer, whose writes may still run. It waits until the
    peer has answered a ping, or is given up.
    """

    def __init__(self, transport: Transport, mailer: Mailer, options: TransferOptions) -> None:
        self._transport = transport
        self._mailer = mailer
        self._options = options
        self._links: dict[str, Link] = {}
        self._claims: dict[str, tuple[Identity, Hello]] = {}
        self._refused_strangers: OrderedDict[str, str] = OrderedDict()
        self.dropped_count = 0
        self.refused_count = 0

    def begin(self, hello: Callable[[bool], Hello], events: PeerEvents) -> None:
        """Set what makes the own hello, told whether a reply is wanted, and who hears of peers."""
        self._hello = hello
        self._events = events
        self._mailer.begin(self._links.__contains__)

    def peers(self) -> list[Peer]:
        """Return the peers that are known."""
        return [link.peer for link in self._links.values() if link.peer is not None]

    def by_name(self, name: str) -> Peer | None:
        """Return a known peer."""
        return next((peer for peer in self.peers() if peer.name == name), None)

    def link(self, address: str) -> Link:
        """Return the link to an address that the engine named; asks where no peer is known.

        A peer that was refused or given up before may be back. One that was given up has until the
        next heartbeat to answer: rooms with a peer that is gone are to fail soon.
        """
        link = self._links.get(address)
        if link is None or link.state in (LinkState.DOWN, LinkState.REFUSED):
            self._send_hello(address, is_reply_wanted=True)
            reason = link.reason if link is not None and link.state is LinkState.DOWN else ""
            link = Link(address, LinkState.ASKED, True, self._next_beat(), reason=reason)
            self._links[address] = link
        link.is_wanted = True
        return link

    def forget(self, address: str) -> None:
        """Forget an address; rooms with its peer fail."""
        link = self._links.pop(address, None)
        if link is not None and link.peer is not None:
            self._lose(link, "was forgotten by the engine", is_dead=False)
        self._mailer.forget(address)

    def by_identity(self, identity: Identity) -> Peer | None:
        """Return the peer if it is the life that is known."""
        link = self._links.get(identity.address)
        peer = link.peer if link is not None else None
        if peer is None or (peer.name, peer.generation) != (identity.name, identity.generation):
            return None
        return peer

    def heard(self, identity: Identity) -> Peer | None:
        """Note a sign of life; return the peer if the frame comes from the life that is known."""
        peer = self.by_identity(identity)
        if peer is not None:
            self._links[identity.address].has_spoken = True
        return peer

    def on_hello(self, identity: Identity, hello: Hello) -> None:
        """Take up a peer, or refuse it by name on both sides."""
        known = self.heard(identity)
        holder = self.by_name(identity.name)
        if holder is not None and holder.address != identity.address:
            self._claim(holder, identity, hello)
            return
        try:
            peer = self._peer_of(identity, hello)
        except (Error, OverflowError) as error:
            self._refuse(identity, str(error))
            return
        self._supersede(peer)
        link = self._links.get(identity.address)
        if link is None:
            link = Link(identity.address, LinkState.KNOWN, False, self._next_beat())
            self._links[identity.address] = link
        link.state, link.misses, link.has_spoken, link.reason = LinkState.KNOWN, 0, True, ""
        self._refused_strangers.pop(identity.address, None)
        if known is None:
            link.peer = peer
        else:
            known.memory = peer.memory
        if hello.is_reply_wanted:
            self._send_hello(identity.address, is_reply_wanted=False)
        if link.peer is not None:
            self._events.peer_known(link.peer)

    def on_refused(self, identity: Identity, message: str) -> None:
        """Note that a peer cannot work with us."""
        self._mark_refused(identity.address, f"{identity.name} refused: {message}")

    def on_foreign_version(self, identity: Identity, reason: str) -> None:
        """Refuse a peer of another protocol version, once, so that both sides know."""
        link = self._links.get(identity.address)
        is_refused = link is not None and link.state is LinkState.REFUSED
        known = link.reason if link is not None and is_refused else None
        if reason in (known, self._refused_strangers.get(identity.address)):
            return
        self._mailer.send(identity.address, Refused(reason))
        self._mark_refused(identity.address, reason)

    def on_ping(self, identity: Identity) -> None:
        """Answer a heartbeat; a stranger is asked who it is."""
        if self.heard(identity) is None:
            self.ask(identity.address)
        else:
            self._mailer.send(identity.address, Pong())

    def on_pong(self, identity: Identity) -> None:
        """Note that a peer lives, and refuse who has come in its name meanwhile."""
        peer = self.heard(identity)
        if peer is not None and peer.name in self._claims:
            claimant, _ = self._claims.pop(peer.name)
            self._refuse_claim(peer, claimant)

    def ask(self, address: str) -> None:
        """Ask an address for its hello."""
        self._send_hello(address, is_reply_wanted=True)

    def drop(self, address: str, reason: str, is_dead: bool = False) -> None:
        """Give a peer up: its rooms fail, its connection goes, a wanted address is asked again."""
        link = self._links.get(address)
        if link is None:
            self._mailer.forget(address)
            return
        self.dropped_count += link.peer is not None
        self._lose(link, reason, is_dead)
        link.state, link.reason = LinkState.DOWN, reason
        if not link.is_wanted:
            del self._links[address]
        self._mailer.forget(address)

    def beat(self) -> None:
        """Send the heartbeats that are due; drop peers that missed too many."""
        self._admit_claims()
        now = self._options.clock()
        for link in list(self._links.values()):
            if now < link.next_beat:
                continue
            link.next_beat = now + self._options.heartbeat_interval_s
            if link.peer is None:
                if link.is_wanted and link.state is not LinkState.REFUSED:
                    link.state = LinkState.DOWN if link.reason else link.state
                    self.ask(link.address)
                continue
            link.misses = 0 if link.has_spoken else link.misses + 1
            link.has_spoken = False
            if link.misses >= self._options.heartbeat_misses:
                self.drop(link.address, f"did not answer {link.misses} heartbeats")
            else:
                self._mailer.send(link.address, Ping())

    def _next_beat(self) -> float:
        return self._options.clock() + self._options.heartbeat_interval_s

    def _send_hello(self, address: str, is_reply_wanted: bool) -> None:
        self._mailer.send(address, self._hello(is_reply_wanted))

    def _peer_of(self, identity: Identity, hello: Hello) -> Peer:
        """Check a hello in full; the transport is asked last, because it remembers."""
        if identity.address not in self._links and len(self._links) >= _MAX_LINKS:
            raise InvalidArgumentError(f"there are {_MAX_LINKS} peers already")
        if hello.transport != self._transport.name:
            raise InvalidArgumentError(
                f"transport is {hello.transport!r}, expected {self._transport.name!r}"
            )
        layout = hello.pool.layout()
        memory = RegionTable(identity.name)
        for address, size_bytes in hello.memory:
            memory.add(address, size_bytes)
        peer = Peer(
            identity.name,
            identity.address,
            identity.generation,
            layout,
            tuple(plane.address for plane in hello.pool.planes),
            memory,
            hello.write_cost_us,
        )
        for index, address in enumerate(peer.plane_addresses):
            if not peer.describes(address, layout.plane_bytes(index)):
                raise InvalidArgumentError(
                    f"plane {index} at {address:#x} with {layout.plane_bytes(index)} bytes "
                    "is not inside one region that its owner registered"
                )
        name = self._transport.add_peer(hello.description)
        if name != identity.name:
            self._transport.remove_peer(name)
            raise InvalidArgumentError(
                f"description is of agent {name!r}, but the message is from {identity.name!r}"
            )
        return peer

    def _claim(self, holder: Peer, identity: Identity, hello: Hello) -> None:
        """Let a hello in the name of a peer that listens elsewhere wait for the peer's answer."""
        known = self._claims.get(holder.name)
        if known[0] != identity if known is not None else len(self._claims) >= _MAX_CLAIMS:
            self._refuse_claim(holder, identity)
            return
        self._claims[holder.name] = identity, hello
        self._mailer.send(holder.address, Ping())

    def _refuse_claim(self, holder: Peer, identity: Identity) -> None:
        self._refuse(
            identity,
            f"agent name {identity.name!r} is taken by the peer at {holder.address}, got it from "
            f"{identity.address}: expected names to be unique",
        )

    def _admit_claims(self) -> None:
        """Take up the hellos that waited for peers that are gone by now."""
        for name in [name for name in self._claims if self.by_name(name) is None]:
            self.on_hello(*self._claims.pop(name))

    def _supersede(self, peer: Peer) -> None:
        """End the earlier life of what listened at a peer's address."""
        link = self._links.get(peer.address)
        old = link.peer if link is not None else None
        if link is None or old is None:
            return
        if (old.name, old.generation) == (peer.name, peer.generation):
            return
        link.peer = None
        if old.name != peer.name:
            self._transport.remove_peer(old.name)
        self._events.peer_lost(old, "was restarted", old.generation != peer.generation)

    def _refuse(self, identity: Identity, reason: str) -> None:
        self._mailer.send(identity.address, Refused(clipped(reason)))
        self._mark_refused(identity.address, f"hello of {identity.name}: {reason}")

    def _mark_refused(self, address: str, reason: str) -> None:
        self.refused_count += 1
        link = self._links.get(address)
        if link is None:
            self._refused_strangers[address] = reason
            if len(self._refused_strangers) > _MAX_STRANGERS:
                self._refused_strangers.popitem(last=False)
            return
        self._lose(link, reason, is_dead=False)
        link.state, link.reason = LinkState.REFUSED, reason
        self._events.address_refused(address, reason)

    def _lose(self, link: Link, reason: str, is_dead: bool) -> None:
        peer, link.peer = link.peer, None
        if peer is not None:
            self._transport.remove_peer(peer.name)
            self._events.peer_lost(peer, reason, is_dead)
