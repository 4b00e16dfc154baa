"""Programs that are split, damaged before ``plan.check()`` runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.module import operations_of
from autoshard.verify.check import run


def damage(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[mlir.Operation], None]
) -> None:
    """Let ``change`` see every op ``name`` of the program that is split."""
    forms = run.forms

    def changed(planned: bytes, use_shardy: bool) -> tuple[bytes, bytes]:
        plain, sharded = forms(planned, use_shardy)
        module = parse_bytes(sharded, new_context(), "module")
        with module.context, mlir.Location.unknown():
            for op in operations_of(module.operation):
                if op.name == f"stablehlo.{name}":
                    change(op)
        return plain, print_module(module, "bytecode")

    monkeypatch.setattr(run, "forms", changed)
