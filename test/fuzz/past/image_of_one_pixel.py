"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# WRONG: result 1: 12 of 36 entries of float32[3, 3, 4] differ, relative difference 1.4 (tolerance 0.001)
# fault of: XLA's partitioner

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a13",
                kind=Kind(shape=(3, 3, 2), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
            Argument(
                name="v12",
                kind=Kind(shape=(3, 3, 4), dtype="float32", bound=3.0, exact=True),
                low=-3,
                high=3,
            ),
        ),
        instructions=(
            Instruction(
                results=("v14",),
                template="lax.conv_general_dilated({0}, {1}, window_strides={strides}, padding={padding}, lhs_dilation={image_dilation}, rhs_dilation={kernel_dilation}, dimension_numbers=lax.ConvDimensionNumbers({image_dims}, {kernel_dims}, {result_dims}), feature_group_count={feature_groups}, batch_group_count={batch_groups})",
                operands=("v12", "a13"),
                parameters={
                    "strides": (2,),
                    "padding": ((0, 0),),
                    "image_dilation": (1,),
                    "kernel_dilation": (1,),
                    "image_dims": (1, 0, 2),
                    "kernel_dims": (2, 0, 1),
                    "result_dims": (2, 0, 1),
                    "feature_groups": 1,
                    "batch_groups": 1,
                },
                unpacks=False,
            ),
        ),
        outputs=("v14",),
        kinds={
            "v12": Kind(shape=(3, 3, 4), dtype="float32", bound=3.0, exact=True),
            "a13": Kind(shape=(3, 3, 2), dtype="float32", bound=3.0, exact=True),
            "v14": Kind(shape=(2, 1, 3), dtype="float32", bound=81.0, exact=True),
        },
        name="program",
        x64=False,
        style="gradient",
    ),
    configuration=Configuration(
        family="on_mesh",
        options={"cluster": "SLOW_CHIPS", "mesh": "'a=2,b=2,c=2'", "donate_argnums": "0"},
        argument_pins=(),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=62136,
)
