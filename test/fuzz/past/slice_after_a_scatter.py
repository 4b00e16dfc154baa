"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# traceback: RuntimeError: a strategy that no factors of the op make at op 121
#   jit.py:253 _program
#   jit.py:259 _new_program
#   planning.py:225 plan_source
#   planning.py:295 _plan_once
#   planning.py:354 search_source
#   recursive_programming.py:230 search_module
#   recursive_programming.py:426 _search
#   recursive_programming.py:473 _search_symbolic
# plain jax.jit with the plan's shardings: there is no plan: RuntimeError
# jax.jit with a constraint on every value: there is no plan: RuntimeError
# the exported module without its shardings: there is no plan: RuntimeError
# fault of: unknown

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a0",
                kind=Kind(shape=(2, 1, 3, 2), dtype="float32", bound=2.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a1",
                kind=Kind(shape=(1, 2, 1, 2), dtype="float32", bound=1.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a5",
                kind=Kind(shape=(1, 1, 2, 2), dtype="float32", bound=1.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a7",
                kind=Kind(shape=(1,), dtype="float32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a9",
                kind=Kind(shape=(1, 1, 2, 1), dtype="float32", bound=1.0, exact=True),
                low=0,
                high=1,
            ),
        ),
        instructions=(
            Instruction(
                results=("v2",),
                template="lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={groups})",
                operands=("a0", "a1"),
                parameters={"strides": (1, 1), "padding": "SAME", "dilation": (1, 1), "groups": 2},
                unpacks=False,
            ),
            Instruction(
                results=("v3",),
                template="batch_norm(jax.nn.relu({0}), (0, 1, 2))",
                operands=("v2",),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v4",),
                template="jnp.repeat(jnp.repeat({0}, 2, axis=1), 2, axis=2)",
                operands=("v3",),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v6",),
                template="lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={groups})",
                operands=("v4", "a5"),
                parameters={
                    "strides": (1, 1),
                    "padding": ((0, 0), (0, 0)),
                    "dilation": (1, 1),
                    "groups": 1,
                },
                unpacks=False,
            ),
            Instruction(
                results=("v8",),
                template="jax.nn.relu({0} + {1})",
                operands=("v6", "a7"),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v10",),
                template="lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={groups})",
                operands=("v8", "a9"),
                parameters={"strides": (1, 1), "padding": "VALID", "dilation": (1, 1), "groups": 1},
                unpacks=False,
            ),
        ),
        outputs=("v10",),
        kinds={
            "a0": Kind(shape=(2, 1, 3, 2), dtype="float32", bound=2.0, exact=True),
            "a1": Kind(shape=(1, 2, 1, 2), dtype="float32", bound=1.0, exact=True),
            "a5": Kind(shape=(1, 1, 2, 2), dtype="float32", bound=1.0, exact=True),
            "a7": Kind(shape=(1,), dtype="float32", bound=3.0, exact=True),
            "a9": Kind(shape=(1, 1, 2, 1), dtype="float32", bound=1.0, exact=True),
            "v2": Kind(shape=(2, 1, 3, 2), dtype="float32", bound=100, exact=False),
            "v3": Kind(shape=(2, 1, 3, 2), dtype="float32", bound=100, exact=False),
            "v4": Kind(shape=(2, 2, 6, 2), dtype="float32", bound=100, exact=False),
            "v6": Kind(shape=(2, 2, 6, 2), dtype="float32", bound=100, exact=False),
            "v8": Kind(shape=(2, 2, 6, 2), dtype="float32", bound=100, exact=False),
            "v10": Kind(shape=(2, 2, 6, 1), dtype="float32", bound=100, exact=False),
        },
        name="network",
        x64=False,
        style="gradient",
    ),
    configuration=Configuration(
        family="symbolic",
        options={"cost_model": "'symbolic'"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=14224,
)
