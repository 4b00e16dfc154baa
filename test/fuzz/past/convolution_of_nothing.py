"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# traceback: ValueError: option_cost[10]: must be a number or +inf
#   jit.py:259 _new_program
#   planning.py:225 plan_source
#   planning.py:295 _plan_once
#   planning.py:354 search_source
#   recursive_programming.py:230 search_module
#   recursive_programming.py:426 _search
#   recursive_programming.py:471 _search_symbolic
#   symbolic.py:39 search_symbolic
# plain jax.jit with the plan's shardings: there is no plan: ValueError
# jax.jit with a constraint on every value: there is no plan: ValueError
# the exported module without its shardings: there is no plan: ValueError
# fault of: unknown

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a9",
                kind=Kind(shape=(1, 4, 3, 2), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
            Argument(
                name="a12",
                kind=Kind(shape=(3, 3, 8, 3), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v13",),
                template="lax.conv_general_dilated({0}, {1}, window_strides={strides}, padding={padding}, lhs_dilation={image_dilation}, rhs_dilation={kernel_dilation}, dimension_numbers=lax.ConvDimensionNumbers({image_dims}, {kernel_dims}, {result_dims}), feature_group_count={feature_groups}, batch_group_count={batch_groups})",
                operands=("a9", "a12"),
                parameters={
                    "strides": (1, 2),
                    "padding": ((1, 0), (0, 2)),
                    "image_dilation": (2, 1),
                    "kernel_dilation": (2, 1),
                    "image_dims": (3, 2, 0, 1),
                    "kernel_dims": (2, 3, 0, 1),
                    "result_dims": (2, 0, 3, 1),
                    "feature_groups": 1,
                    "batch_groups": 1,
                },
                unpacks=False,
            ),
        ),
        outputs=("v13",),
        kinds={
            "a9": Kind(shape=(1, 4, 3, 2), dtype="float32", bound=3.0, exact=True),
            "a12": Kind(shape=(3, 3, 8, 3), dtype="float32", bound=3.0, exact=True),
            "v13": Kind(shape=(8, 2, 2, 0), dtype="float32", bound=243.0, exact=True),
        },
        name="program",
        x64=False,
        style="function",
    ),
    configuration=Configuration(
        family="symbolic",
        options={
            "cluster": "SLOW_CHIPS",
            "cost_model": "'symbolic'",
            "mesh": "'a=2,b=4'",
            "indivisible": "'pad'",
        },
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=False,
    ),
    seed=11804,
)
