"""Lets autoshard's reader of modules run where the C++ core is not built.

The core of a checkout is for one release of Python. What the tables need of autoshard, its factor
rules, the roles and the texts of shardings, does not call it; only its name is imported.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _NoCore(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


try:
    importlib.import_module("autoshard._core")
except ImportError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "autoshard"]:
        del sys.modules[name]
    sys.modules["autoshard._core"] = _NoCore("autoshard._core")
