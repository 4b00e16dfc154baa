"""Wrong once, made small by ``minimise.py``."""

# ruff: noqa: E501
# traceback: ValueError: could not broadcast input array from shape (0,2) into shape (0,1)
#   styles.py:78 run
#   api.py:2314 device_get
#   tree_util.py:399 tree_map
#   tree_util.py:399 <genexpr>
#   api.py:2275 _device_get
#   array.py:414 __array__
#   profiler.py:420 wrapper
#   array.py:647 _value
# plain jax.jit with the plan's shardings: ValueError: could not broadcast input array from shape (0,2) into shape (0,1)
# jax.jit with a constraint on every value: ValueError: could not broadcast input array from shape (0,2) into shape (0,1)
# the exported module without its shardings: right
# fault of: XLA's partitioner, or shardings that autoshard takes with them

from fuzz.cases import Case
from fuzz.configurations import Configuration
from fuzz.programs import Argument, Instruction, Kind, Program

CASE = Case(
    program=Program(
        arguments=(
            Argument(
                name="a3",
                kind=Kind(shape=(4, 4, 2), dtype="float32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
            Argument(
                name="v2",
                kind=Kind(shape=(4,), dtype="float32", bound=3.0, exact=True),
                low=0,
                high=1,
            ),
        ),
        instructions=(
            Instruction(
                results=("v4",),
                template="lax.dot_general({0}, {1}, {numbers})",
                operands=("v2", "a3"),
                parameters={"numbers": (((0,), (0,)), ((), ()))},
                unpacks=False,
            ),
            Instruction(
                results=("v5",),
                template="jnp.clip({0}, -3, 3)",
                operands=("v4",),
                parameters={},
                unpacks=False,
            ),
            Instruction(
                results=("v6",),
                template="lax.slice({0}, {starts}, {ends}, {strides})",
                operands=("v5",),
                parameters={"starts": (4, 0), "ends": (4, 2), "strides": (1, 1)},
                unpacks=False,
            ),
        ),
        outputs=("v6",),
        kinds={
            "a3": Kind(shape=(4, 4, 2), dtype="float32", bound=3.0, exact=True),
            "v2": Kind(shape=(4,), dtype="float32", bound=3.0, exact=True),
            "v4": Kind(shape=(4, 2), dtype="float32", bound=216.0, exact=True),
            "v5": Kind(shape=(4, 2), dtype="float32", bound=3.0, exact=True),
            "v6": Kind(shape=(0, 2), dtype="float32", bound=3.0, exact=True),
        },
        name="program",
        x64=False,
        style="function",
    ),
    configuration=Configuration(
        family="pinned",
        options={"mesh": "'a=4,b=2'"},
        argument_pins=("P(None, 'a', 'b')", "None"),
        result_pins=(),
        marks={},
        limit_share=None,
        is_shardy=True,
    ),
    seed=11633,
)
