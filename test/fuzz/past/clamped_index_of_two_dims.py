"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# traceback: JaxRuntimeError: INTERNAL: RET_CHECK failure (hlo_verifier.cc:1524) s32[1] broadcast, operand shape s32[2]
# fault of: XLA's partitioner, or shardings that autoshard takes with them

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a12",
                kind=Kind(shape=(2,), dtype="int32", bound=2.0, exact=True),
                low=0,
                high=2,
            ),
            Argument(
                name="v7",
                kind=Kind(shape=(3, 3, 2), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v13",),
                template="lax.gather({0}, {1}, lax.GatherDimensionNumbers(offset_dims={offset_dims}, collapsed_slice_dims={collapsed}, start_index_map={index_map}, operand_batching_dims={batching}, start_indices_batching_dims={indices_batching}), {window}, mode={mode})",
                operands=("v7", "a12"),
                parameters={
                    "offset_dims": (0, 1),
                    "collapsed": (2,),
                    "index_map": (1, 2),
                    "batching": (),
                    "indices_batching": (),
                    "window": (3, 2, 1),
                    "mode": "clip",
                },
                unpacks=False,
            ),
        ),
        outputs=("v13",),
        kinds={
            "a12": Kind(shape=(2,), dtype="int32", bound=2.0, exact=True),
            "v7": Kind(shape=(3, 3, 2), dtype="float32", bound=3.0, exact=True),
            "v13": Kind(shape=(3, 2), dtype="float32", bound=3.0, exact=True),
        },
        name="program",
        x64=False,
        style="gradient",
    ),
    configuration=Configuration(
        family="automatic",
        options={"cluster": "SLOW_CHIPS"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=False,
    ),
    seed=64333,
)
