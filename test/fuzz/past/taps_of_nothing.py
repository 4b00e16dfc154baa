"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# refusal of its own fault: PassError: <program 220>:2:10: autoshard-export-shardy left an invalid module: inferred shape '[1, 8, 1, 4]' is incompatible with return type of operation 'tensor<0x8x1x4xf32>'
# plain jax.jit with the plan's shardings: right
# jax.jit with a constraint on every value: right
# the exported module without its shardings: PassError: <program 228>:2:10: autoshard-export-gspmd left an invalid module: inferred shape '[1, 8, 1, 4]' is incompatible with return type of operation 'tensor<0x8x1x4xf32>'
# fault of: unknown

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a10",
                kind=Kind(shape=(2, 1, 8, 1), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
            Argument(
                name="v3",
                kind=Kind(shape=(8, 2, 2, 2), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v11",),
                template="lax.conv_general_dilated({0}, {1}, window_strides={strides}, padding={padding}, lhs_dilation={image_dilation}, rhs_dilation={kernel_dilation}, dimension_numbers=lax.ConvDimensionNumbers({image_dims}, {kernel_dims}, {result_dims}), feature_group_count={feature_groups}, batch_group_count={batch_groups})",
                operands=("v3", "a10"),
                parameters={
                    "strides": (1, 1),
                    "padding": ((0, 0), (0, 0)),
                    "image_dilation": (1, 1),
                    "kernel_dilation": (2, 2),
                    "image_dims": (2, 3, 1, 0),
                    "kernel_dims": (2, 3, 0, 1),
                    "result_dims": (2, 3, 0, 1),
                    "feature_groups": 2,
                    "batch_groups": 1,
                },
                unpacks=False,
            ),
        ),
        outputs=("v11",),
        kinds={
            "a10": Kind(shape=(2, 1, 8, 1), dtype="float32", bound=3.0, exact=True),
            "v3": Kind(shape=(8, 2, 2, 2), dtype="float32", bound=3.0, exact=True),
            "v11": Kind(shape=(0, 8, 2, 8), dtype="float32", bound=36.0, exact=True),
        },
        name="program",
        x64=False,
        style="function",
    ),
    configuration=Configuration(
        family="tight",
        options={"cluster": "SLOW_LINKS"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=0.99,
        is_shardy=True,
    ),
    seed=42764,
)
