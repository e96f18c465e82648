# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for packages that SGLang imports at the top and that its transfer base does not use.

SGLang's wheel alone, beside torch and transformers, is then enough to import its base classes on a
machine without a GPU. For a process of its own: a stub must never be seen by anything else.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

NAMES = frozenset(
    {
        # what needs a GPU
        "cuda", "flash_attn", "flashinfer", "sgl_kernel", "torch_memory_saver", "triton",
        "torchcodec", "torchvision",
        # servers, notebooks, formats
        "IPython", "aiohttp", "compressed_tensors", "dill", "loguru", "orjson",
        "prometheus_client", "pybase64", "sentencepiece", "starlette", "tvm_ffi",
    }
)  # fmt: skip

# transformers looks for some of them; it must do so before they exist.
_FIRST = ("transformers", "transformers.image_utils", "transformers.modeling_utils")
_FIRST_NAMES = ("AutoModelForCausalLM", "AutoProcessor", "AutoTokenizer", "PretrainedConfig")


class _StubType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls


class _Stub(metaclass=_StubType):
    """Takes whatever it is given; called with a function, it returns that, as a decorator."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else self

    def __getitem__(self, item: Any) -> Any:
        return self


def _stub(name: str) -> Any:
    return _StubType(name, (_Stub,), {})


class _StubModule(types.ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # SGLang pickles classes while it is imported.
        made = (lambda *_, **__: b"") if name == "dumps" else _stub(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> list[str]:
    """Stand in for what is not installed; returns its names."""
    for module in _FIRST:
        importlib.import_module(module)
    for name in _FIRST_NAMES:
        getattr(sys.modules["transformers"], name)
    missing = frozenset(name for name in NAMES if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Finder(missing))
    return sorted(missing)
