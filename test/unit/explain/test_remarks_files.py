"""Files of remarks are what editors, LLVM's viewers and code scanning read."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from autoshard.explain.remarks import Remark, RemarkKind, Rule
from autoshard.explain.remarks_files import remarks_sarif, remarks_text, remarks_yaml

HERE = str(Path.cwd() / "models" / "my mlp.py")
REMARKS = [
    Remark(RemarkKind.PASSED, Rule.CUT, 'w["a: b"] cut', None, 0, "step", 0.0, 1024.0),
    Remark(RemarkKind.MISSED, Rule.COMPUTED_ALIKE, "dim 25 × 2", HERE, 41, "mlp", 0.0031, 0.0),
    Remark(RemarkKind.ANALYSIS, Rule.TIME, "slow", "/lib/m.py", 7, "f", 0.5, 0.0),
]


def test_text_is_that_of_compilers():
    assert remarks_text(REMARKS).splitlines() == [
        'step: remark: passed: w["a: b"] cut [Cut]',
        "models/my mlp.py:41: remark: missed: dim 25 × 2 [ComputedAlike]",
        "/lib/m.py:7: remark: analysis: slow [Time]",
    ]


class Loader(yaml.SafeLoader):
    """Reads what stands behind ``--- !Missed`` as a mapping with its kind."""


for kind in ("Passed", "Missed", "Analysis"):
    Loader.add_constructor(
        f"!{kind}",
        lambda loader, node, kind=kind: {"Kind": kind, **loader.construct_mapping(node, deep=True)},
    )


def test_yaml_is_a_document_a_remark():
    assert list(yaml.load_all(remarks_yaml(REMARKS), Loader)) == [
        {
            "Kind": "Passed",
            "Pass": "autoshard",
            "Name": "Cut",
            "Function": "step",
            "Args": [{"String": 'w["a: b"] cut'}, {"Bytes": "1024"}],
        },
        {
            "Kind": "Missed",
            "Pass": "autoshard",
            "Name": "ComputedAlike",
            "DebugLoc": {"File": HERE, "Line": 41, "Column": 0},
            "Function": "mlp",
            "Args": [{"String": "dim 25 × 2"}, {"Seconds": "0.0031"}],
        },
        {
            "Kind": "Analysis",
            "Pass": "autoshard",
            "Name": "Time",
            "DebugLoc": {"File": "/lib/m.py", "Line": 7, "Column": 0},
            "Function": "f",
            "Args": [{"String": "slow"}, {"Seconds": "0.5"}],
        },
    ]


def test_sarif_has_the_fields_that_the_standard_requires():
    """OASIS SARIF 2.1.0: 3.13.2 version, 3.14.6 tool, 3.19.8 name, 3.27.10 level, 3.27.11 message.

    A rule index points at the rule of that id; what is no failure has the level none.
    """
    read = json.loads(remarks_sarif(REMARKS))
    assert read["version"] == "2.1.0"
    (run,) = read["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "autoshard"
    assert len({rule["id"] for rule in driver["rules"]}) == len(Rule)
    assert all(rule["shortDescription"]["text"].endswith(".") for rule in driver["rules"])
    assert len(run["results"]) == len(REMARKS)
    for result, remark in zip(run["results"], REMARKS, strict=True):
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == remark.rule.label
        assert result["message"]["text"] == remark.message
        assert result["kind"] in ("pass", "fail", "informational")
        assert (result["level"] == "none") == (result["kind"] != "fail")


def test_sarif_names_places_by_uri():
    places = [
        one["locations"][0]["physicalLocation"] if "locations" in one else None
        for one in json.loads(remarks_sarif(REMARKS))["runs"][0]["results"]
    ]
    assert places == [
        None,
        {"artifactLocation": {"uri": "models/my%20mlp.py"}, "region": {"startLine": 41}},
        {"artifactLocation": {"uri": "file:///lib/m.py"}, "region": {"startLine": 7}},
    ]
