"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# refusal of its own fault: PlanError: the plan on the module does not hold: a strategy that no factors of the op make. Plan the module again.
# plain jax.jit with the plan's shardings: there is no plan: PlanError
# jax.jit with a constraint on every value: there is no plan: PlanError
# the exported module without its shardings: there is no plan: PlanError
# fault of: unknown

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a5",
                kind=Kind(shape=(2, 1, 1, 8), dtype="float32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="a6",
                kind=Kind(shape=(3, 2, 1, 1), dtype="float32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
        ),
        instructions=(
            Instruction(
                results=("v7",),
                template="lax.conv_general_dilated({0}, {1}, window_strides={strides}, padding={padding}, lhs_dilation={image_dilation}, rhs_dilation={kernel_dilation}, dimension_numbers=lax.ConvDimensionNumbers({image_dims}, {kernel_dims}, {result_dims}), feature_group_count={feature_groups}, batch_group_count={batch_groups})",
                operands=("a5", "a6"),
                parameters={
                    "strides": (1, 2),
                    "padding": ((1, 1), (2, 0)),
                    "image_dilation": (1, 1),
                    "kernel_dilation": (1, 1),
                    "image_dims": (3, 0, 1, 2),
                    "kernel_dims": (3, 1, 0, 2),
                    "result_dims": (1, 0, 2, 3),
                    "feature_groups": 1,
                    "batch_groups": 1,
                },
                unpacks=False,
            ),
            Instruction(
                results=("v9",),
                template="jnp.clip({0}, -3, 3)",
                operands=("v7",),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v10",),
                template="{0}.transpose({order})",
                operands=("v9",),
                parameters={"order": (3, 0, 2, 1)},
                unpacks=False,
            ),
        ),
        outputs=("v10",),
        kinds={
            "a5": Kind(shape=(2, 1, 1, 8), dtype="float32", bound=3.0, exact=True),
            "a6": Kind(shape=(3, 2, 1, 1), dtype="float32", bound=3.0, exact=True),
            "v7": Kind(shape=(1, 8, 1, 2), dtype="float32", bound=216.0, exact=True),
            "v9": Kind(shape=(1, 8, 1, 2), dtype="float32", bound=3.0, exact=True),
            "v10": Kind(shape=(2, 1, 1, 8), dtype="float32", bound=3.0, exact=True),
        },
        name="program",
        x64=False,
        style="gradient",
    ),
    configuration=Configuration(
        family="recomputing",
        options={"cluster": "SLOW_CHIPS", "recompute": "'auto'"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=10331,
)
