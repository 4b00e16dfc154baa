"""``autoshard.kernel``: say of a function that no compiler looks into how it may be cut.

    attend = autoshard.kernel(
        flash_attention,
        "b h q d, b k s d, b k s d -> b h q d; h = k * g",
        whole=("q", "s", "d"),
    )

The result is called like the function and computes the same. ``autoshard.jit``, ``autoshard.plan``
and their kin plan it as one op, and each device runs the function on its own blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.errors import StrategyError
from autoshard.ir.kernel import Call, check, kernel_p
from autoshard.ir.lowering import user_line
from autoshard.sharding.kernel_rule import Dims, KernelRule, read_kernel_rule

P = ParamSpec("P")
R = TypeVar("R")

_tree: Any = jax.tree_util


def kernel(
    fn: Callable[P, R], rule: str, *, sums: Iterable[str] = (), whole: Iterable[str] = ()
) -> Callable[P, R]:
    """``fn``, planned as one op that may be cut as ``rule`` says.

    It computes ``fn`` itself under ``jit``, ``grad``, ``vmap``, ``scan`` and ``jax.checkpoint``.
    The gradient is a kernel too, whose rule follows from this one; it computes ``fn`` again, so
    write a ``jax.custom_vjp`` of two kernels where residuals are to be kept. There is no
    forward-mode derivative.

    Args:
        fn: A function of arrays, such as one that calls Pallas. It must read sizes off its
            arguments: each device calls it on its blocks. Arguments that are no arrays are passed
            on as they are.
        rule: An array for each array of the arguments, ``->``, one for each of the results; of each
            the factors of its dims. Dims of one name are cut alike. ``b (k g) q`` or
            ``b h q; h = k * g`` has a dim of two factors, the major one first; ``_`` is a dim and
            ``*`` an array that each device has whole, ``()`` is a scalar. Of a factor that may be
            cut, each part of the results is what ``fn`` makes of this part of the operands.
        sums: Factors of operands that no result has: the results of devices that have parts of
            them are added.
        whole: Factors that are not cut.

    Raises:
        StrategyError: A rule that is none, at once; when the result is called, arguments that it is
            not for, or a function that makes something else of a part than the rule says.

    Example:
        ``autoshard.kernel(rms_norm, "b s d, d -> b s d", whole="d")(x, scale)``
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn):
        raise StrategyError(f"autoshard.kernel takes a function, not {name}.", user_line())
    try:
        read = read_kernel_rule(rule, sums, whole)
    except StrategyError as error:
        raise StrategyError(f"{name}: {error}", user_line()) from None

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        leaves, structure = _tree.tree_flatten((args, kwargs))
        is_array = tuple(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
        others = tuple(leaf for leaf, it in zip(leaves, is_array, strict=True) if not it)
        flat = _Flat(fn, structure, is_array, others)
        arrays = [jnp.asarray(leaf) for leaf, it in zip(leaves, is_array, strict=True) if it]
        one = Call(name, flat, read)
        try:
            check(one, arrays)
        except StrategyError as error:
            raise StrategyError(f"{name}: {error}", user_line()) from error.__cause__
        return cast(R, _tree.tree_unflatten(flat.result_structure(arrays), _run(one, *arrays)))

    return call


@dataclass(frozen=True)
class _Flat:
    """A function of the arrays among its arguments."""

    fn: Callable[..., Any]
    structure: Any
    is_array: tuple[bool, ...]
    others: tuple[Any, ...]

    def __call__(self, *arrays: Any) -> list[Any]:
        return _tree.tree_leaves(self._call(*arrays))

    def result_structure(self, arrays: Sequence[Any]) -> Any:
        """Tree structure of what the function returns."""
        structs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        return _tree.tree_structure(jax.eval_shape(self._call, *structs))

    def _call(self, *arrays: Any) -> Any:
        given, others = iter(arrays), iter(self.others)
        leaves = [next(given) if it else next(others) for it in self.is_array]
        args, kwargs = _tree.tree_unflatten(self.structure, leaves)
        return self.fn(*args, **kwargs)


# --- gradients ---


def _bind(call: Call, *arrays: Any) -> list[Any]:
    return kernel_p.bind(*arrays, call=call)


_run: Any = cast(Any, jax.custom_vjp)(_bind, nondiff_argnums=(0,))


def _forward(call: Call, *arrays: Any) -> tuple[list[Any], tuple[Any, ...]]:
    return _run(call, *arrays), arrays


def _backward(call: Call, arrays: tuple[Any, ...], cotangents: Sequence[Any]) -> tuple[Any, ...]:
    is_given = tuple(_is_differentiable(cotangent) for cotangent in cotangents)
    given = [cotangent for cotangent, it in zip(cotangents, is_given, strict=True) if it]
    found = [np.zeros(array.shape, jax.dtypes.float0) for array in arrays]
    is_wanted = [_is_differentiable(array) for array in arrays]
    for wanted, rule in _gradient_rules(call.rule, is_wanted, is_given):
        gradients = _Gradients(call.function, wanted, is_given)
        made = _run(Call(f"gradient of {call.name}", gradients, rule), *arrays, *given)
        for number, gradient in zip(wanted, made, strict=True):
            found[number] = gradient
    return tuple(found)


_run.defvjp(_forward, _backward)


@dataclass(frozen=True)
class _Gradients:
    """Gradients of ``function`` in some operands, of its operands and its results' cotangents."""

    function: Callable[..., list[Any]]
    wanted: tuple[int, ...]
    is_given: tuple[bool, ...]
    """Whether each result has a cotangent: integers have none."""

    def __call__(self, *arrays: Any) -> list[Any]:
        count = len(arrays) - sum(self.is_given)
        operands, cotangents = arrays[:count], arrays[count:]

        def results(*wanted: Any) -> list[Any]:
            all_operands = list(operands)
            for number, operand in zip(self.wanted, wanted, strict=True):
                all_operands[number] = operand
            made = self.function(*all_operands)
            return [result for result, it in zip(made, self.is_given, strict=True) if it]

        _, pull = cast(Any, jax).vjp(results, *(operands[number] for number in self.wanted))
        return list(pull(list(cotangents)))


def _gradient_rules(
    rule: KernelRule, is_wanted: Sequence[bool], is_given: Sequence[bool]
) -> list[tuple[tuple[int, ...], KernelRule]]:
    """The operands whose gradients one kernel makes, and its rule.

    A device that has parts of some factors has what these parts add to the gradient of an operand
    without them, so it is summed over them. A rule sums over the same factors in all results;
    operands that lack others have a kernel of their own.
    """
    cotangents = [it for it, has in zip(rule.results, is_given, strict=True) if has]
    all_factors = frozenset[str]().union(*map(rule.factors_of, (*rule.operands, *cotangents)))
    by_sums: dict[frozenset[str], list[int]] = {}
    for number, operand in enumerate(rule.operands):
        if is_wanted[number]:
            by_sums.setdefault(all_factors - rule.factors_of(operand), []).append(number)
    operands = (*rule.operands, *cotangents)
    found: list[tuple[tuple[int, ...], KernelRule]] = []
    for sums, wanted in by_sums.items():
        results = tuple(rule.operands[number] for number in wanted)
        text, grouped = f"gradient of {rule.text}", _in_groups(operands, sums)
        new = KernelRule(text, operands, results, sums - grouped, rule.whole | grouped)
        found.append((tuple(wanted), new))
    return found


def _in_groups(tensors: Sequence[Dims | None], sums: frozenset[str]) -> frozenset[str]:
    """Factors of ``sums`` that are in a dim of two factors, of which no part can be summed."""
    dims = (dim for tensor in tensors for dim in tensor or () if len(dim) > 1)
    return frozenset(name for dim in dims for name in dim) & sums


def _is_differentiable(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
