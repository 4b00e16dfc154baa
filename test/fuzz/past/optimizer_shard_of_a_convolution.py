"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# refusal of its own fault: PassError: <network 129>:4:9: autoshard-export-shardy left an invalid module: inferred shape '[2, 2, 4, 8]' is incompatible with return type of operation 'tensor<2x2x4x4xf32>'
# plain jax.jit with the plan's shardings: right
# jax.jit with a constraint on every value: right
# the exported module without its shardings: PassError: <network 212>:4:9: autoshard-export-gspmd left an invalid module: inferred shape '[2, 2, 4, 8]' is incompatible with return type of operation 'tensor<2x2x4x4xf32>'
# fault of: unknown

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a0",
                kind=Kind(shape=(1, 32, 32, 4), dtype="float32", bound=2.0, exact=True),
                low=-2,
                high=2,
            ),
            Argument(
                name="a1",
                kind=Kind(shape=(2, 2, 4, 4), dtype="float32", bound=1.0, exact=True),
                low=-1,
                high=1,
            ),
            Argument(
                name="a4",
                kind=Kind(shape=(2, 2, 4, 8), dtype="float32", bound=1.0, exact=True),
                low=-1,
                high=1,
            ),
            Argument(
                name="a7",
                kind=Kind(shape=(2, 2, 1, 8), dtype="float32", bound=1.0, exact=True),
                low=-1,
                high=1,
            ),
            Argument(
                name="a10",
                kind=Kind(shape=(8, 8), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
            Argument(
                name="a12",
                kind=Kind(shape=(2,), dtype="int32", bound=7.0, exact=True),
                low=0,
                high=7,
            ),
        ),
        instructions=(
            Instruction(
                results=("v2",),
                template="lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={groups})",
                operands=("a0", "a1"),
                parameters={"strides": (2, 2), "padding": "SAME", "dilation": (2, 2), "groups": 1},
                unpacks=False,
            ),
            Instruction(
                results=("v3",),
                template="jax.nn.relu({0})",
                operands=("v2",),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v5",),
                template="lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={groups})",
                operands=("v3", "a4"),
                parameters={"strides": (2, 2), "padding": "VALID", "dilation": (1, 1), "groups": 1},
                unpacks=False,
            ),
            Instruction(
                results=("v6",),
                template="lax.reduce_window({0}, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID') / 4",
                operands=("v5",),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v8",),
                template="lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={groups})",
                operands=("v6", "a7"),
                parameters={"strides": (1, 1), "padding": "SAME", "dilation": (1, 1), "groups": 8},
                unpacks=False,
            ),
            Instruction(
                results=("v9",),
                template="jax.nn.relu({0})",
                operands=("v8",),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v11",),
                template="jnp.mean({0}, axis=(1, 2)) @ {1}",
                operands=("v9", "a10"),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v13",),
                template="cross_entropy({0}, {1})",
                operands=("v11", "a12"),
                parameters={},
                unpacks=False,
            ),
        ),
        outputs=("v13",),
        kinds={
            "a0": Kind(shape=(1, 32, 32, 4), dtype="float32", bound=2.0, exact=True),
            "a1": Kind(shape=(2, 2, 4, 4), dtype="float32", bound=1.0, exact=True),
            "a4": Kind(shape=(2, 2, 4, 8), dtype="float32", bound=1.0, exact=True),
            "a7": Kind(shape=(2, 2, 1, 8), dtype="float32", bound=1.0, exact=True),
            "a10": Kind(shape=(8, 8), dtype="float32", bound=3.0, exact=True),
            "a12": Kind(shape=(2,), dtype="int32", bound=7.0, exact=True),
            "v2": Kind(shape=(1, 16, 16, 4), dtype="float32", bound=100, exact=False),
            "v3": Kind(shape=(1, 16, 16, 4), dtype="float32", bound=100, exact=False),
            "v5": Kind(shape=(1, 8, 8, 8), dtype="float32", bound=100, exact=False),
            "v6": Kind(shape=(1, 4, 4, 8), dtype="float32", bound=100, exact=False),
            "v8": Kind(shape=(1, 4, 4, 8), dtype="float32", bound=100, exact=False),
            "v9": Kind(shape=(1, 4, 4, 8), dtype="float32", bound=100, exact=False),
            "v11": Kind(shape=(1, 8), dtype="float32", bound=100, exact=False),
            "v13": Kind(shape=(2,), dtype="float32", bound=100, exact=False),
        },
        name="network",
        x64=False,
        style="train_step",
    ),
    configuration=Configuration(
        family="pinned_optimizer",
        options={
            "mode": "'semi_auto'",
            "mesh": "mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7])",
            "cluster": "'cpu:8'",
            "optimizer_parallel": "autoshard.OptimizerParallel(level=2, threshold_kb=0, shard_size=4)",
            "recompute": "'auto'",
        },
        argument_pins=(
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P())",
            "None",
            "None",
            "None",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P('a', 'b'))",
            "None",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P(None, None, None, 'a'))",
            "None",
            "None",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P(None, 'c', 'b', 'a'))",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P('b'))",
        ),
        result_pins=(
            "None",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P(None, None, 'b', ('c', 'a')))",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P('c', 'b', 'a', None))",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P(None, None, None, 'a'))",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P(None, 'a'))",
            "None",
            "None",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P(None, None, None, ('b', 'c', 'a')))",
            "NamedSharding(mesh_of({'a': 2, 'b': 2, 'c': 2}, [0, 1, 2, 3, 4, 5, 6, 7]), P('c', 'a'))",
            "None",
        ),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=10876,
)
