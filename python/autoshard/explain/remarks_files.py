"""Remarks as text for editors, as LLVM's YAML for its viewers, as SARIF for code scanning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autoshard.explain.remarks import Remark, RemarkKind, Rule

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {
    RemarkKind.PASSED: ("pass", "none"),
    RemarkKind.MISSED: ("fail", "warning"),
    RemarkKind.ANALYSIS: ("informational", "none"),
}
"""SARIF's kind and level; only what fails may have a level."""


def remarks_text(remarks: Iterable[Remark]) -> str:
    """``model.py:41: remark: missed: ..``, a line each, as compilers write them."""
    return "".join(
        f"{_place(one)}: remark: {one.kind.value}: {one.message} [{one.rule.label}]\n"
        for one in remarks
    )


def _place(remark: Remark) -> str:
    if remark.file is None:
        return remark.function or "plan"
    return f"{_near(remark.file)}:{remark.line}"


def _near(file: str) -> str:
    """From the current folder, if the file is in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def remarks_yaml(remarks: Iterable[Remark]) -> str:
    """A document each, in the form of LLVM's optimization records.

    Strings are those of JSON, which YAML reads as they are.
    """
    return "".join("\n".join(_yaml_lines(one)) + "\n" for one in remarks)


def _yaml_lines(remark: Remark) -> Iterator[str]:
    yield f"--- !{remark.kind.value.capitalize()}"
    yield "Pass: autoshard"
    yield f"Name: {remark.rule.label}"
    if remark.file is not None:
        yield f"DebugLoc: {{ File: {_quoted(remark.file)}, Line: {remark.line}, Column: 0 }}"
    yield f"Function: {_quoted(remark.function)}"
    yield "Args:"
    yield f"  - String: {_quoted(remark.message)}"
    if remark.seconds:
        yield f"  - Seconds: '{remark.seconds:.6g}'"
    if remark.bytes:
        yield f"  - Bytes: '{remark.bytes:.0f}'"
    yield "..."


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def remarks_sarif(remarks: Sequence[Remark]) -> str:
    """One run of the static analysis results interchange format, version 2.1.0.

    Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", 2020.
    """
    rules = list(Rule)
    driver = {
        "name": "autoshard",
        "version": metadata.version("autoshard"),
        "rules": [
            {"id": rule.label, "name": rule.label, "shortDescription": {"text": rule.meaning}}
            for rule in rules
        ],
    }
    results = [_sarif_result(one, rules.index(one.rule)) for one in remarks]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _sarif_result(remark: Remark, rule: int) -> dict[str, Any]:
    kind, level = _LEVELS[remark.kind]
    result: dict[str, Any] = {
        "ruleId": remark.rule.label,
        "ruleIndex": rule,
        "kind": kind,
        "level": level,
        "message": {"text": remark.message},
        "properties": {"seconds": remark.seconds, "bytes": remark.bytes},
    }
    if remark.file is not None:
        place = {
            "artifactLocation": {"uri": _uri(remark.file)},
            "region": {"startLine": max(1, remark.line)},
        }
        logical = {"name": remark.function, "kind": "function"}
        result["locations"] = [{"physicalLocation": place, "logicalLocations": [logical]}]
    return result


def _uri(file: str) -> str:
    near = _near(file)
    return Path(near).as_uri() if Path(near).is_absolute() else quote(Path(near).as_posix())
