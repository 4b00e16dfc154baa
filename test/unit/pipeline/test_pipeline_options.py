import pytest

import autoshard
from autoshard.pipeline.options import Pipeline


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stages": 4, "micro_batches": 2}, "Give as many micro-batches as stages, or more"),
        ({"stages": 1, "micro_batches": 2}, "is no pipeline"),
        ({"stages": 2.0, "micro_batches": 2}, r"stages=2\.0\): give 1 or more"),
        ({"stages": 2, "micro_batches": 4, "schedule": "dual"}, "'dual'\\) is not known"),
        ({"stages": 2, "micro_batches": 4, "chunks": 0}, "chunks=0\\): give 1 or more"),
        ({"stages": 4, "micro_batches": 3, "chunks": 2}, "Give as many micro-batches as stages"),
        ({"stages": 2, "micro_batches": 4, "interleave": 2}, "interleave=2\\) is not supported"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(autoshard.PlanError, match=said):
        Pipeline(**options)
