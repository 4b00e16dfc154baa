"""Wrong once, made small by ``minimise.py``."""

# WRONG: result 0: 1 of 2 entries of float32[2] differ, relative difference 0.33 (bit for bit)
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
                name="a3",
                kind=Kind(shape=(2,), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
            Argument(
                name="a15",
                kind=Kind(shape=(), dtype="int32", bound=12.0, exact=True),
                low=-2,
                high=12,
            ),
            Argument(
                name="a24",
                kind=Kind(shape=(1,), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v25",),
                template="lax.dynamic_update_slice({0}, {1}, ({2}, ))",
                operands=("a3", "a24", "a15"),
                parameters={},
                unpacks=False,
            ),
        ),
        outputs=("v25",),
        kinds={
            "a3": Kind(shape=(2,), dtype="float32", bound=3.0, exact=True),
            "a15": Kind(shape=(), dtype="int32", bound=12.0, exact=True),
            "a24": Kind(shape=(1,), dtype="float32", bound=3.0, exact=True),
            "v25": Kind(shape=(2,), dtype="float32", bound=3.0, exact=True),
        },
        name="program",
        x64=False,
        style="function",
    ),
    configuration=Configuration(
        family="symbolic",
        options={},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=2090,
)
