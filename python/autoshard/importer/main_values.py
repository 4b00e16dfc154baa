"""Arguments and results of ``main``: where they lie, and which of them are one buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pinned_values import PinnedValues
from autoshard.importer.values import Values
from autoshard.ir import mlir
from autoshard.ir.attributes import (
    ALIASING_OUTPUT,
    ANY_ORDER,
    BUFFER_DONOR,
    KEY_WORDS,
    LAYOUT_MODE,
    PIN,
)
from autoshard.ir.boundary import entries_at, replaced_by
from autoshard.ir.host_memory import on_host

_DONATED = (ALIASING_OUTPUT, BUFFER_DONOR)
"""Attributes of arguments whose storage the caller gives away."""


@dataclass(frozen=True, slots=True)
class MainArguments:
    """What ``main`` is called with."""

    values: list[int]
    donated: frozenset[int]
    """Positions in ``values``."""
    free: frozenset[int]
    """Values that may lie as a mark says; one that would have to be padded for it may not."""
    attributes: list[mlir.DictAttr]
    result_attributes: list[mlir.DictAttr]
    replaced: dict[int, int]
    """Result of ``main`` -> argument that it becomes in the next call, or that is donated to it."""


def read_arguments(main: mlir.Operation, values: Values, pins: PinnedValues) -> MainArguments:
    """New values for the arguments of ``main``, pinned as it says."""
    entries, of_results = entries_at(main, "arg_attrs"), entries_at(main, "res_attrs")
    there = on_host(main, "arg_attrs")
    numbers = [
        values.new(argument, main, is_on_host=index in there)
        for index, argument in enumerate(main.regions[0].blocks[0].arguments)
    ]
    free = set(numbers) - {NO_VALUE}
    for value, attributes in zip(numbers, entries, strict=True):
        if PIN in attributes:
            pins.pin(value, main, attributes[PIN], at_boundary=True)
        elif KEY_WORDS in attributes:
            pins.keep_key_words(value, main, attributes[KEY_WORDS])
        elif pins.keep_indivisible_whole(value, main):
            free.discard(value)
    donated = frozenset(
        index
        for index, attributes in enumerate(entries)
        if any(name in attributes for name in _DONATED)
    )
    return MainArguments(
        numbers,
        donated,
        frozenset(free),
        entries,
        of_results,
        replaced_by(entries, of_results),
    )


def read_results(
    main: mlir.Operation,
    arguments: MainArguments,
    returned: list[int],
    values: Values,
    pins: PinnedValues,
) -> list[int]:
    """The results of ``main``, made of the values that it returns.

    A pinned result is a value of its own; one that becomes an argument is that argument. Both where
    only the result is pinned, and its argument is donated to it: XLA reuses the memory of those
    that are split alike.
    """
    results = list(returned)
    replaced = arguments.replaced
    free_donated = _free_donated(arguments)
    pinned: set[int] = set()
    for index, attributes in enumerate(arguments.result_attributes):
        argument = free_donated.get(index)
        if PIN in attributes and argument is not None and argument == replaced[index]:
            pins.pin(arguments.values[argument], main, attributes[PIN], at_boundary=True)
        elif results[index] != NO_VALUE:
            is_replacement = index in replaced
            pin = _pin_of_result(results[index], main, attributes, is_replacement, values, pins)
            if pin is not None:
                results[index] = values.resharded(results[index], 1.0)
                pin(results[index])
                pinned.add(index)
    for index, argument in replaced.items():
        target = arguments.values[argument]
        if index not in pinned and target != NO_VALUE and results[index] != NO_VALUE:
            values.join(results[index], target, 1.0)
            results[index] = target
    return results


def in_any_order(arguments: MainArguments, results: Sequence[int]) -> list[int]:
    """The arguments and results of ``main`` whose dims lie as the compiler likes."""
    sides = (arguments.values, arguments.attributes), (results, arguments.result_attributes)
    found = {
        value
        for numbers, entries in sides
        for value, attributes in zip(numbers, entries, strict=True)
        if value != NO_VALUE
        and LAYOUT_MODE in attributes
        and mlir.StringAttr(attributes[LAYOUT_MODE]).value == ANY_ORDER
    }
    return sorted(found)


def _pin_of_result(
    value: int,
    main: mlir.Operation,
    attributes: mlir.DictAttr,
    is_replacement: bool,
    values: Values,
    pins: PinnedValues,
) -> Callable[[int], object] | None:
    """Pins a value as the result must lie that ``value`` is returned as; None: it need not."""
    if PIN in attributes:
        return partial(pins.pin, op=main, attribute=attributes[PIN], at_boundary=True)
    if is_replacement:
        return None
    if KEY_WORDS in attributes:
        return partial(pins.keep_key_words, op=main, attribute=attributes[KEY_WORDS])
    if values.type_of(value).is_empty:
        return partial(pins.keep_whole, op=main)
    if values.type_of(value).is_padded:
        return partial(pins.keep_indivisible_whole, op=main)
    return None


def _free_donated(arguments: MainArguments) -> dict[int, int]:
    """Result -> argument that is donated to it and has no pin."""
    return {
        mlir.IntegerAttr(attributes[ALIASING_OUTPUT]).value: argument
        for argument, attributes in enumerate(arguments.attributes)
        if ALIASING_OUTPUT in attributes and PIN not in attributes and KEY_WORDS not in attributes
    }
