"""The C++ core of autoshard: plain structs in, decisions out."""

from collections.abc import Callable, Mapping, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


NO_VALUE: int = -1

NO_TYPE: int = -1

MAX_MESH_AXES: int = 16

MAX_PARTS: int = 3

MAX_MOVING_AXES: int = 4

REPLICATE_BELOW: float = 25.0

class LinkKind(enum.StrEnum):
    """How devices along a dim reach each other."""

    RING = 'ring'
    """Neighbours, and the ends are joined."""

    LINE = 'line'
    """Neighbours."""

    SWITCHED = 'switched'
    """Each reaches all others of its group at full rate: NVLink, HCCS."""

    NETWORK = 'network'
    """
    Between nodes or slices, each device with its share of the host's network cards.
    """

class CollectiveKind(enum.StrEnum):
    """What the devices of a group do with each other."""

    ALL_GATHER = 'all-gather'

    REDUCE_SCATTER = 'reduce-scatter'

    ALL_REDUCE = 'all-reduce'

    ALL_TO_ALL = 'all-to-all'

    PERMUTE = 'collective-permute'

class FactorKind(enum.Enum):
    """What cutting a factor means for the op that has it."""

    PASS_THROUGH = 0
    """Operands and results are cut alike; nothing to communicate."""

    REDUCTION = 1
    """Results become partial sums over the axes that cut it."""

    NEED_REPLICATION = 2
    """It may not be cut."""

    PERMUTATION = 3
    """
    Cut as one that passes through, but neighbours exchange a part of their blocks.
    """

class Work(enum.Enum):
    """
    What an op does with its elements, and so which formula gives its time.
    """

    ELEMENTWISE = 0
    """One result element from one element of each operand; fuses."""

    VIEW = 1
    """Moves elements, and fuses."""

    REDUCE = 2
    """Takes fused operands; its result is stored."""

    MATMUL = 3
    """Dot and convolution, on the matrix units."""

    INDEXED = 4
    """Moves what it touches: gather, scatter, slices."""

    OTHER = 5
    """Reads and writes memory once."""

    KERNEL = 6
    """As other, with operations on the matrix units."""

    ATTENTION = 7
    """As kernel, of a library."""

    ATTENTION_GRADIENT = 8
    """As attention, backwards."""

class Arithmetic(enum.IntEnum):
    """Which peak rate of a chip an op's arithmetic runs at."""

    F64 = 0

    F32 = 1

    F16 = 2

    F8 = 3

    I8 = 4

class Expense(enum.IntEnum):
    """What an element of an elementwise op's result costs to compute."""

    CHEAP = 0
    """At most an ordinary instruction or two."""

    EXPONENTIAL = 1
    """An exponential or a logarithm."""

    POLYNOMIAL = 2
    """A long polynomial: tanh, sine, powers."""

    POLYNOMIALS = 3
    """Several of them: erfc."""

    NEVER = 4
    """As a limit: nothing is so expensive."""

class Function(enum.Enum):
    """A function that takes several operations; see passes/model/program.h."""

    NONE = 0

    DIVISION = 1

    REMAINDER = 2

    ROOT = 3

    EXPONENTIAL = 4

    LOGARITHM = 5

    LOGISTIC = 6

    TANH = 7

    ERROR = 8

    ERROR_COMPLEMENT = 9

    SINE = 10

    POWER = 11

    OTHER = 12

class Place(enum.Enum):
    """Where a reshard of a plan is."""

    OPERAND = 0

    RESULT = 1

    JOIN = 2

    HALO = 3

class MatMulCut(enum.StrEnum):
    """
    What a level can cut of a matmul, in the order in which ties are decided.
    """

    BATCH = 'Batch'

    EXPERT = 'Expert'

    I = 'I'

    J = 'J'

    K = 'K'

    NONE = 'none'

class StopReason(enum.StrEnum):
    """Why a search of the solver ended."""

    OPTIMAL = 'optimal'
    """The bound met the cost: nothing better exists."""

    CONVERGED = 'converged'
    """Without time limit: the search stopped improving."""

    TIME_LIMIT = 'time_limit'

    ITERATION_LIMIT = 'iteration_limit'

    INTERRUPTED = 'interrupted'

    INFEASIBLE = 'infeasible'
    """Proven: no choice is allowed, or none fits the memory."""

def compiler_answers() -> dict[str, float]:
    """
    Every answer that analyses ask a compiler for, by name, as of one that is not known; see passes/compilers/compiler.h.
    """

class PhysicalDim:
    """One physical direction of a machine; see passes/model/cluster.h."""

    def __init__(self, size: int, kind: LinkKind, bandwidth: float, latency: float) -> None: ...

    @property
    def size(self) -> int: ...

    @property
    def kind(self) -> LinkKind: ...

    @property
    def bandwidth(self) -> float: ...

    @property
    def latency(self) -> float: ...

class AxisPart:
    """The part of a physical dim that a mesh axis covers."""

    def __init__(self, dim: int, size: int) -> None: ...

    @property
    def dim(self) -> int: ...

    @property
    def size(self) -> int: ...

class Cluster:
    """
    Rates of a device and links of every mesh axis; see passes/model/cluster.h. Raises ValueError.
    """

    def __init__(self, *, matmul_flops: Sequence[float], vector_flops: float, exponentials: float = 1000000000000.0, memory_bytes: float, memory_bandwidth: float, tile_rows: int, tile_columns: int, matmul_efficiency: float, memory_efficiency: float, attention_gradient_efficiency: float = 1.0, launch_seconds: float, dims: Sequence[PhysicalDim], axes: Sequence[Sequence[AxisPart]], overlap_slowdown: float = 1.0, overlap: float = 0.0, compiler: Mapping[str, float] = {}, corrections: tuple[float, float] = (1.0, 1.0)) -> None:
        """
        Rates of the matrix units are in the order of `Arithmetic`; corrections are of products and of other ops.
        """

    @property
    def dims(self) -> list[PhysicalDim]: ...

    @property
    def axes(self) -> list[list[AxisPart]]: ...

    @property
    def overlap(self) -> float: ...

    @property
    def memory_bytes(self) -> float: ...

class TensorType:
    """Shape and element width of a tensor."""

    def __init__(self, dims: Sequence[int], element_bits: int, is_on_host: bool = False) -> None: ...

    @property
    def dims(self) -> list[int]: ...

    @property
    def element_bits(self) -> int: ...

    @property
    def is_on_host(self) -> bool:
        """In the memory of the host, which has no collectives."""

class Factor:
    """One independent index of an op."""

    def __init__(self, size: int, kind: FactorKind = FactorKind.PASS_THROUGH, halo: int = 0, shares: Sequence[float] = []) -> None: ...

    @property
    def size(self) -> int: ...

    @property
    def kind(self) -> FactorKind: ...

    @property
    def halo(self) -> int: ...

    @property
    def shares(self) -> list[float]: ...

class RuleTensor:
    """One tensor of a rule: its type, and which factors make up each dim."""

    def __init__(self, type: int, dims: Sequence[Sequence[int]]) -> None: ...

    @property
    def type(self) -> int: ...

    @property
    def dims(self) -> list[list[int]]: ...

