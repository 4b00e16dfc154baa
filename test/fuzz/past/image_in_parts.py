"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501

# WRONG: result 0: 4 of 8 entries of float32[1, 2, 2, 2] differ, relative difference 1 (tolerance 0.001)
# plain jax.jit with the plan's shardings: wrong
# jax.jit with a constraint on every value: wrong
# the exported module without its shardings: right
# fault of: XLA's partitioner
from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a0",
                kind=Kind(shape=(1, 2, 2, 2), dtype="float32", bound=2.0, exact=True),
                low=-2,
                high=2,
            ),
            Argument(
                name="a1",
                kind=Kind(shape=(1, 1, 2, 2), dtype="float32", bound=1.0, exact=True),
                low=-1,
                high=1,
            ),
        ),
        instructions=(
            Instruction(
                results=("v2",),
                template="lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={groups})",
                operands=("a0", "a1"),
                parameters={"strides": (1, 1), "padding": "SAME", "dilation": (2, 2), "groups": 1},
                unpacks=False,
            ),
        ),
        outputs=("v2",),
        kinds={
            "a0": Kind(shape=(1, 2, 2, 2), dtype="float32", bound=2.0, exact=True),
            "a1": Kind(shape=(1, 1, 2, 2), dtype="float32", bound=1.0, exact=True),
            "v2": Kind(shape=(1, 2, 2, 2), dtype="float32", bound=100, exact=False),
        },
        name="network",
        x64=False,
        style="function",
    ),
    configuration=Configuration(
        family="automatic",
        options={},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=2,
)
