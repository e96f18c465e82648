# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""A prompt of exact length whose continuation can only be read from its middle."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from kvxfer import InvalidArgumentError

Tokenize = Callable[[str], list[int]]

_CODES_BEFORE = " Here is a list of codes. apple: 4821. banana:"
_ANSWER = " 7093"
_CODES_AFTER = ". cherry: 1568. grape: 9340. That was the list of codes."
_QUESTION = " The list again. apple: 4821. banana:"

_WHO = (
    "The gardener",
    "A young baker",
    "The night guard",
    "My older neighbour",
    "The ferry captain",
    "A quiet painter",
    "The village doctor",
    "The school librarian",
    "A tired carpenter",
)
_DOES = (
    "watered the roses",
    "repaired a wooden chair",
    "read an old letter",
    "closed the heavy gate",
    "cleaned the long table",
    "waited for the morning train",
    "listened to the rain",
    "carried two baskets",
    "looked for a lost key",
)
_WHERE = (
    "near the stone wall",
    "behind the market hall",
    "on the other side of the river",
    "under the tall chestnut trees",
    "in front of the station",
    "beside the warm kitchen",
    "at the end of the narrow street",
    "along the sandy shore",
)


@dataclass(frozen=True)
class Prompt:
    """Token ids, and which positions hold the answer that the prompt's end asks for."""

    token_ids: tuple[int, ...]
    answer_begin: int
    answer_end: int
    answer: str

    def answer_pages(self, page_size: int) -> range:
        """Logical pages of ``page_size`` positions that the answer lies in."""
        return range(self.answer_begin // page_size, -(-self.answer_end // page_size))


def make_prompt(tokenize: Tokenize, tokens: int, seed: int = 0, *, depth: float = 0.5) -> Prompt:
    """Build filler, a list of codes, filler and the start of the list again.

    Nothing before or after the list says what follows "banana:", so a model that continues with the
    right digits has read the rows in the middle of its cache.

    Parameters
    ----------
    tokenize : callable
        Text to token ids, without special tokens.
    tokens : int
        Exact length of the prompt.                                     [unit: tokens]
    seed : int
        Seed of the filler sentences.
    depth : float
        Share of the filler that comes before the list.

    Raises
    ------
    InvalidArgumentError
        If ``tokens`` leaves no room for filler around the list.
    """
    before, answer = tokenize(_CODES_BEFORE), tokenize(_ANSWER)
    after, question = tokenize(_CODES_AFTER), tokenize(_QUESTION)
    filler_tokens = tokens - sum(map(len, (before, answer, after, question)))
    least_filler_tokens = 64
    if filler_tokens < least_filler_tokens:
        fixed_tokens = tokens - filler_tokens
        raise InvalidArgumentError(
            f"tokens: expected at least {fixed_tokens + least_filler_tokens} for the prompt, "
            f"got {tokens}"
        )
    choose = random.Random(seed)
    head_tokens = int(filler_tokens * depth)
    head = _filler(tokenize, head_tokens, choose)
    tail = _filler(tokenize, filler_tokens - head_tokens, choose)
    answer_begin = len(head) + len(before)
    return Prompt(
        token_ids=(*head, *before, *answer, *after, *tail, *question),
        answer_begin=answer_begin,
        answer_end=answer_begin + len(answer),
        answer=_ANSWER,
    )


def _filler(tokenize: Tokenize, tokens: int, choose: random.Random) -> list[int]:
    """Return the last ``tokens`` token ids of enough sentences, so that the end is a whole one."""
    token_ids: list[int] = []
    while len(token_ids) < tokens:
        who, does, where = (choose.choice(part) for part in (_WHO, _DOES, _WHERE))
        token_ids += tokenize(f" {who} {does} {where}.")
    return token_ids[len(token_ids) - tokens :]
