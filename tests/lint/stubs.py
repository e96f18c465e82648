# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""Stubs of the native modules. Run as a script to write them beside the package's sources."""

import ast
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "kvxfer"
HEADER = """\
# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
# Written by `make stubs`; a test compares it with the module.
"""
UNHASHABLE = "__hash__: typing.ClassVar[None] = None"


def native_modules() -> list[str]:
    """Names of the native modules of this installation."""
    names = ["kvxfer._core", "kvxfer._collective", "kvxfer._cuda"]
    return [name for name in names if importlib.util.find_spec(name) is not None]


def stub_path(module_name: str) -> Path:
    return PACKAGE / f"{module_name.rpartition('.')[2]}.pyi"


def generate(module_name: str) -> str:
    """The stub of one installed module: formatted, without docstrings."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--stubgen", module_name, folder]
        subprocess.run(command, check=True, timeout=120)
        raw = Path(folder, *module_name.split(".")).with_suffix(".pyi").read_text()
    tree = ast.fix_missing_locations(_Tidy().visit(ast.parse(raw)))
    text = HEADER + ast.unparse(tree).replace(
        UNHASHABLE, f"{UNHASHABLE}  # type: ignore[assignment]"
    )
    formatter = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=100"]
    formatter += [f"--stdin-filename={stub_path(module_name).name}", "-"]
    done = subprocess.run(
        formatter, input=text, text=True, capture_output=True, check=True, timeout=120
    )
    return done.stdout


class _Tidy(ast.NodeTransformer):
    """Makes of the generator's output what a strict type checker and a reader accept."""

    def _drop_docstring(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> None:
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = node.body[1:] or [ast.Expr(ast.Constant(...))]

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self._drop_docstring(node)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._drop_docstring(node)
        if any(ast.unparse(base).endswith("Enum") for base in node.bases):
            members = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            node.body = [ast.Assign([item.target], ast.Constant(...)) for item in members]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._drop_docstring(node)
        if node.name == "__eq__":
            node.args.args[1] = ast.arg("other", ast.Name("object"))
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        # What takes any integer type is written as such; __int__ alone would let floats in.
        if ast.unparse(node) == "typing.SupportsInt | typing.SupportsIndex":
            return node.right
        return self.generic_visit(node)


def _run_stubgen(module_name: str, folder: str) -> None:
    import pybind11_stubgen

    module = importlib.import_module(module_name)
    # The exceptions carry the package's name; their definition belongs into the stub all the same.
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == "kvxfer":
            value.__module__ = module_name
    pybind11_stubgen.main(["--exit-code", "-o", folder, module_name])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stubgen"]:
        _run_stubgen(*sys.argv[2:])
    else:
        for name in native_modules():
            stub_path(name).write_text(generate(name))
            print(f"wrote {stub_path(name)}")
