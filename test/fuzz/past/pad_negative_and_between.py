"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501

# abort: the process ended with -6: F1123 06:27:07.065573   14045 spmd_partitioner.cc:1115] Check failed: get_first_valid_element_offset_on_dilated_shard(0) == swd->padding_low() (1 vs. -1)
# plain jax.jit with the plan's shardings: abort
# jax.jit with a constraint on every value: abort
# the exported module without its shardings: right
# fault of: XLA's partitioner
from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a9", kind=Kind(shape=(), dtype="int8", bound=3.0, exact=True), low=-3, high=3
            ),
            Argument(
                name="v3",
                kind=Kind(shape=(8, 2, 24), dtype="int8", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v10",),
                template="lax.pad({0}, {1}, {config})",
                operands=("v3", "a9"),
                parameters={"config": ((-1, 0, 1), (0, 0, 0), (3, 2, 1))},
                unpacks=False,
            ),
            Instruction(
                results=("v14",),
                template="lax.slice({0}, {starts}, {ends}, {strides})",
                operands=("v10",),
                parameters={"starts": (0, 0, 0), "ends": (14, 2, 52), "strides": (1, 2, 1)},
                unpacks=False,
            ),
        ),
        outputs=("v14",),
        kinds={
            "a9": Kind(shape=(), dtype="int8", bound=3.0, exact=True),
            "v3": Kind(shape=(8, 2, 24), dtype="int8", bound=3.0, exact=True),
            "v10": Kind(shape=(14, 2, 52), dtype="int8", bound=4, exact=True),
            "v14": Kind(shape=(14, 1, 52), dtype="int8", bound=4, exact=True),
        },
        name="program",
        x64=False,
        style="function",
    ),
    configuration=Configuration(
        family="on_mesh",
        options={"cluster": "SLOW_CHIPS"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=2046,
)
