# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""What the tests look at, and damage, inside a vLLM worker: the cache of the request's pages."""

from __future__ import annotations

import hashlib
from typing import Any

from vllm.distributed.parallel_state import get_tp_group


class CacheProbe:
    """Methods that vLLM adds to its workers (``worker_extension_cls``)."""

    model_runner: Any

    def page_digests(self, pages: list[int]) -> dict[str, list[str]]:
        """Digest of every page of a request, in order, for each layer and global head."""
        digests = {}
        for layer, cache in enumerate(self._caches()):
            head_count = cache.shape[1]
            first_head = get_tp_group().rank_in_group * head_count
            for head in range(head_count):
                blocks = [cache[page, head].contiguous().numpy().tobytes() for page in pages]
                name = f"{layer}.{first_head + head}"
                digests[name] = [hashlib.sha256(block).hexdigest()[:16] for block in blocks]
        return digests

    def damage(self, kind: str, pages: list[int]) -> None:
        """Do to loaded pages what a wrong transfer would."""
        for cache in self._caches():
            # A head's page holds its keys, then its values.
            rows = cache.view(*cache.shape[:2], 2, -1)
            if kind == "page dropped":
                cache[pages[1]] = 0
            elif kind == "values of another page":
                rows[pages[1], :, 1] = rows[pages[2], :, 1]
            elif kind == "heads exchanged":
                cache[pages] = cache[pages].flip(1)
            else:
                raise ValueError(kind)

    def _caches(self) -> list[Any]:
        return list(self.model_runner.kv_caches)
