"""The vocabulary of attributes, and how attributes of any op are read.

jaxlib 0.10.2 and 0.12.0.1 have no Python class for the elements of a complex constant. Asking for
it by name is a ``TypeError``; ``NamedAttribute.attr`` and the comparison of two ``NamedAttribute``s
end the process, since nothing may be thrown there. So attributes of arbitrary ops are read here
only.
"""

from __future__ import annotations

from collections.abc import Container, Hashable

from jaxlib.mlir import ir

from autoshard.errors import StrategyError
from autoshard.ir.locations import place

# Of a module.

MESH = "autoshard.mesh"
"""The mesh of the pins and of the plan, as text: ``dp=2,tp=4``."""
PLAN = "autoshard.plan"
"""What the plan costs, as JSON (``planned/summary.py``)."""
RESHARDED_BYTES = "autoshard.resharded_bytes"
"""Bytes that the plan sends between devices in a step."""
ENABLE_ALLTOALL = "autoshard.enable_alltoall"
"""False: values are resharded without all-to-alls."""
INDIVISIBLE = "autoshard.indivisible"
"""``pad``: dims are cut that do not fall into equal parts."""
MICRO_BATCHES = "autoshard.micro_batches"
"""What the loop over micro-batches is, as JSON: their count, lines computed of the whole batch
before it, lines whose sums are those of each micro-batch. On that loop: that it is this one."""
PIPELINE_STAGES = "autoshard.pipeline_stages"
"""How many stages the ops are on (``autoshard.stage``)."""
PIPELINE_CHUNKS = "autoshard.pipeline_chunks"
"""How many parts of the model each stage has, where that is more than one."""
PIPELINE = "autoshard.pipeline"
"""What is asked of a pipeline, as JSON."""
NUM_PARTITIONS = "mhlo.num_partitions"
NUM_REPLICAS = "mhlo.num_replicas"

# Of ops, arguments and results.

PIN = "autoshard.pin"
"""What the user fixed, an entry for each value."""
STRATEGY = "autoshard.strategy"
"""How a planned op takes its operands and makes its results."""
ROUNDED = "autoshard.rounded"
"""How the casts are split that the compiler adds before a matmul, an entry for each operand: a
strategy with a second result, as which the cast is read; empty where it casts nothing there."""
IN_STRATEGY = "autoshard.in_strategy"
"""Tuple strategies of an op's operands, as the user writes them on a file."""
OUT_STRATEGY = "autoshard.out_strategy"
"""Tuple strategies of its results, so written."""
STAGE = "autoshard.stage"
"""The stage of a pipeline that an op is on, from 0; on a mark, the part of the model that the user
wants it in, which is its stage where each stage has one part."""
LEVEL = "autoshard.level"
"""How often the longest way to an op changes stages: from the start of its micro-batch in the loop
over them, else before that loop, or behind it."""
MHLO_SHARDING = "mhlo.sharding"
SDY_SHARDING = "sdy.sharding"
SDY_SHARDING_RULE = "sdy.sharding_rule"
FRONTEND_ATTRIBUTES = "mhlo.frontend_attributes"
TRIP_COUNT = "autoshard.trip_count"
"""How often a loop runs, where it is known."""
SAID_TRIPS = "autoshard.said_trips"
"""How often a loop is said to run, should the program not tell."""

DEFERRED = "autoshard.deferred"
"""Stands at a task for whose results nothing in the loop waits."""
RESHARDED = "autoshard.resharded"
"""Stands at a barrier that gives what it takes in another sharding."""

CHECKPOINT_NAME = "autoshard.checkpoint_name"
"""The name of an op's result by ``jax.ad_checkpoint.checkpoint_name``."""

# Of arguments and results of ``main`` only.

LAYOUT = "autoshard.layout"
"""A layout, of marks also."""
FEEDS_ARGUMENT = "autoshard.feeds_argument"
"""The argument that a result becomes in the next step."""
KEY_WORDS = "autoshard.key_words"
"""The last dims are the words of PRNG keys, of which none is cut."""
MEMORY_KIND = "mhlo.memory_kind"
ALIASING_OUTPUT = "tf.aliasing_output"
BUFFER_DONOR = "jax.buffer_donor"
RESULT_INFO = "jax.result_info"
LAYOUT_MODE = "mhlo.layout_mode"
"""How dims lie in memory: XLA's text of a layout, or ``ANY_ORDER``; row by row without."""
ANY_ORDER = "auto"
"""The compiler chooses."""