class Rule:
    """
    How an op's tensors are made of factors, and what it does with their elements; see passes/model/program.h.
    """

    def __init__(self, factors: Sequence[Factor], operands: Sequence[RuleTensor], results: Sequence[RuleTensor], *, work: Work = Work.OTHER, arithmetic: Arithmetic = Arithmetic.F32, flops: float = 0.0, is_cheap: bool = False, has_workspace: bool = False, operand_bytes: Sequence[float] = [], result_bytes: Sequence[float] = [], touched_as: int = -1, in_place_operand: int = -1, padded_bytes: float = 0.0, dilation: float = 1.0, expense: Expense = Expense.CHEAP, function: Function = Function.NONE, kernels: float = 1.0, scratch_bytes: float = 0.0, moved_again: float = 0.0, exponentials: float = 0.0, vector_flops: float = 0.0, transforms: Sequence[float] = [], adds_up: bool = False, part_operands: Sequence[int] = [], has_one_part: bool = False) -> None: ...

    @property
    def factors(self) -> list[Factor]: ...

    @property
    def operands(self) -> list[RuleTensor]: ...

    @property
    def results(self) -> list[RuleTensor]: ...

    @property
    def work(self) -> Work: ...

    @property
    def arithmetic(self) -> Arithmetic: ...

    @property
    def flops(self) -> float: ...

    @property
    def is_cheap(self) -> bool: ...

    @property
    def has_workspace(self) -> bool: ...

    @property
    def operand_bytes(self) -> list[float]: ...

    @property
    def result_bytes(self) -> list[float]: ...

    @property
    def touched_as(self) -> int: ...

    @property
    def in_place_operand(self) -> int: ...

    @property
    def padded_bytes(self) -> float: ...

    @property
    def dilation(self) -> float: ...

    @property
    def scratch_bytes(self) -> float: ...

    @property
    def moved_again(self) -> float: ...

    @property
    def exponentials(self) -> float: ...

    @property
    def vector_flops(self) -> float: ...

    @property
    def transforms(self) -> list[float]: ...

    @property
    def expense(self) -> Expense: ...

    @property
    def function(self) -> Function: ...

    @property
    def kernels(self) -> float: ...

    @property
    def adds_up(self) -> bool: ...

    @property
    def part_operands(self) -> list[int]: ...

    @property
    def has_one_part(self) -> bool: ...

class DimPin:
    """What the user fixed for one dim of a value."""

    def __init__(self, axes: Sequence[int] = [], is_open: bool = False, num_shards: int | None = None) -> None: ...

class Pin:
    """
    What the user fixed for a value; `replicated` are axes that cut no dim.
    """

    def __init__(self, value: int, dims: Sequence[DimPin], replicated: Sequence[int] = []) -> None: ...

class Loop:
    """A loop, by the range of its ops."""

    def __init__(self, first_op: int, last_op: int, trips: float, carried: Sequence[int], yielded: Sequence[int]) -> None: ...

    @property
    def first_op(self) -> int: ...

    @property
    def last_op(self) -> int:
        """Behind its ops."""

    @property
    def trips(self) -> float: ...

    @property
    def carried(self) -> list[int]: ...

    @property
    def yielded(self) -> list[int]: ...

class Argument:
    """One array that enters the program."""

    def __init__(self, value: int, is_donated: bool = False) -> None: ...

    @property
    def value(self) -> int: ...

    @property
    def is_donated(self) -> bool: ...

