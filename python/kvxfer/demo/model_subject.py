# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The real model as the demo's subject: prefilled in one process, judged in another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvxfer.demo import cache_rows, checks, damage, model
from kvxfer.demo.geometry import Rows
from kvxfer.demo.prompt import make_prompt
from kvxfer.demo.subject import check_tokens, compare_first_token

DEFAULT_TOKENS = 1100
_GENERATED_TOKENS = 24
_ROW_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ModelSource:
    """A saved model and the prompt."""

    folder: Path
    token_ids: tuple[int, ...]

    def open(self) -> ModelProducer:
        """Load the model."""
        model.prepare_torch()
        return ModelProducer(model.load_model(self.folder), self.token_ids)


class ModelProducer:
    """Prefills the prompt piece by piece, as a worker does whose prefix is cached."""

    def __init__(self, loaded: Any, token_ids: tuple[int, ...]) -> None:
        self._model = loaded
        self._token_ids = token_ids
        self._cache = cache_rows.make_cache(loaded.config)
        self.first_token = -1

    def produce(self, begin: int, end: int) -> Rows:
        """Run [begin, end) of the prompt and return its rows."""
        logits = model.feed(self._model, self._cache, self._token_ids[begin:end])
        self.first_token = int(logits.argmax())
        return cache_rows.extract_rows(self._cache, begin, end)


class ModelSubject:
    """The cache of SmolLM2 over a prompt whose answer lies in its middle.

    Parameters
    ----------
    tokens : int or None
        Length of the prompt; None: the default.                        [unit: tokens]
    folder : Path
        Where the expanded weights are written for the prefill process.
    """

    name = model.MODEL_NAME
    reason = ""
    page_size = model.MODEL_PAGE_SIZE

    def __init__(self, tokens: int | None, folder: Path) -> None:
        self.tokens = check_tokens(DEFAULT_TOKENS if tokens is None else tokens)
        model.prepare_torch()
        self._model, self._tokenizer = model.load_weights(model.find_weights())
        window_tokens = int(self._model.config.max_position_embeddings)
        check_tokens(self.tokens, window_tokens - _GENERATED_TOKENS)
        model.save_model(self._model, folder)
        self._prompt = make_prompt(self._tokenizer.encode, self.tokens)
        self._folder = folder
        self.planes = cache_rows.cache_planes(self._model.config)
        self._rows: Rows = []
        self._first_token = -1
        self._reference: model.Generation | None = None

    def source(self) -> ModelSource:
        """Return what the prefill process opens."""
        return ModelSource(self._folder, self._prompt.token_ids)

    def make_reference(self) -> None:
        """Prefill and decode in this process, in one piece."""
        cache = cache_rows.make_cache(self._model.config)
        logits = model.feed(self._model, cache, self._prompt.token_ids)
        self._first_token = int(logits.argmax())
        self._rows = cache_rows.extract_rows(cache, 0, self.tokens)
        self._reference = model.generate(
            self._model, cache, self._first_token, _GENERATED_TOKENS - 1
        )

    @property
    def text(self) -> str:
        """The reference's continuation."""
        assert self._reference is not None
        return self._tokenizer.decode((self._first_token, *self._reference.tokens))

    def compare(
        self, source_rows: Rows, arrived_rows: Rows, first_token: int
    ) -> list[checks.Comparison]:
        """Decode from the arrived rows and from damaged ones, and compare with the reference."""
        assert self._reference is not None
        reference = self._reference
        pages = self._prompt.answer_pages(self.page_size)
        other_page = pages.start // 2
        dropped = damage.drop_pages(arrived_rows, pages, self.page_size)
        exchanged = damage.exchange_values(
            arrived_rows, self.planes, (pages.start, other_page), self.page_size
        )
        return [
            checks.compare_close_rows(self._rows, source_rows, _ROW_TOLERANCE),
            self._compare_answer(),
            compare_first_token(self._first_token, first_token),
            *checks.compare_generation(reference, self._decode(arrived_rows, first_token)),
            checks.compare_damaged(
                "page of the answer dropped", reference, self._decode(dropped, first_token)
            ),
            checks.compare_damaged(
                "keys of that page with another page's values",
                reference,
                self._decode(exchanged, first_token),
            ),
        ]

    def _decode(self, rows: Rows, first_token: int) -> model.Generation:
        cache = cache_rows.restore_cache(self._model.config, rows)
        return model.generate(self._model, cache, first_token, _GENERATED_TOKENS - 1)

    def _compare_answer(self) -> checks.Comparison:
        """Hold that the reference itself reads the answer: else no damage to it could be seen."""
        answer = self._prompt.answer
        return checks.Comparison(
            name="continuation on one process begins with the answer from the prompt's middle",
            expected=repr(answer),
            got=repr(self.text[: len(answer)]),
            count=len(answer),
            held=self.text.startswith(answer),
        )
