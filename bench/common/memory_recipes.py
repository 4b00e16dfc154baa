"""What people do by hand so that a step fits, on plans of the search.

Each recipe says what becomes of every value that waits for the backward half, as recipes of
torchtitan and MaxText do: nothing else is decided. Layers are found by the user's lines: what one
op of a line makes is kept of each layer, as ``jax.checkpoint`` around the layers keeps their
inputs, and of all lines it is the one with which the step needs least memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MOST_KEPT = 32
"""Values that are tried to be what is kept of each layer."""
CLOSE = 1.02
"""Peaks that differ by less than this are equal: then seconds count."""


def plans(job: Any, limits: list[str]) -> Iterator[Any]:
    """What the search finds within each of these limits, as a costed module without calls."""
    from dataclasses import replace

    from autoshard.errors import DoesNotFitError
    from autoshard.ir import parse_bytes
    from autoshard.ir.boundary import main_function
    from autoshard.ir.inline import bytes_of, inline_calls
    from autoshard.planned.given_plan import cost_of_module
    from autoshard.rewrites.recomputation.block import erase_unread

    for limit in limits:
        options = replace(job.options, memory_limit=limit)
        try:
            found = replace(job, options=options, recomputing=None).search()
        except DoesNotFitError:
            return  # nor does one fit less
        copy = parse_bytes(bytes_of(found.module), found.module.context, "recipe")
        inline_calls(copy)
        erase_unread(main_function(copy).regions[0].blocks[0])
        yield cost_of_module(copy, job.cluster)


def recipes(costed: Any, limit: float) -> Iterator[tuple[str, float, float]]:
    """(recipe, seconds of the step, bytes of its peak) of all on one plan.

    Args:
        costed: As ``plans`` gives it.
        limit: Bytes of a device: what waits while more are in use is decided about.
    """
    from autoshard.rewrites.recomputation.block import Block
    from autoshard.rewrites.recomputation.question import BlockQuestion, Rules

    yield "the search alone", *_measured(costed)
    block = Block(costed)
    for name, chosen_by, host in (
        ("full", _full, False),
        ("every second layer", _every_second, False),
        ("matmuls kept", _matmuls_kept, False),
        ("all to the host", _all_to_host, True),
    ):
        rules = Rules(again=not host, host=host)
        question = BlockQuestion(block, limit, rules)
        chosen = chosen_by(question)
        if chosen:
            yield name, *_written(question, chosen)


Chosen = dict[int, Any]


def _full(question: Any) -> Chosen:
    """Everything is computed again from one value of each layer."""
    return _from_inputs(question, lambda layer: True)


def _every_second(question: Any) -> Chosen:
    """Every second layer is computed again; in a loop all are alike, and there is none."""
    return {} if question.pairs else _from_inputs(question, lambda layer: layer % 2 == 0)


def _matmuls_kept(question: Any) -> Chosen:
    """All but the results of matmuls is computed again."""
    from autoshard.rewrites.recomputation.decision import Fate

    return {
        number: Fate.AGAIN
        for number in range(len(question.items))
        if not _is_of_matmul(question, number) and Fate.AGAIN in question.fates[number]
    }


def _all_to_host(question: Any) -> Chosen:
    """Everything goes to the host and comes back."""
    from autoshard.rewrites.recomputation.decision import Fate

    return {number: Fate.HOST for number in range(len(question.items))}


def _is_of_matmul(question: Any, number: int) -> bool:
    from autoshard.importer.work import MATRIX_OPS
    from autoshard.rewrites.recomputation.loops import maker_of
    from autoshard.rewrites.recomputation.question import Stacked

    item, block = question.items[number], question.block
    if isinstance(item, Stacked):
        op = maker_of(item.stack.value)
        return op is not None and op.name in MATRIX_OPS
    value = block.core.value(item.members[0].number)
    if value.matmul >= 0:
        return True
    maker = value.maker
    return maker >= 0 and block.ops[maker].name in MATRIX_OPS


def _from_inputs(question: Any, is_again: Callable[[int], bool]) -> Chosen:
    """Everything in some layers is computed again but one value of each layer."""
    again = _all_again(question)
    ways: list[tuple[float, float, Chosen, Chosen]] = []
    for kept in _inputs_of_layers(question)[:MOST_KEPT]:
        chosen = {item: fate for item, fate in again.items() if item not in kept}
        question.apart = _apart(question, kept, is_again)
        effect = question.effect(chosen)
        way = (float(effect.live.max()), effect.answer.seconds, chosen, question.apart)
        ways.append(way)
    if not ways:
        return again if question.pairs else {}
    least = min(peak for peak, *_ in ways)
    _, _, chosen, question.apart = min(
        (way for way in ways if way[0] <= CLOSE * least), key=lambda way: way[1]
    )
    return chosen


def _all_again(question: Any) -> Chosen:
    from autoshard.rewrites.recomputation.decision import Fate

    return {n: Fate.AGAIN for n, fates in enumerate(question.fates) if Fate.AGAIN in fates}


def _inputs_of_layers(question: Any) -> list[frozenset[int]]:
    """Items that may be what is kept of each layer, largest first: what one op of the user's code
    makes in at least three of them."""
    from autoshard.planned.summarize import line_of
    from autoshard.rewrites.recomputation.question import Group

    block, items = question.block, question.items
    of_line: dict[tuple[str, str | None], list[int]] = {}
    for number, item in enumerate(items):
        maker = block.core.value(item.members[0].number).maker if isinstance(item, Group) else -1
        if maker >= 0:
            op = block.ops[maker]
            of_line.setdefault((op.name, line_of(op)), []).append(number)

    def members(numbers: list[int]) -> list[int]:
        return [one.number for number in numbers for one in items[number].members]

    many = [numbers for numbers in of_line.values() if len(members(numbers)) > 2]
    many.sort(key=lambda numbers: -sum(block.core.value(v).bytes for v in members(numbers)))
    return [frozenset(numbers) for numbers in many]


def _apart(question: Any, kept: frozenset[int], is_again: Callable[[int], bool]) -> Chosen:
    """Values that are kept because they are in other layers, which begin with what is kept."""
    from bisect import bisect_right

    from autoshard.rewrites.recomputation.decision import Fate
    from autoshard.rewrites.recomputation.question import Group

    core, items = question.block.core, question.items
    starts = sorted(core.value(one.number).maker for item in kept for one in items[item].members)
    return {
        one.number: Fate.KEEP
        for item in items
        if isinstance(item, Group)
        for one in item.members
        if not is_again(bisect_right(starts, core.value(one.number).maker))
    }


def _written(question: Any, chosen: Chosen) -> tuple[float, float]:
    from autoshard.ir import mlir, parse_bytes
    from autoshard.ir.inline import bytes_of
    from autoshard.planned.given_plan import cost_of_module
    from autoshard.rewrites.recomputation.choice import Choice
    from autoshard.rewrites.recomputation.write import write_choice

    costed = question.block.costed
    module = costed.imported.module
    copy = parse_bytes(bytes_of(module), module.context, "recipe")
    choice = Choice(question, chosen, question.effect(chosen))
    with module.context, mlir.Location.unknown():
        return _measured(write_choice(choice, lambda: cost_of_module(copy, costed.cluster), copy))


def _measured(costed: Any) -> tuple[float, float]:
    plan, host = costed.plan, costed.host_traffic
    return plan.step_seconds + host.exposed_seconds, plan.peak_bytes - host.counted_bytes