class Program:
    """A module as the core sees it; see passes/model/program.h."""

    def __init__(self, *, axis_sizes: Sequence[int], types: Sequence[TensorType], rules: Sequence[Rule], value_type: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], value_is_free: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], op_rule: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], op_trips: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], operand_offset: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], operands: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], operand_kept: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], result_offset: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], results: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], join_source: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], join_target: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], join_trips: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], pins: Sequence[Pin], op_after: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, op_until: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, loops: Sequence[Loop] = [], arguments: Sequence[Argument] = [], program_results: Sequence[int] = [], early: Sequence[int] = [], any_order: Sequence[int] = [], all_to_all: bool = True) -> None:
        """
        Fields of all ops and values, and of what they read and make, one array each.
        """

    def changed(self, *, axis_sizes: Sequence[int], pins: Sequence[Pin], kept_operands: Sequence[tuple[int, int]] = [], whole_factors: Sequence[tuple[int, int]] = [], held_operands: Sequence[Sequence[tuple[int, int]]] = [], op_trips: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> Program:
        """
        The same program on another mesh and with other pins; besides, (op, operand) that are not resharded, and (op, factor) that are not cut. Each list of (op, operand) of `held_operands` reads a copy of its one value, which is a new value that pins may name: the last ones, in this order. `op_trips` says how often each op runs.
        """

    def resized(self, examples: float, other: Program, other_examples: float, wanted: float) -> Program | None:
        """
        The step in micro-batches of `wanted` examples, by two readings of others; None: they differ in more than that. See passes/model/resized.h.
        """

    def with_bodies(self, bodies: Sequence[tuple[int, float]]) -> Program:
        """
        The same program with these computations that are one device's part: the op before each, and the bytes that it needs beside what it reads and makes.
        """

    @property
    def num_values(self) -> int: ...

    @property
    def num_ops(self) -> int: ...

    @property
    def op_trips(self) -> list[float]: ...

    @property
    def makers(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """For each value the op that makes it; -1: none does."""

    def rule_of(self, op: int) -> Rule: ...

    def operands_of(self, op: int) -> list[int]:
        """The values that an op reads; -1: none."""

    def readers_of(self, values: Sequence[int]) -> list[tuple[int, int]]:
        """(op, operand) of all ops that read one of the values, in order."""

    def moved_by(self, ops: Sequence[int]) -> list[tuple[int, int, int]]:
        """
        What ops make that hand on a value, the op that makes what they read, and the first one behind that reads it; -1: none.
        """

    @property
    def joins(self) -> list[tuple[int, int]]:
        """(source, target) of each."""

    @property
    def loops(self) -> list[Loop]: ...

    @property
    def arguments(self) -> list[Argument]: ...

    @property
    def results(self) -> list[int]: ...

class OpClass:
    """What all ops of one class have in common."""

    def __init__(self, *, is_special: bool, num_placed: int, is_free: bool, is_broadcast: bool, only_moves: bool, is_cast: bool, is_zero: bool, is_update: bool, is_sum: bool, result_types: Sequence[int]) -> None: ...

class RegionBlock:
    """The first block of a region."""

    @property
    def first_op(self) -> int: ...

    @property
    def last_op(self) -> int: ...

    @property
    def arguments(self) -> list[int]: ...

class BuilderMark:
    """How far a program got."""

    @property
    def op(self) -> int: ...

    @property
    def join(self) -> int: ...

class RoundedOperand:
    """A cast that is an op of the program alone."""

    @property
    def op(self) -> int: ...

    @property
    def source(self) -> int: ...

    @property
    def result(self) -> int: ...

    @property
    def position(self) -> int: ...

class UnreadCast:
    """
    An operand that the program reads as it was before a cast of the module, which nothing else reads.
    """

    @property
    def cast(self) -> int: ...

    @property
    def reader(self) -> int: ...

    @property
    def result(self) -> int: ...

    @property
    def position(self) -> int: ...

class ReadModule:
    """A module by numbers, as it was read."""

    def classes(self) -> list[int]:
        """The first op of each class."""

    def class_of(self, op: int) -> int: ...

class ProgramBuilder:
    """Fills a program op after op; see passes/importer/builder.h."""

    def __init__(self, bytecode: bytes) -> None: ...

    @property
    def num_module_ops(self) -> int: ...

    def class_of(self, arg: int, /) -> int: ...

    def end(self, arg: int, /) -> int: ...

    def operands(self, arg: int, /) -> list[int]:
        """Values of the module that an op reads."""

    def results(self, arg: int, /) -> list[int]:
        """Values of the module that an op makes."""

    def blocks(self, arg: int, /) -> list[RegionBlock]:
        """First block of each region."""

    def new_value(self, type: int, is_free: bool = False) -> int: ...

    @property
    def num_values(self) -> int: ...

    @property
    def num_ops(self) -> int: ...

    @property
    def last_added(self) -> int:
        """The op that the last one of the module is that was added; -1: none."""

    def type_of(self, arg: int, /) -> int: ...

    def is_free(self, arg: int, /) -> bool: ...

    def values_of(self, arg: Sequence[int], /) -> list[int]: ...

    def bind(self, arg0: Sequence[int], arg1: Sequence[int], /) -> None: ...

    def set_on_host(self, arg: int, /) -> None: ...

    def set_marked(self, arg: int, /) -> None: ...

    def set_read(self, value: int) -> None:
        """An op that is none of the program reads a value."""

    def add_plain(self, op: int, end: int, trips: float, op_class: Callable[[int], OpClass], rule: Callable[[int, Sequence[int], Sequence[int]], int], rounding: Callable[[int], tuple[int, int]]) -> int:
        """Read ops up to the first special one, or to `end`; where it stopped."""

    def add(self, op: int, trips: float, op_class: Callable[[int], OpClass], rule: Callable[[int, Sequence[int], Sequence[int]], int], rounding: Callable[[int], tuple[int, int]], result_types: Sequence[int] | None = None) -> None:
        """Read one op as if it were plain."""

    def alias(self, arg0: int, arg1: Sequence[int], /) -> None: ...

    def operands_of(self, program_op: int) -> list[int]:
        """Values that an op of the program reads."""

    def set_operands(self, arg0: int, arg1: Sequence[int], arg2: Sequence[bool], /) -> None: ...

    @property
    def first_ops(self) -> list[int]:
        """The first op of each class."""

    def round_operands_of(self, arg: Sequence[int], /) -> None: ...

    @property
    def num_rounded(self) -> int: ...

    def forget_rounded(self, since: int) -> None: ...

    @property
    def rounded_operands(self) -> list[RoundedOperand]: ...

    @property
    def unread_casts(self) -> list[UnreadCast]: ...

    def join(self, arg0: int, arg1: int, arg2: float, /) -> None: ...

    def mark(self) -> BuilderMark: ...

    def scale_trips(self, arg0: BuilderMark, arg1: float, /) -> None: ...

    @property
    def host_depth(self) -> int: ...

    @host_depth.setter
    def host_depth(self, arg: int, /) -> None: ...

    @property
    def has_barriers(self) -> bool: ...

    @has_barriers.setter
    def has_barriers(self, arg: bool, /) -> None: ...

    def wait_for(self, arg: Sequence[int], /) -> int: ...

    def set_after(self, arg0: Sequence[int], arg1: int, /) -> None: ...

    def pass_after(self, arg0: Sequence[int], arg1: Sequence[int], /) -> None: ...

    def set_makers(self, arg0: Sequence[int], arg1: int, /) -> None: ...

    @property
    def read_ops(self) -> list[int]: ...

    @property
    def op_classes(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """
        The class of each op that was read; ops of one differ in operands, regions and locations only.
        """

    @property
    def result_classes(self) -> list[int]:
        """The same of each of `result_values`."""

    @property
    def op_locations(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """A number for each op that was read, equal for equal locations."""

    @property
    def result_values(self) -> list[tuple[int, list[int]]]:
        """Every op with results, in order, and the program's value of each."""

    @property
    def op_rules(self) -> list[int]: ...

    @property
    def types(self) -> list[int]: ...

    @property
    def are_free(self) -> list[bool]: ...

    def program(self, *, axis_sizes: Sequence[int], types: Sequence[TensorType], rules: Sequence[Rule], pins: Sequence[Pin], loops: Sequence[Loop], arguments: Sequence[Argument], results: Sequence[int], early: Sequence[int], any_order: Sequence[int], all_to_all: bool) -> Program:
        """The program; nothing can be added any more."""

    def take_module(self) -> ReadModule:
        """The module as it was read; nothing can be asked any more."""

class Where(enum.Enum):
    """Where an op runs."""

    BEFORE = 0

    LOOP = 1

    AFTER = 2

class CutKind(enum.Enum):
    """How an op is cut into micro-batches."""

    PLAIN = 0
    """By its factors."""

    IDENTITY = 1
    """Result k is operand k."""

    LOOP = 2

    BRANCHES = 3

class Linear(enum.Enum):
    """In which operands an op is linear."""

    NONE = 0

    TOGETHER = 1
    """In all data operands at once, as an addition."""

    EACH = 2
    """In every data operand by itself, as a product."""

class Why(enum.StrEnum):
    """Why an op cannot be cut into micro-batches."""

    MIXES = 'mixes'
    """It reads a sum that is not finished."""

    EXAMPLES = 'examples'
    """It combines examples."""

    PART = 'part'
    """It needs the whole dim, or knows no rule."""

    UNEVEN = 'uneven'
    """The parts are no part of one factor."""

    NO_SUM = 'no sum'
    """It reduces, but does not add."""

    CARRIED = 'carried'
    """A loop carries two kinds of it."""

class OpCut:
    """How all ops of one class are cut; see passes/micro_batch/times.h."""

    def __init__(self, *, kind: CutKind = CutKind.PLAIN, factors: Sequence[Factor] = [], operands: Sequence[Sequence[Sequence[int]]] = [], results: Sequence[Sequence[Sequence[int]]] = [], adds: bool = False, linear: Linear = Linear.NONE, data: Sequence[int] = [], added_to: int = -1, is_early: bool = False, is_heavy: bool = False, is_zero: bool = False, is_free: bool = False) -> None: ...

class SlicedValue:
    """A value that is a slice in the loop."""

    @property
    def op(self) -> int: ...

    @property
    def region(self) -> int:
        """Whose argument it is; -1: a result."""

    @property
    def index(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def stride(self) -> int: ...

class OperandUse:
    """An operand of an op, by numbers."""

    @property
    def op(self) -> int: ...

    @property
    def operand(self) -> int: ...

class MadeResult:
    """A result of an op, by numbers."""

    @property
    def op(self) -> int: ...

    @property
    def result(self) -> int: ...

class NeededPart:
    """The part of an operand that a micro-batch reads."""

    @property
    def op(self) -> int: ...

    @property
    def operand(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def stride(self) -> int: ...

class MicroBatchTimes:
    """When values are known; see passes/micro_batch/times.h."""

    @property
    def slices(self) -> list[SlicedValue]: ...

    @property
    def where(self) -> list[Where]:
        """Where each op of `main` runs; it says nothing of others."""

    @property
    def needs(self) -> list[NeededPart]: ...

    @property
    def once(self) -> list[OperandUse]: ...

    @property
    def captured(self) -> list[OperandUse]: ...

    @property
    def counting(self) -> list[int]: ...

    @property
    def passed(self) -> list[MadeResult]: ...

    @property
    def each(self) -> list[int]: ...

    @property
    def whole(self) -> list[int]: ...

    @property
    def sums(self) -> list[MadeResult]: ...

    @property
    def stacks(self) -> list[MadeResult]: ...

    @property
    def last(self) -> list[MadeResult]: ...

    @property
    def means(self) -> list[MadeResult]: ...

class CannotMicroBatch(Exception):
    pass

def micro_batch_times(bytecode: bytes, *, main: int, arguments: Sequence[int], micro_batches: int, each: Sequence[int], describe: Callable[[int], OpCut]) -> MicroBatchTimes:
    """
    When each value is known; raises CannotMicroBatch(why, op, sum, heavy).
    """

class ListWork:
    """
    A piece of work of every micro-batch; see passes/pipeline/list_schedule.h.
    """

    def __init__(self, *, stage: int, name: int, rank: int, seconds: float, after: Sequence[int], ways: Sequence[float], ahead: int, kept: int, is_deferred: bool) -> None: ...

class ListedRuns:
    """When every work is done."""

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""

    def all(self) -> list[tuple[int, int, float, float]]:
        """(work, micro_batch, start, end) by their start and stage."""

def list_schedule(works: Sequence[ListWork], *, micro_batches: int, together: int, ahead: Sequence[int], kept: Sequence[int], are_raised: bool, patience: float) -> ListedRuns | None:
    """
    The schedule in which no stage waits while it could do something; limits that are empty are none. None: limits let no stage go on.
    """

class WhyNoStages(enum.StrEnum):
    """Why a step has no such stages."""

    ORDER = 'order'
    """A mark wants what others do not leave."""

    FEW = 'few'
    """There are fewer units than stages."""

    MARKS = 'marks'
    """Marks leave a stage without a unit."""

    LOOP = 'loop'
    """One loop takes more than a stage may."""

class StageOp:
    """What all ops of one class have in common; see passes/pipeline/body.h."""

    def __init__(self, *, is_heavy: bool, is_free: bool, is_light: bool, is_view: bool, is_loop: bool, is_add: bool, mark: int, result_bytes: Sequence[float]) -> None: ...

class StagePlace:
    """Where an op is made."""

    @property
    def op(self) -> int: ...

    @property
    def stage(self) -> int: ...

    @property
    def level(self) -> int: ...

class StageCrossing:
    """What crosses between two stages, both ways, in a micro-batch."""

    @property
    def op(self) -> int:
        """The first unit behind the cut."""

    @property
    def bytes(self) -> float: ...

    @property
    def values(self) -> int: ...

class PipelineStages:
    """The stages of a train step; see passes/pipeline/stages.h."""

    @property
    def places(self) -> list[StagePlace]: ...

    @property
    def cuts(self) -> list[StageCrossing]: ...

    @property
    def split_sums(self) -> list[int]: ...

    @property
    def seconds(self) -> list[float]: ...

    @property
    def least_seconds(self) -> float: ...

    @property
    def units(self) -> int: ...

class StageWork:
    """
    What a stage does of a micro-batch at one level; see passes/pipeline/works.h.
    """

    @property
    def stage(self) -> int: ...

    @property
    def level(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def deferred_seconds(self) -> float: ...

    @property
    def after(self) -> list[int]: ...

class LineCuts:
    """A cut of a line; see passes/pipeline/cuts.h."""

    @property
    def first_units(self) -> list[int]: ...

    @property
    def slowest_seconds(self) -> float: ...

    @property
    def bytes(self) -> float: ...

class LoopShare:
    """Parts of a loop over layers; see passes/pipeline/loop_shares.h."""

    @property
    def first_stage(self) -> int: ...

    @property
    def parts(self) -> int: ...

class NoPipelineStages(Exception):
    pass

class TimedStep:
    """
    A step that is cut into several numbers of stages; see passes/pipeline/stages.h.
    """

    def __init__(self, bytecode: bytes, *, main: int, loop: int, argument_bytes: Sequence[float], seconds: Sequence[float], describe: Callable[[int], StageOp]) -> None: ...

    def cut(self, *, stages: int, chunks: int, slack: float) -> PipelineStages:
        """
        The stage and level of each op; raises NoPipelineStages(why, op, stage, share, units).
        """

    def parts(self, *, stages: int, chunks: int, slack: float) -> PipelineStages:
        """As `cut`, without places and sums that are split."""

    def parts_on_line(self, *, stages: int, chunks: int, slack: float) -> PipelineStages:
        """About as `parts`, and faster: everything stays at its unit."""

    def works(self, stages: PipelineStages) -> list[StageWork]:
        """What its stages do for a micro-batch."""

def stage_works(bytecode: bytes, *, main: int, loop: int, places: Sequence[tuple[int, int, int]], seconds: Sequence[float]) -> list[StageWork]:
    """
    What stages do for a micro-batch, by the (op, stage, level) of its ops, ascending.
    """

def line_cuts(seconds: Sequence[float], bytes: Sequence[float], first: Sequence[int], last: Sequence[int], *, stages: int, slack: float, chunks: int = 1) -> LineCuts | None:
    """
    The cut of units with fewest bytes in which the slowest stage takes at most `slack` times the least; None: there is none.
    """

def loop_shares(seconds: Sequence[float], parts: Sequence[Sequence[int]], *, stages: int, slack: float) -> list[LoopShare] | None:
    """
    Into how many equal parts each loop among spans is cut, and where the first is; spans without parts are no loops. None: they do not fill the stages.
    """

class TaskTime(enum.StrEnum):
    """The part of a step with a task."""

    BEFORE = 'before'
    """Before the loop."""

    LOOP = 'loop'
    """Once for every micro-batch."""

    AFTER = 'after'
    """Behind the loop."""

class TaskOp:
    """What all ops of one class have in common; see passes/pipeline/tasks.h."""

    def __init__(self, *, is_copied: bool, is_heavy: bool) -> None: ...

class TaskItem:
    """An op of a task; see passes/pipeline/tasks.h."""

    @property
    def op(self) -> int: ...

    @property
    def first_result(self) -> int: ...

    @property
    def reads(self) -> list[int]: ...

class StageOps:
    """Ops that run together; see passes/pipeline/tasks.h."""

    @property
    def time(self) -> TaskTime: ...

    @property
    def level(self) -> int: ...

    @property
    def stage(self) -> int: ...

    @property
    def is_deferred(self) -> bool: ...

    @property
    def items(self) -> list[TaskItem]: ...

    @property
    def reads(self) -> list[int]: ...

class StageTasks:
    """The tasks of a step; see passes/pipeline/tasks.h."""

    @property
    def tasks(self) -> list[StageOps]: ...

    @property
    def made_by(self) -> list[int]: ...

    @property
    def not_carried(self) -> int | None: ...

class TaskReader:
    """A step whose ops say their stages; see passes/pipeline/tasks.h."""

    def __init__(self, bytecode: bytes) -> None: ...

    def result(self, op: int, number: int) -> int:
        """A value, by its op."""

    def argument(self, op: int, region: int, number: int) -> int:
        """A value, by the region whose argument it is."""

    @property
    def makers(self) -> list[int]:
        """
        By value: the op whose result it is; -1: it is an argument of a region.
        """

    def operands(self, op: int) -> list[int]:
        """Values that an op reads itself."""

    def say(self, *, main: int, loop: int, stages: Sequence[int], own: Sequence[int], held: Sequence[int], carried: Sequence[tuple[int, int, int]]) -> None:
        """What its ops say; `carried`: argument, update and start of each."""

    def tasks(self, defers: bool, describe: Callable[[int], TaskOp]) -> StageTasks:
        """The tasks; `describe` is asked of an op of each class."""

    def kinds(self, found: StageTasks) -> list[int]:
        """
        A number for each task, equal for those that do the same, of all that were asked for.
        """

    def positions(self, task: StageOps, values: Sequence[int]) -> list[int]:
        """Which of the results of a task's ops these values are."""

class Reshard:
    """What every device sends."""

    @property
    def bytes(self) -> float: ...

    @property
    def collectives(self) -> int: ...

class Step:
    """One collective of a reshard; see passes/cost/collectives.h."""

    def __init__(self, kind: CollectiveKind, axes: int, participants: int, held_bytes: float) -> None: ...

    @property
    def kind(self) -> CollectiveKind: ...

    @property
    def axes(self) -> int:
        """One bit a mesh axis."""

    @property
    def participants(self) -> int: ...

    @property
    def held_bytes(self) -> float:
        """By a device before the step."""

    @property
    def sent_bytes(self) -> float:
        """By a device, on a ring."""

class Compute:
    """What one device does for an op, once."""

    @property
    def flops(self) -> float: ...

    @property
    def bytes(self) -> float: ...

    @property
    def seconds(self) -> float: ...

def reshard(shape: Sequence[int], element_bits: int, from_dims: Sequence[Sequence[int]], to_dims: Sequence[Sequence[int]], partial_axes: int, axis_sizes: Sequence[int]) -> Reshard:
    """What it takes to go from one sharding to another."""

def reshard_steps(shape: Sequence[int], element_bits: int, from_dims: Sequence[Sequence[int]], to_dims: Sequence[Sequence[int]], partial_axes: int, axis_sizes: Sequence[int], all_to_all: bool = True) -> list[Step]:
    """Its collectives in order."""

def reshard_path(shape: Sequence[int], from_dims: Sequence[Sequence[int]], to_dims: Sequence[Sequence[int]], axis_sizes: Sequence[int], all_to_all: bool = True) -> list[list[list[int]]]:
    """
    The shardings on the cheapest path, one a step; the axes are those that move.
    """

def reshard_steps_in_order(shape: Sequence[int], element_bits: int, from_dims: Sequence[Sequence[int]], to_dims: Sequence[Sequence[int]], axis_sizes: Sequence[int], all_to_all: bool = True) -> list[Step]:
    """The same by rules instead of a search, for tests."""

def reshard_seconds(shape: Sequence[int], element_bits: int, from_dims: Sequence[Sequence[int]], to_dims: Sequence[Sequence[int]], partial_axes: int, cluster: Cluster, axis_sizes: Sequence[int]) -> float:
    """Seconds of those collectives, one after the other."""

def collective_seconds(step: Step, cluster: Cluster, axis_sizes: Sequence[int]) -> float:
    """Seconds of one collective."""

def collective_as_compiled(step: Step, cluster: Cluster, axis_sizes: Sequence[int]) -> Step:
    """The collective that the cluster's compiler writes."""

def collective_compiled_seconds(step: Step, cluster: Cluster, axis_sizes: Sequence[int]) -> float:
    """
    Seconds of what the cluster's compiler writes, with what it does to prepare it.
    """

class FusedWork:
    """An op in the kernel of a matmul; see passes/model/kernel_part.h."""

    def __init__(self, tensor: int, bytes: float, packed: float = 0.0, flops: float = 0.0) -> None: ...

    @property
    def tensor(self) -> int: ...

    @property
    def bytes(self) -> float: ...

    @property
    def packed(self) -> float: ...

    @property
    def flops(self) -> float: ...

def aligned_share(count: float, bits: float, worst: float) -> float:
    """
    What accesses to rows of `count` elements reach of those to rows that begin at multiples of 16 bytes; see passes/cost/compute.h.
    """

def compute(rule: Rule, types: Sequence[TensorType], factor_axes: Sequence[Sequence[int]], reads: Sequence[int], writes: Sequence[bool], cluster: Cluster, axis_sizes: Sequence[int], fused: Sequence[FusedWork] = [], padding: Sequence[float] = []) -> Compute:
    """
    One device's part of an op; see passes/cost/compute.h. The rule's tensors have their types by number.
    """

class SymbolicCandidate:
    """A cut of a matmul at one level, and what it costs."""

    @property
    def cut(self) -> MatMulCut: ...

    @property
    def factor(self) -> int:
        """What is cut; -1 for none, and for what is not possible."""

    @property
    def op_cost(self) -> float: ...

    @property
    def reshard_cost(self) -> float: ...

class SymbolicChoice:
    """
    The choice of one matmul at one level; see passes/planning/symbolic_programming.h.
    """

    @property
    def op(self) -> int: ...

    @property
    def axis(self) -> int: ...

    @property
    def parts(self) -> int: ...

    @property
    def sizes(self) -> list[float]: ...

    @property
    def has_batch(self) -> bool: ...

    @property
    def candidates(self) -> list[SymbolicCandidate]: ...

    @property
    def chosen(self) -> int: ...

def symbolic_matmul_costs(sizes: Sequence[float], has_batch: bool, mem_coeff: float, parts: int = 2) -> list[float]:
    """
    Elements that each cut costs, in the order batch, expert, i, j, k, none; sizes are (batch, i, k, j).
    """

def symbolic_reshard(shape: Sequence[int], from_dims: Sequence[Sequence[int]], to_dims: Sequence[Sequence[int]], axis_sizes: Sequence[int]) -> float:
    """Elements charged for going from one sharding to another."""

class StreamTask:
    """
    What takes the cores, links, or both; see passes/planning/stream_schedule.h.
    """

    def __init__(self, seconds: float, *, computes: bool = False, links: int = 0, after: Sequence[int] = []) -> None:
        """`links`: one bit a stream."""

class TaskTimes:
    """When a task runs, in seconds."""

    @property
    def begin(self) -> float: ...

    @property
    def end(self) -> float: ...

    @property
    def exposed(self) -> float: ...

    @property
    def slack(self) -> float: ...

class StreamSchedule:
    """Tasks of a step on their streams."""

    @property
    def seconds(self) -> float: ...

    @property
    def tasks(self) -> list[TaskTimes]: ...

def scheduled_from_end(tasks: Sequence[StreamTask], slowdown: float) -> StreamSchedule:
    """Each task as late as its readers let it. Raises ValueError."""

class ReshardTable:
    """
    The reshards of a plan, in columns of one row each; see `PlannedReshard` in passes/planning/plan.h.
    """

    def __len__(self) -> int: ...

    @property
    def place(self) -> list[Place]: ...

    @property
    def index(self) -> list[int]:
        """Number of the op, or of the join."""

    @property
    def position(self) -> list[int]:
        """Which operand or result."""

    @property
    def value(self) -> list[int]: ...

    @property
    def from_sharding(self) -> list[int]:
        """Row of the plan's shardings."""

    @property
    def to_sharding(self) -> list[int]: ...

    @property
    def partial_axes(self) -> list[int]:
        """One bit a mesh axis."""

    @property
    def bytes(self) -> list[float]:
        """What a device sends in one run."""

    @property
    def collectives(self) -> list[int]:
        """How many."""

    @property
    def trips(self) -> list[float]:
        """How often it runs."""

class CollectiveTable:
    """
    The collectives of all reshards of a plan with costs, in columns of one row each.
    """

    def __len__(self) -> int: ...

    @property
    def reshard(self) -> list[int]:
        """Row of the reshard that it is a step of."""

    @property
    def kind(self) -> list[CollectiveKind]: ...

    @property
    def axes(self) -> list[int]:
        """One bit a mesh axis."""

    @property
    def participants(self) -> list[int]: ...

    @property
    def held_bytes(self) -> list[float]:
        """By a device before it."""

    @property
    def seconds(self) -> list[float]:
        """Seconds of one run."""

    @property
    def exposed_seconds(self) -> list[float]:
        """Seconds of all runs of a step in which nothing else is done."""

    @property
    def slack_seconds(self) -> list[float]:
        """How much longer one run could take until something waited for it."""

class CorePlan:
    """A plan by numbers; see passes/planning/plan_table.h."""

    @property
    def shardings(self) -> list[list[list[int]]]: ...

    @property
    def value_sharding(self) -> list[int]: ...

    @property
    def strategies(self) -> list[tuple[list[int], list[int]]]:
        """Rows of the shardings of operands and of results; -1: rank 0."""

    @property
    def op_strategy(self) -> list[int]: ...

    @property
    def reshards(self) -> ReshardTable: ...

    @property
    def resharded_bytes(self) -> float: ...

    @property
    def objective(self) -> float: ...

    @property
    def lower_bound(self) -> float: ...

    @property
    def levels(self) -> int: ...

    @property
    def collectives(self) -> CollectiveTable: ...

    @property
    def axis_groups(self) -> list[list[int]]: ...

    @property
    def step_seconds(self) -> float: ...

    @property
    def compute_seconds(self) -> float: ...

    @property
    def communication_seconds(self) -> float: ...

    @property
    def scheduled_seconds(self) -> float:
        """
        Seconds of the step with hidden what the compiler hides; see PlanSchedule in passes/planning/plan_schedule.h.
        """

    @property
    def all_hidden_seconds(self) -> float: ...

    @property
    def peak_bytes(self) -> float: ...

    @property
    def peak_point(self) -> int: ...

    @property
    def peak_values(self) -> list[tuple[int, float]]:
        """(value, bytes), largest first."""

    @property
    def limited_bytes(self) -> float:
        """What a search held to its limit of memory: of a device, or of a stage."""

    @property
    def mem_coeff(self) -> float: ...

    @property
    def lower_bound_seconds(self) -> float: ...

    @property
    def bound_is_joint(self) -> bool: ...

    @property
    def op_classes(self) -> int: ...

    @property
    def rounds(self) -> int: ...

    @property
    def phases(self) -> list[tuple[str, float]]:
        """(name, seconds) of the search."""

    @property
    def op_seconds(self) -> list[float]: ...

    @property
    def op_flops(self) -> list[float]: ...

    @property
    def op_bytes(self) -> list[float]: ...

    @property
    def op_packed_bytes(self) -> list[float]: ...

    @property
    def live_bytes(self) -> list[float]: ...

    @property
    def transient_bytes(self) -> list[float]: ...

class DoesNotFit(Exception):
    pass

class GivenUp(Exception):
    pass

class Contradiction(Exception):
    pass

def propagate(program: Program, *, max_options: int = 160, sweeps: int = 2, seed: int = 0) -> CorePlan:
    """
    The plan of least resharding; raises Contradiction(message, op, value).
    """

def recursive_programming(program: Program, cluster: Cluster, *, mem_coeff: float | None, memory_limit: float, sweeps: int = 2, joint: bool = True, fold: bool = True, merge_axes: bool = True, all_prices: bool = False, most_seconds: float = float('inf'), time_limit: float = float('inf'), seed: int = 0, stages: int = 1, give_up_seconds: float = float('inf'), show: Callable[[str, int, float, Sequence[int], bool], bool] | None = None) -> CorePlan:
    """
    The plan of least step time that fits; raises Contradiction(message, op, value) or DoesNotFit(message, peak bytes, limit, [(value, bytes)]), or GivenUp(message, seconds) of a first plan that takes longer than `give_up_seconds`. `show` is called some times a second with phase, number of plans, seconds of the fastest that fits, its mesh, and whether Ctrl-C was pressed; where it returns false, the search ends with the best plan so far. What it raises, or another handler of a signal, the search raises.
    """

def estimate(program: Program, cluster: Cluster, *, shardings: Sequence[Sequence[Sequence[int]]], value_sharding: Sequence[int], strategies: Sequence[tuple[Sequence[int], Sequence[int]]], op_strategy: Sequence[int], known: CorePlan | None = None) -> CorePlan:
    """
    What a given plan costs, by the numbers of `CorePlan`: a table of shardings, the sharding of each value, a table of strategies, the strategy of each op. `known`: another plan of the program for the same compiler.
    """

class AlikeOps:
    """Groups of ops that are alike."""

    @property
    def group_of(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """For each op the number of its group."""

    @property
    def first(self) -> list[int]:
        """For each group its first op."""

    @property
    def count(self) -> list[int]:
        """How many ops it has."""

    @property
    def occurrence(self) -> list[int]:
        """How many ops before its first one stand in the same spot."""

def alike_ops(program: Program, plan: CorePlan, *, kinds: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], places: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], spots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> AlikeOps:
    """
    Groups of ops with one kind, place, strategy, seconds and runs, in the order of their first ops. Spots are small numbers from 0 on.
    """

def replan(program: Program, cluster: Cluster, previous: CorePlan, *, mem_coeff: float | None, memory_limit: float, price: float | None = None, sweeps: int = 2, time_limit: float = float('inf'), seed: int = 0, stages: int = 1) -> CorePlan:
    """
    A plan of the same program, on the mesh of `previous`, with other pins. Memory has `price` at first, in the unit of mem_coeff, else that of `previous`.
    """

def replan_near(program: Program, cluster: Cluster, previous: CorePlan, *, mem_coeff: float | None, memory_limit: float, price: float | None = None, sweeps: int = 2, time_limit: float = float('inf'), seed: int = 0, stages: int = 1) -> CorePlan | None:
    """
    As `replan`, without the whole search where the previous plan leads nowhere: None.
    """

def recursive_programming_network(program: Program, cluster: Cluster) -> SolverProblem:
    """
    The cost network in seconds of all mesh axes together, for other solvers and for tests.
    """

def symbolic_programming(program: Program, mem_coeff: float, *, max_options: int = 160, sweeps: int = 2, seed: int = 0) -> tuple[CorePlan, list[SymbolicChoice]]:
    """
    The plan of least symbolic cost, and what each matmul could choose at each level; raises Contradiction(message, op, value).
    """

def propagation_network(program: Program, *, max_options: int = 160) -> SolverProblem:
    """
    The cost network of all mesh axes, or of the first one, for other solvers and for tests.
    """

class SolverTable:
    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...

    @property
    def cost(self) -> list[float]:
        """Row after row."""

class SolverTracePoint:
    @property
    def seconds(self) -> float: ...

    @property
    def cost(self) -> float: ...

    @property
    def lower_bound(self) -> float: ...

class SolverProblem:
    """For small networks: every list is copied when it is read."""

    @property
    def nodes(self) -> int: ...

    @property
    def edges(self) -> int: ...

    @property
    def option_offset(self) -> list[int]: ...

    @property
    def option_cost(self) -> list[float]: ...

    @property
    def edge_from(self) -> list[int]: ...

    @property
    def edge_to(self) -> list[int]: ...

    @property
    def edge_table(self) -> list[int]: ...

    @property
    def edge_weight(self) -> list[float]: ...

    @property
    def tables(self) -> list[SolverTable]: ...

class SolverMessages:
    """
    Where message passing ended on one problem, for another one much like it.
    """

    def __init__(self) -> None: ...

    @property
    def nodes(self) -> list[int]:
        """
        By node of the other problem, the node that it takes after, or -1; empty: nodes are the same.
        """

    @nodes.setter
    def nodes(self, arg: Sequence[int], /) -> None: ...

class SolverSolution:
    @property
    def choice(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def cost(self) -> float: ...

    @property
    def lower_bound(self) -> float: ...

    @property
    def peak_memory(self) -> int: ...

    @property
    def stop_reason(self) -> StopReason: ...

    @property
    def iterations(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def trace(self) -> list[SolverTracePoint]: ...

    @property
    def priced_point(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def price(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

    @property
    def diagnosis(self) -> str: ...

class SolverCertificate:
    @property
    def lower_bound(self) -> float: ...

    @property
    def point(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def price(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

    @property
    def merged_node(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def merged_into(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def edge_from(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def edge_to(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def message(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def make_solver_problem(option_offset: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], option_cost: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], option_memory: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], edge_from: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], edge_to: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], edge_table: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], edge_weight: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], table_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], table_cols: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], table_entries: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], live_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], live_last: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], memory_limit: int | None) -> SolverProblem: ...

def solve(problem: SolverProblem, seconds: float, seed: int, max_iterations: int, threads: int, gap: float, enumerate_below: float, start: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, progress: object | None, exact_operations: float = 20000000.0, known_messages: SolverMessages | None = None) -> SolverSolution: ...

def cost_of(problem: SolverProblem, choice: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> float: ...

def certify(problem: SolverProblem, point: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], price: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], passes: int, seconds: float) -> SolverCertificate: ...

class MemoryTables:
    """
    Which values of a program have buffers, and when; see passes/memory/program_memory.h.
    """

    @property
    def live_ranges(self) -> list[tuple[int, int]]:
        """By value: the first program point, and the one behind the last."""

    @property
    def reads(self) -> list[list[int]]:
        """By op: how many kernels read each operand from memory there."""

    @property
    def writes(self) -> list[list[bool]]:
        """By op: whether it stores each result."""

    @property
    def points(self) -> list[int]:
        """By op: the program point at which it runs."""

    @property
    def fused(self) -> list[list[FusedWork]]:
        """By op: the others in the kernel of a matmul."""

    @property
    def packs(self) -> list[bool]:
        """
        By op: its reductions and narrow results count, as the first in their kernel.
        """

    @property
    def launched(self) -> list[bool]:
        """By op: whether a kernel of its own ends there, if it writes anything."""

class Buffer:
    """
    The program points [first, last) at which a value takes memory, and its bytes.
    """

    def __init__(self, first: int, last: int, bytes: float) -> None: ...

class Peak:
    """The worst program point of a plan."""

    @property
    def bytes(self) -> float: ...

    @property
    def point(self) -> int: ...

    @property
    def live(self) -> list[tuple[int, float]]:
        """(value, bytes) of what lives then, largest first."""

def memory_tables(program: Program, compiler: Mapping[str, float] = {}) -> MemoryTables:
    """
    When and where values of a program are in memory. The compiler is its answers by name.
    """

def reused_buffers(buffers: Sequence[Buffer], made: Sequence[tuple[int, int]], points: int) -> list[int]:
    """
    By buffer: the one whose memory it uses, or -1; see passes/memory/buffer_reuse.h. `made`: (index, point) of results.
    """

def matmuls_that_wait(program: Program) -> list[bool]:
    """
    Whether each op is a matmul that waits; see passes/memory/waiting_matmuls.h.
    """

def peak(program: Program, shardings: Sequence[Sequence[Sequence[int]]], transients: Sequence[tuple[int, float]], compiler: Mapping[str, float] = {}) -> Peak:
    """
    Peak memory of a device. Shardings are axis lists by value and dim, transients (op, bytes).
    """

class Storage(enum.Enum):
    """Where a value is while others wait to read it."""

    KEPT = 0
    """
    In memory, whatever is chosen: arguments, results, scalars, what loops make.
    """

    STORED = 1
    """In memory, unless it is dropped and computed again."""

    FUSED = 2
    """Nowhere: the fusion that reads it computes it."""

    FREE = 3
    """Nowhere: made of constants."""

class BlockValue:
    """A value of a block."""

    @property
    def maker(self) -> int:
        """Position of the op that makes it; -1: an argument."""

    @property
    def storage(self) -> Storage: ...

    @property
    def bytes(self) -> float:
        """In the memory of one device."""

    @property
    def end(self) -> int:
        """Point from which its memory is free."""

    @property
    def is_parameter(self) -> bool:
        """Is it made of parameters alone?"""

    @property
    def in_program(self) -> int:
        """Its number in the program; -1: none."""

    @property
    def matmul(self) -> int:
        """
        Position of the matmul that it is stored for, if that is not its maker; else -1.
        """

class BlockOp:
    """An op of a block."""

    @property
    def point(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Seconds of all its runs, with what it sends."""

    @property
    def sends(self) -> bool:
        """Is its result sent between devices?"""

    @property
    def gathers(self) -> bool:
        """Is something made of parameters alone sent for it?"""

    @property
    def in_module(self) -> int: ...

    @property
    def in_program(self) -> int:
        """Its number in the program; -1: none."""

class RecomputedBlock:
    """The ops of a block as numbers; see passes/recomputation/block.h."""

    def __init__(self, num_points: int) -> None: ...

    def add_value(self, maker: int, storage: Storage, bytes: float, end: int, demanders: Sequence[int], *, is_counted: bool, is_parameter: bool) -> None:
        """All of them come before the first op."""

    def add_op(self, operands: Sequence[int], results: Sequence[int], point: int, ready: int, seconds: float, *, sends: bool, gathers: bool) -> None:
        """In the order of the block."""

    @property
    def num_values(self) -> int: ...

    @property
    def captured(self) -> list[int]:
        """Values that are made outside of the block."""

    def value(self, number: int) -> BlockValue: ...

    def op(self, position: int) -> BlockOp: ...

    @property
    def ops_in_module(self) -> list[int]:
        """The number of each op in the module."""

    @property
    def ops_in_program(self) -> list[int]:
        """The same in the program; -1: it is none there."""

    def operands(self, position: int) -> list[int]:
        """Values that an op reads, those its regions read behind its own."""

    def results(self, position: int) -> list[int]: ...

    def readers(self, number: int) -> list[int]:
        """Positions, in order, each once."""

    def gaps(self, stays: Sequence[int]) -> list[Gap]:
        """
        Values that may go while they wait, but for these of the program; see passes/recomputation/block.h.
        """

class Dropped:
    """A value that is not kept between two of its readers, by positions."""

    def __init__(self, number: int, *, early: int, late: int, middle: int) -> None: ...

    @property
    def number(self) -> int: ...

    @property
    def early(self) -> int:
        """The last reader before, or the maker."""

    @property
    def late(self) -> int:
        """The first reader behind."""

    @property
    def middle(self) -> int:
        """The point half way."""

class Gap:
    """The longest stretch in which a value only waits."""

    @property
    def value(self) -> Dropped: ...

    @property
    def first(self) -> int:
        """The first point of the program at which it waits."""

    @property
    def end(self) -> int:
        """The point at which it is read again."""

class Batch:
    """Ops that run again before one reader."""

    @property
    def position(self) -> int:
        """Position of the reader."""

    @property
    def ops(self) -> list[int]:
        """
        Positions of the originals, in the order in which the copies run; none if the reader finds all it needs among earlier copies.
        """

    @property
    def inputs(self) -> list[int]:
        """Values from memory that they read."""

class HostUse:
    """When a value on the host is read behind its gap."""

    @property
    def number(self) -> int: ...

    @property
    def first(self) -> int:
        """
        Position of the first op that reads it, or before which copies do that read it.
        """

    @property
    def end(self) -> int:
        """Point from which nobody reads it any more."""

class Clones:
    """
    Ops that run again for one set of dropped values, and what they change.
    """

    @property
    def batches(self) -> list[Batch]: ...

    @property
    def seconds(self) -> float:
        """
        Seconds of all ops that run again, less those that nobody needs any more.
        """

    @property
    def change(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,), writable=False)]:
        """Bytes that live more on a device from each point on."""

    @property
    def uses(self) -> list[HostUse]:
        """Values on the host meanwhile that are read again."""

    @property
    def last_read(self) -> list[int]:
        """
        For each value the position of the last op that needs it where it was made; -1: none.
        """

    def anchors(self, block: RecomputedBlock, reader: int, newest: int, below: int) -> tuple[int, list[int]]:
        """
        Values that the op at `reader` finds in memory and that are still needed; see passes/recomputation/clones.h.
        """

def clones_for(block: RecomputedBlock, dropped: Sequence[Dropped], sent: Sequence[Dropped], *, keep_sent: bool, keep_parameters: bool) -> Clones:
    """What has to run again; see passes/recomputation/clones.h."""

class Transfer:
    """One value that is sent over the link to the host."""

    def __init__(self, seconds: float, begins: int, needed: int) -> None: ...

    @property
    def seconds(self) -> float:
        """What it takes if the link sends nothing else."""

    @property
    def begins(self) -> int:
        """Number of the op before which it may begin."""

    @property
    def needed(self) -> int:
        """
        Number of the op that waits for it; the number of ops: only the end does.
        """

class Timetable:
    """When transfers are over."""

    @property
    def waited(self) -> float:
        """Seconds in which no op runs, all together."""

    @property
    def over(self) -> list[int]:
        """
        For each transfer the number of the first op that runs when it is over.
        """

def timetable(start: Sequence[float], transfers: Sequence[Transfer]) -> Timetable:
    """
    Send all transfers beside the ops; see passes/recomputation/host_link.h.
    """

class HostLink:
    """The link to the host; see passes/recomputation/host_link.h."""

    def __init__(self, busy: Sequence[float], loops: Sequence[tuple[int, int]], moved: Sequence[tuple[tuple[int, int], Transfer]], transfers: Sequence[Transfer], *, slowdown: float = 1.0) -> None: ...

    @property
    def is_used(self) -> bool:
        """Is anything sent?"""

    def delay(self) -> float:
        """
        Seconds that a step is longer: those waited, and what ops beside transfers take more.
        """

class LinkedBlock:
    """
    A block beside the link to the host; see passes/recomputation/fetches.h.
    """

    def __init__(self, block: RecomputedBlock, link: HostLink, op_at: Sequence[int], loop: tuple[int, int] | None) -> None: ...

class Fetch:
    """One value that is on the host for a while."""

    @property
    def number(self) -> int:
        """Number of the value in the block."""

    @property
    def gone(self) -> int:
        """Position of the op before which it has left the memory of the device."""

    @property
    def back(self) -> int:
        """Position of the op before which the link begins to bring it back."""

class StackChanges:
    """What is decided about stacks; see passes/recomputation/effects.h."""

    def __init__(self, block: RecomputedBlock, linked: LinkedBlock | None, seconds: float, change: Sequence[tuple[int, float]], moved: Sequence[tuple[tuple[int, int], Transfer]], computed: Sequence[tuple[tuple[int, int], float]]) -> None: ...

class Effect:
    """What decisions do, and what is written for them."""

    @property
    def excess(self) -> float:
        """Bytes above the limit, over all points of the program."""

    @property
    def seconds(self) -> float:
        """What they add to a step."""

    @property
    def live(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,), writable=False)]:
        """Bytes on one device at each point."""

    @property
    def clones(self) -> Clones: ...

    @property
    def fetches(self) -> list[Fetch]: ...

class Effects:
    """
    Answers for all sets of decisions about the same values; see passes/recomputation/effects.h.
    """

    def __init__(self, block: RecomputedBlock, live: Sequence[float], limit: float, members: Sequence[Dropped], send_seconds: Sequence[float], linked: LinkedBlock | None, *, keep_sent: bool, keep_parameters: bool) -> None: ...

    def effect(self, fates: bytes, stacks: StackChanges) -> Effect:
        """Fates of all values: 0 kept, 1 again, 2 to the host."""

    def answer(self, fates: bytes, stacks: StackChanges) -> tuple[float, float]:
        """The same: bytes above the limit, and seconds alone."""

    def least_excess(self, fates: bytes) -> float:
        """Bytes above the limit of that answer's at least, without stacks."""

class OpKind:
    """What all ops of one class are; see passes/recomputation/read_block.h."""

    def __init__(self, *, is_held: bool, is_free: bool, is_while: bool, runs_regions: bool, is_matmul: bool, is_elementwise: bool, makes_index: bool) -> None: ...

class PlannedBlocks:
    """The blocks of a planned module; see passes/recomputation/read_block.h."""

    def __init__(self, read: ReadModule, program: Program, plan: CorePlan, *, compiler: Mapping[str, float], rounded: Sequence[tuple[int, int]], kinds: Sequence[OpKind], main_op: int, parameters: Sequence[int], stores_behind_matmuls: bool) -> None: ...

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """
        Op and region of `main` and of the bodies of its loops, outer ones first.
        """

    def block(self, number: int, index_arguments: Sequence[int]) -> RecomputedBlock:
        """One of them. `index_arguments` are one integer each."""

    def ops_at(self, number: int, block: RecomputedBlock) -> list[int]:
        """
        By position: the first op of the program that runs there or behind it; one more for the end.
        """

    def seconds_besides(self, block: RecomputedBlock, plan: CorePlan, cluster: Cluster, groups: Sequence[Sequence[Dropped]], *, keep_sent: bool, keep_parameters: bool, num_rounds: int) -> list[float]:
        """
        What values add to a step besides `Clones.seconds`; see passes/recomputation/kernels_again.h. `block` is `main`, as it was read.
        """

    @property
    def points(self) -> list[int]:
        """Program point of each op."""

    @property
    def seconds(self) -> list[float]:
        """Seconds of all runs of each op, with what it sends."""

    @property
    def sends(self) -> list[bool]:
        """Is a result of each op sent?"""

    @property
    def bytes(self) -> list[float]:
        """Bytes of each value in the memory of one device."""

    @property
    def element_bytes(self) -> list[float]:
        """The same without the padding of tiles."""

    @property
    def live_ranges(self) -> list[tuple[int, int]]:
        """
        Program point at which each value is made, and the first without it or what it is rounded to.
        """
