"""Wrong once, made small by ``minimise.py``."""

# WRONG: result 1: 1 of 24 entries of float32[24] differ, relative difference 1 (tolerance 0.001)
# plain jax.jit with the plan's shardings: right
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
                name="a42",
                kind=Kind(shape=(24,), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v43", "v44"),
                template="lax.top_k({0}, {count})",
                operands=("a42",),
                parameters={"count": 22},
                unpacks=True,
            ),
        ),
        outputs=("v43",),
        kinds={
            "a42": Kind(shape=(24,), dtype="float32", bound=3.0, exact=True),
            "v43": Kind(shape=(22,), dtype="float32", bound=3.0, exact=True),
            "v44": Kind(shape=(22,), dtype="int32", bound=99, exact=True),
        },
        name="program",
        x64=False,
        style="gradient",
    ),
    configuration=Configuration(
        family="automatic",
        options={"cluster": "SLOW_LINKS", "indivisible": "'pad'"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=61116,
)
