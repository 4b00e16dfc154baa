"""Searches for one stage that does all share what is read of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.frontend import whole_step
from autoshard.frontend.planning import job_of, traced_for
from autoshard.frontend.request import Request
from autoshard.frontend.whole_step import WholeSteps

LAYERS, WIDTH, BATCH = 2, 256, 512


def step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for weights in params:
            y = jax.nn.softmax(y @ weights)
        return (y * y).mean()

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))


def asked(stages: int, count: int, program: Any = None) -> tuple[Any, Request]:
    given = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    traced = traced_for(step, ((given, x), {}), static=(None, None), donate=(0, None))
    pipeline = autoshard.Pipeline(stages, count)
    request = Request(cluster="h100:8", pipeline=pipeline, micro_batches=count, batch_argnums=1)
    return traced.source(request, program), request


def test_two_readings_tell_what_a_third_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()

    def reading(*given: Any) -> Any:
        read.append(1)
        return whole_step_read(*given)

    whole_step_read = whole_step.read_module
    monkeypatch.setattr(whole_step, "read_module", reading)
    steps = WholeSteps(job_of)
    first = asked(2, 8)
    program = first[0].program
    for point in (first, asked(2, 16, program)):
        steps.search(*point)
    # Of a size that was read, and of another one.
    points = [asked(4, 16, program), asked(2, 128, program)]
    found = [steps.search(*point) for point in points]
    assert len(read) == 2
    for shared, point in zip(found, points, strict=True):
        own = WholeSteps(job_of).search(*point)
        assert shared.is_held_back == own.is_held_back
        assert shared.seconds == pytest.approx(own.seconds, rel=1e-9)


def test_the_second_reading_is_in_micro_batches_that_are_there() -> None:
    read = list[int]()

    def job_read(source: Any, request: Request) -> Any:
        job = job_of(source, request)

        def module(on_host: Any) -> Any:
            read.append(request.micro_batch_count)
            return job.read(on_host)

        return replace(job, read=module)

    steps, first = WholeSteps(job_read), asked(2, 8)
    program = first[0].program
    steps.search(*first, 4)
    other = asked(2, 16, program)
    found = steps.search(*other, 4)
    assert read == [8, 4]
    own = WholeSteps(job_of).search(*other)
    assert found.is_held_back == own.is_held_back
    assert found.seconds == pytest.approx(own.seconds, rel=1e-9)


def test_of_a_step_that_is_of_no_use_it_is_told_that_it_takes_no_less() -> None:
    steps, first = WholeSteps(job_of), asked(2, 8)
    program = first[0].program
    found = steps.search(*first)
    for count in (16, 32):  # the third one is resized, and so known by its seconds alone
        steps.search(*asked(2, count, program))
    point = asked(2, 64, program)
    whole, useful = steps.search(*point), found.seconds / 8
    assert whole == steps.search(*point, 1, 2 * whole.seconds)
    early = steps.search(*point, 1, useful)
    assert useful < early.seconds <= whole.seconds
    assert not early.is_held_back
