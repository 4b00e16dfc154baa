"""Real programs, planned and exported: nothing missing, nothing refused.

Needs the corpus (``AUTOSHARD_CORPUS``); ``bench/speed/propagate.py`` does all of it, here are the
modules of a few thousand ops.
"""

from __future__ import annotations

import pytest

from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.compile import compile_module
from autoshard.passes.pipeline import run_passes
from autoshard.sharding import canonical_v2
from bench.common import corpus

SMALL = (
    "bert_large_hf.fwd",
    "gpt3_175b_scan_maxtext.expert",
    "llama2_7b_scan_maxtext.train",
    "mixtral_8x7b_scan_maxtext.train",
    "resnet50_keras.fwd",
)

pytestmark = pytest.mark.skipif(
    corpus.corpus_folder() is None, reason="no corpus: set AUTOSHARD_CORPUS to its folder"
)


def planned(name: str) -> mlir.Module:
    (entry,) = corpus.entries([name])
    module = corpus.load(entry)
    corpus.pin(module, entry)
    run_passes(module, ["autoshard-import-strategies", "autoshard-sharding-propagation"])
    return module


@pytest.mark.parametrize("name", SMALL)
def test_every_op_carries_a_sharding_that_xla_reads(name: str) -> None:
    module = planned(name)
    texts: set[str] = set()
    for op in corpus.ops_with_results(module.operation):
        assert "mhlo.sharding" in op.attributes, op.name
        texts.add(mlir.StringAttr(op.attributes["mhlo.sharding"]).value)
    assert len(texts) > 3
    for text in texts:
        assert canonical_v2(text) == text
    for form in ("shardy", "gspmd"):
        copy = parse_bytes(print_module(module, "bytecode"), new_context())
        run_passes(copy, [f"autoshard-export-{form}"])
        assert copy.operation.verify()


@pytest.mark.parametrize("form", ["shardy", "gspmd"])
def test_the_exported_module_compiles(form: str) -> None:
    module = planned("resnet50_keras.fwd")
    run_passes(module, [f"autoshard-export-{form}"])
    assert compile_module(module, use_shardy=form == "shardy").hlo_text()
