"""tools/check_docstrings.py."""

from __future__ import annotations

from pathlib import Path

from tools.check_docstrings import complaints

PYTHON = '''"""Plans."""

peak_bytes: float
"""Of one step."""
seconds: float
"""Seconds of one step."""


def results(ops):
    """
    Likewise, of results.
    """
    return "Of ops."
'''

CPP = """/// Bytes.
/// Of one step, that is.
double bytes;
  // That of one step.
double seconds;  // Of one step.
"""


def test_docstrings_and_comments_begin_with_a_noun(tmp_path: Path) -> None:
    for name, text in (("python/autoshard/plan.py", PYTHON), ("passes/plan.h", CPP)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert [complaint.split(". ")[0] for complaint in complaints(tmp_path)] == [
        "python/autoshard/plan.py:4: this begins with Of",
        "python/autoshard/plan.py:10: this begins with Likewise",
        "passes/plan.h:4: this begins with That",
    ]
