"""Hooks of modules are kept by a name, so that each is removed again."""

from __future__ import annotations

import ast

from tests.conftest import REPOSITORY


def test_every_hook_on_a_module_has_a_handle() -> None:
    """One that is only registered stays, and with it what it refers to."""
    lost = [
        (path.name, node.lineno)
        for package in ("model", "flows", "labs", "benchmarks")
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith(("forward_hook", "backward_hook", "pre_hook"))
    ]
    assert lost == []
