# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Counters of a manager, and gauges of what it holds."""

from kvxfer.transfer.mailer import Mailer
from kvxfer.transfer.peers import PeerTable
from kvxfer.transfer.router import Router
from kvxfer.transfer.services import Services

__all__ = ["counters_of"]


def counters_of(
    services: Services, peers: PeerTable, router: Router, mailer: Mailer
) -> dict[str, int]:
    """Return what has been counted and what is held, by name."""
    buffers, senders, receivers = services.buffers, router.senders, router.receivers
    early = (router.early_asks, router.early_completions)
    gauges = {
        "sender_rooms": len(senders),
        "receiver_rooms": len(receivers),
        "lingering_rooms": senders.lingering_count + receivers.lingering_count,
        "held_page_rooms": sum(room.pages_held for room in [*senders, *receivers]),
        "pack_buffers_leased": buffers.ring.leased_count,
        "pack_buffer_rooms_waiting": buffers.ring.waiting_count,
        "landing_regions_held": buffers.landing.held_count,
        "landing_rooms_waiting": buffers.landing.waiting_count,
        "metadata_slots_leased": buffers.inbox.leased_count + buffers.outbox.leased_count,
        "early_messages": sum(len(store) for store in early),
        "early_messages_dropped": sum(store.dropped_count for store in early),
        "peers_dropped": peers.dropped_count,
        "peers_refused": peers.refused_count,
        "messages_sent": mailer.sent_count,
        "messages_refused": mailer.refused_count,
    }
    return {**services.counters, **gauges}
