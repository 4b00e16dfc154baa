"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# WRONG: result 3: 1 of 8 entries of float32[8] differ, relative difference 1e+02 (bit for bit)
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
                kind=Kind(shape=(5,), dtype="float32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a1",
                kind=Kind(shape=(8,), dtype="float32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a2", kind=Kind(shape=(), dtype="int32", bound=12.0, exact=True), low=0, high=1
            ),
            Argument(
                name="a4",
                kind=Kind(shape=(8,), dtype="int32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a6",
                kind=Kind(shape=(8, 1), dtype="int32", bound=7.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a7",
                kind=Kind(shape=(8, 1), dtype="int32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a14",
                kind=Kind(shape=(1,), dtype="int32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a16",
                kind=Kind(shape=(), dtype="int32", bound=12.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a19",
                kind=Kind(shape=(8, 1), dtype="int32", bound=9.0, exact=True),
                low=0,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v3",),
                template="lax.dynamic_slice({0}, ({1}, ), {sizes})",
                operands=("a0", "a2"),
                parameters={"sizes": (3,)},
                unpacks=False,
            ),
            Instruction(
                results=("v5",),
                template="jnp.bincount(jnp.abs({0}).reshape(-1), length={count})",
                operands=("a4",),
                parameters={"count": 8},
                unpacks=False,
            ),
            Instruction(
                results=("v8",),
                template="{0}.at[{2}].add({1}, mode={mode})",
                operands=("v5", "a7", "a6"),
                parameters={"mode": "drop"},
                unpacks=False,
            ),
            Instruction(
                results=("v13",),
                template="jax.vmap({body}, {in_axes}, {out_axes})({0}, {1})",
                operands=("v8", "a6"),
                parameters={
                    "body": Program(
                        arguments=(
                            Argument(
                                name="b9",
                                kind=Kind(shape=(), dtype="int32", bound=580.0, exact=True),
                                low=-3,
                                high=3,
                            ),
                            Argument(
                                name="b10",
                                kind=Kind(shape=(24,), dtype="int32", bound=7.0, exact=True),
                                low=-3,
                                high=3,
                            ),
                        ),
                        instructions=(
                            Instruction(
                                results=("v11",),
                                template="jnp.ones({shape}, {dtype})",
                                operands=(),
                                parameters={"shape": (48,), "dtype": "int32"},
                                unpacks=False,
                            ),
                        ),
                        outputs=("v11",),
                        kinds={
                            "b9": Kind(shape=(), dtype="int32", bound=580.0, exact=True),
                            "b10": Kind(shape=(24,), dtype="int32", bound=7.0, exact=True),
                            "v11": Kind(shape=(48,), dtype="int32", bound=7.0, exact=True),
                        },
                        name="body12",
                        x64=False,
                        style="function",
                    ),
                    "in_axes": (0, 0),
                    "out_axes": (0,),
                },
                unpacks=True,
            ),
            Instruction(
                results=("v17",),
                template="lax.dynamic_slice({0}, ({1}, {2}, ), {sizes})",
                operands=("v13", "a2", "a16"),
                parameters={"sizes": (0, 0)},
                unpacks=False,
            ),
            Instruction(
                results=("v20",),
                template="lax.gather({0}, {1}, lax.GatherDimensionNumbers(offset_dims={offset_dims}, collapsed_slice_dims={collapsed}, start_index_map={index_map}, operand_batching_dims={batching}, start_indices_batching_dims={indices_batching}), {window}, mode={mode})",
                operands=("v3", "a19"),
                parameters={
                    "offset_dims": (),
                    "collapsed": (0,),
                    "index_map": (0,),
                    "batching": (),
                    "indices_batching": (),
                    "window": (1,),
                    "mode": "clip",
                },
                unpacks=False,
            ),
        ),
        outputs=("a14", "v17", "a1", "v20"),
        kinds={
            "a0": Kind(shape=(5,), dtype="float32", bound=3.0, exact=True),
            "a1": Kind(shape=(8,), dtype="float32", bound=3.0, exact=True),
            "a2": Kind(shape=(), dtype="int32", bound=12.0, exact=True),
            "a4": Kind(shape=(8,), dtype="int32", bound=3.0, exact=True),
            "a6": Kind(shape=(8, 1), dtype="int32", bound=7.0, exact=True),
            "a7": Kind(shape=(8, 1), dtype="int32", bound=3.0, exact=True),
            "a14": Kind(shape=(1,), dtype="int32", bound=3.0, exact=True),
            "a16": Kind(shape=(), dtype="int32", bound=12.0, exact=True),
            "a19": Kind(shape=(8, 1), dtype="int32", bound=9.0, exact=True),
            "v3": Kind(shape=(3,), dtype="float32", bound=3.0, exact=True),
            "v5": Kind(shape=(8,), dtype="int32", bound=4.0, exact=True),
            "v8": Kind(shape=(8,), dtype="int32", bound=580.0, exact=True),
            "v13": Kind(shape=(8, 48), dtype="int32", bound=7.0, exact=True),
            "v17": Kind(shape=(0, 0), dtype="int32", bound=7.0, exact=True),
            "v20": Kind(shape=(8,), dtype="float32", bound=3.0, exact=True),
        },
        name="program",
        x64=False,
        style="function",
    ),
    configuration=Configuration(
        family="data_parallel_optimizer",
        options={"mode": "'data_parallel'", "batch_argnums": "(1, 3, 4, 5, 8)"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=30146,
)