# Custom calls that autoshard writes, and what stands on them.

MARK = "autoshard.mark"
"""The identity behind ``autoshard.shard``."""
MARK_GROUP = "autoshard.group"
"""The call that a mark belongs to."""
MARK_ROLE = "autoshard.role"
"""``in`` or ``out``: an operand or a result of that call."""
MARK_INDEX = "autoshard.index"
"""Which one."""
IN_HOST_MEMORY = "autoshard.in_host_memory"
"""The identity behind ``autoshard.in_host_memory``."""
PIPELINE_STAGE = "autoshard.pipeline_stage"
"""The identity behind ``autoshard.pipeline_stage``, with ``autoshard.stage`` on it."""

TRANSFER = "autoshard.transfer"
"""The identity that sends a value to another stage."""
TRANSFER_FROM = "autoshard.from"
"""The stage on which it is."""
TRANSFER_TO = "autoshard.to"
"""The stage that it is sent to."""

LOCKSTEP = "autoshard.lockstep"
"""On a module: as JSON, the stages that all run this program, each with its own rows of layers, and
how. On a loop over the layers of a stage: ``up``, if the first stage runs it first, or ``down``."""
STAGE_ROWS = "autoshard.stage_rows"
"""The dim of an argument or result of which each stage has its own rows; on a loop over the layers
of a stage, the slots of such arrays."""
STAGE_NUMBER = "autoshard.stage_number"
"""The custom call that gives the number of the stage that runs it, from 0."""
STAGE_PERMUTE = "autoshard.stage_permute"
"""The custom call that gives a value of the stage before, in the direction of its
``backend_config``, ``up`` or ``down``; zeros on the first one."""
STAGE_SUM = "autoshard.stage_sum"
"""The custom call that puts together what all stages have, by the op that its ``backend_config``
names."""
STAGE_GATHER = "autoshard.stage_gather"
"""The custom call that puts one dim of all stages together: the first one."""
STAGE_EXCHANGE = "autoshard.stage_exchange"
"""The custom call by which each stage gets its own part of the first dim of each other stage's
value, one behind the other."""

KERNEL = "autoshard.kernel"
"""The composite that a call of ``autoshard.kernel`` is lowered to."""
KERNEL_AMOUNTS = ("matmul_flops", "moved_again", "exponentials", "vector_flops")
"""Attributes of such a call with the amounts of its work."""

CUSTOM_PARTITIONING = "CustomSPMDPartitioning"
"""The custom call that ``jax.experimental.custom_partitioning`` is lowered to."""


def custom_call_target(op: ir.Operation) -> str | None:
    """What a custom call calls; None for other ops."""
    if op.name != "stablehlo.custom_call":
        return None
    return ir.StringAttr(op.attributes["call_target_name"]).value


def attribute_of(op: ir.Operation, name: str) -> ir.Attribute | None:
    """An attribute of ``op``, or None."""
    attributes = op.attributes
    return attributes[name] if name in attributes else None  # noqa: SIM401 (0.10.2 has no .get)


def text_of(attribute: ir.Attribute, name: str, op: ir.Operation) -> str:
    """The text of a string attribute; StrategyError with the op's place if it is another one."""
    if not isinstance(attribute, ir.StringAttr):
        raise StrategyError(
            f'{op.name}: {name} = {attribute} is no text. Write it as {name} = "..".',
            place(op.location),
        )
    return attribute.value


def attribute_keys(op: ir.Operation, but: Container[str] = ()) -> tuple[tuple[str, Hashable], ...]:
    """Names and values of the attributes of an op; equal for ops with equal ones.

    Args:
        op: Any op.
        but: Names of attributes that do not count.
    """
    names = [op.attributes[index].name for index in range(len(op.attributes))]
    return tuple(
        (name, _key(op, index, name)) for index, name in enumerate(names) if name not in but
    )


def _key(op: ir.Operation, index: int, name: str) -> Hashable:
    try:
        return op.attributes[name]
    except TypeError:  # no class of Python: the text says the same
        return str(op.attributes[index])


def constant_integers(constant: ir.Operation) -> ir.DenseIntElementsAttr | None:
    """The elements of a ``stablehlo.constant``; None if they are no integers."""
    try:
        elements = constant.attributes["value"]
    except TypeError:  # complex numbers
        return None
    if not isinstance(elements, ir.DenseIntElementsAttr):
        return None
    return ir.DenseIntElementsAttr(elements)
