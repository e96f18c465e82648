# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Pages of a pool by what they hold: allocation, prefixes that requests share, eviction."""

import random
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from kvxfer import CapacityError

__all__ = ["PageCache"]


class PageCache:
    """Page ids of one pool, the same on every rank of a group.

    A page that is full can be found again by the tokens in it and before it. It stays while a
    request uses it and, where prefixes are kept, until its room is needed or ``flush`` is called.

    Parameters
    ----------
    page_count : int
    page_tokens : int
        Tokens of a page on all ranks together.                                       [unit: tokens]
    keeps_prefixes : bool
        Whether pages can be found again at all.
    seed : int
        Of the order in which pages are given out: scattered, as in a pool that ran for a while.

    Examples
    --------
    >>> import numpy as np
    >>> cache = PageCache(page_count=8, page_tokens=4, keeps_prefixes=True)
    >>> prompt = np.arange(10)
    >>> pages = cache.match(prompt, most_tokens=9) + cache.allocate(3)
    >>> cache.insert(prompt, pages)
    >>> cache.release(pages)
    >>> cache.match(prompt, most_tokens=9) == pages[:2]
    True
    >>> cache.free_count, cache.used_count
    (6, 2)
    """

    def __init__(
        self, page_count: int, page_tokens: int, *, keeps_prefixes: bool, seed: int = 0
    ) -> None:
        self.page_tokens = page_tokens
        self.page_count = page_count
        self._keeps_prefixes = keeps_prefixes
        self._free = random.Random(seed).sample(range(page_count), page_count)
        self._users = [0] * page_count
        self._used_count = 0
        self._pages: OrderedDict[bytes, int] = OrderedDict()  # oldest use first
        self._keys: dict[int, bytes] = {}

    @property
    def used_count(self) -> int:
        """Pages that requests use."""
        return self._used_count

    @property
    def free_count(self) -> int:
        """Pages that can be given out, those that hold an unused prefix among them."""
        return self.page_count - self._used_count

    def pages_of(self, token_count: int) -> int:
        """Return how many pages hold so many tokens."""
        return -(-token_count // self.page_tokens)

    def match(self, tokens: NDArray[np.integer], most_tokens: int) -> list[int]:
        """Return the pages of the longest prefix that is held; the caller now uses them.

        Parameters
        ----------
        tokens : int array, shape (token_count,)
        most_tokens : int
            Longest prefix that is of use.                                            [unit: tokens]
        """
        found: list[bytes] = []
        for key in self._chain(tokens[:most_tokens]):
            if key not in self._pages:
                break
            found.append(key)
        for key in reversed(found):  # the end of a prefix goes before its beginning
            self._pages.move_to_end(key)
        pages = [self._pages[key] for key in found]
        self._use(pages)
        return pages

    def allocate(self, count: int) -> list[int]:
        """Return pages that nobody uses; the caller now does.

        Raises
        ------
        CapacityError
            If there are fewer; nothing is taken then.
        """
        if count > self.free_count:
            raise CapacityError(f"{count} pages needed, {self.free_count} of the pool are free")
        if len(self._free) < count:
            self._evict(count - len(self._free))
        pages = [self._free.pop() for _ in range(count)]
        self._use(pages)
        return pages

    def insert(self, tokens: NDArray[np.integer], pages: Sequence[int]) -> None:
        """Let the full pages of these tokens be found again. Those that are held already stay."""
        if not self._keeps_prefixes:
            return
        for key, page in zip(self._chain(tokens), pages, strict=False):
            if key not in self._pages and page not in self._keys:
                self._pages[key] = page
                self._keys[page] = key

    def release(self, pages: Sequence[int]) -> None:
        """Note that the caller no longer uses pages that it was given."""
        for page in pages:
            self._users[page] -= 1
            if self._users[page] == 0:
                self._used_count -= 1
                if page not in self._keys:
                    self._free.append(page)

    def flush(self) -> int:
        """Forget every prefix and return how many pages held one."""
        count = len(self._pages)
        for page in self._pages.values():
            del self._keys[page]
            if self._users[page] == 0:
                self._free.append(page)
        self._pages.clear()
        return count

    def _use(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._used_count += self._users[page] == 0
            self._users[page] += 1

    def _evict(self, count: int) -> None:
        unused = [key for key, page in self._pages.items() if self._users[page] == 0]
        for key in unused[:count]:
            page = self._pages.pop(key)
            del self._keys[page]
            self._free.append(page)

    def _chain(self, tokens: NDArray[np.integer]) -> list[bytes]:
        """Return a key for each full page: of its tokens and of all before them."""
        raw = np.ascontiguousarray(tokens, dtype="<i8")
        keys: list[bytes] = []
        key = b""
        for end in range(self.page_tokens, len(raw) + 1, self.page_tokens):
            key = blake2b(
                key + raw[end - self.page_tokens : end].tobytes(), digest_size=16
            ).digest()
            keys.append(key)
        return keys
