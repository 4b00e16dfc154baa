"""What the docs site adds to its pages: in api.md, an entry for every pass of the registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_REGISTRY = Path(__file__).parents[1] / "python" / "autoshard" / "passes" / "registry.py"
_PLACE = "<!-- passes -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the passes, in the order of the flow, where it asks for them."""
    passes = re.findall(r'"(autoshard(?:\.\w+)+):(\w+)"', _REGISTRY.read_text())
    return markdown.replace(_PLACE, "\n\n".join(f"::: {path}.{name}" for path, name in passes))
