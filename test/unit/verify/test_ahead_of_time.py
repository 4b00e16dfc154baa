"""Compilers in a process of their own: what they make, and what becomes of their failures."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.errors import CompileError
from autoshard.verify import ahead_of_time, targets
from autoshard.verify.ahead_of_time import (
    CompiledProgram,
    compile_in_subprocess,
    read_out_of_memory,
)
from autoshard.verify.process import compile_environment
from autoshard.verify.targets import target_of
from autoshard.verify.usable_memory import STEP_BYTES, largest

_MATMUL = """
module @m attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<8x16xf32> ARGUMENT) -> tensor<8x8xf32> {
    %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %0 = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] OP
        : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""

_needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install autoshard[tpu]"
)
_needs_gpu_compiler = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{number}_plugin") for number in (12, 13)),
    reason="no compiler for GPUs: pip install autoshard[gpu]",
)


def _sharding(text: str) -> str:
    return f'{{mhlo.sharding = "{text}"}}'


def _module(argument: str = "", op: str = "") -> bytes:
    """A matmul with ``mhlo.sharding`` on its argument, and on the op."""
    text = _MATMUL.replace("ARGUMENT", _sharding(argument) if argument else "")
    return text.replace("OP", _sharding(op) if op else "").encode()


def _compile(module: bytes, cluster: str = "cpu:2", **options) -> CompiledProgram:
    return compile_in_subprocess(module, Cluster.parse(cluster), use_shardy=False, **options)


def test_bytes_text_and_shardings_come_back():
    found = _compile(_module(argument="{devices=[1,2]<=[2]}"))
    # 8x16 floats cut in two; the result is whole: its contracted dim is cut, so it is all-reduced.
    assert found.argument_bytes == 8 * 8 * 4
    assert found.output_bytes == 8 * 8 * 4
    assert found.fits
    assert found.needed_bytes == found.peak_bytes
    assert found.argument_shardings == ("{devices=[1,2]<=[2]}",)
    assert found.hlo_text is not None
    assert "all-reduce" in found.hlo_text
    assert (found.partitioner, found.target) == ("gspmd", "cpu:2")
    assert CompiledProgram.from_json(found.to_json(), found.hlo_text) == found


def test_what_a_compiler_refuses_is_an_error_with_its_words():
    with pytest.raises(CompileError, match=r"failed: INVALID_ARGUMENT.*\{maximal device=9\}") as e:
        _compile(_module(op="{maximal device=9}"))
    assert e.value.reason == "refused"


def test_an_unknown_option_is_refused():
    with pytest.raises(CompileError, match="No such compile option: 'xla_nope'"):
        _compile(_module(), compiler_options={"xla_nope": "1"})


def test_a_compiler_that_ends_its_process_is_an_error_with_its_last_words():
    with pytest.raises(
        CompileError, match=r"ended the compiler's process \(SIGABRT\).*last words: .*Check failed"
    ) as e:
        _compile(_module(argument="{manual}"))
    assert e.value.reason == "ended"


def test_a_compiler_that_hangs_is_stopped():
    # GSPMD does not come back from a sharding over a named mesh of two axes on an argument.
    hangs = """
    module @m attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
      func.func public @main(
          %x: tensor<16x128xf32> {mhlo.sharding = "{mesh['a'=2,'b'=4], [{'a'}, {'b'}]}"},
          %w: tensor<128x512xf32>, %v: tensor<512x128xf32>) -> tensor<16x128xf32> {
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
            : (tensor<16x128xf32>, tensor<128x512xf32>) -> tensor<16x512xf32>
        %1 = stablehlo.tanh %0 : tensor<16x512xf32>
        %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
            : (tensor<16x512xf32>, tensor<512x128xf32>) -> tensor<16x128xf32>
        return %2 : tensor<16x128xf32>
      }
    }
    """
    with pytest.raises(CompileError, match=r"was not done after .* s and was stopped") as e:
        _compile(hangs.encode(), "cpu:8", timeout=5)
    assert e.value.reason == "time limit"


def test_what_a_stopped_compiler_started_is_stopped_too(monkeypatch, tmp_path):
    started = tmp_path / "started"
    script = f'import subprocess, time; p = subprocess.Popen(["sleep", "600"]);\
open("{started}", "w").write(str(p.pid)); time.sleep(600)'
    _as_compiler(monkeypatch, script)
    with pytest.raises(CompileError, match="was stopped"):
        _compile(_module(), timeout=3)
    process = int(started.read_text())
    for _ in range(100):
        if not _runs(process):
            return
        time.sleep(0.05)
    pytest.fail(f"process {process} still runs")


def test_memory_of_the_machine_can_be_limited():
    with pytest.raises(CompileError, match=r"ended the compiler's process") as e:
        _compile(_module(), host_memory_bytes=64 * 2**20)
    assert e.value.reason == "ended"


def test_a_killed_compiler_says_that_memory_may_be_short(monkeypatch):
    _as_compiler(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(CompileError, match=r"was killed \(SIGKILL\).*It said nothing") as e:
        _compile(_module())
    assert e.value.reason == "killed"


def test_a_program_that_does_not_fit_is_an_answer(monkeypatch):
    said = "RESOURCE_EXHAUSTED: Used 18.97G of 15.75G hbm. Exceeded hbm capacity by 3.22G."
    _as_compiler(
        monkeypatch,
        "import json, sys, pathlib; pathlib.Path(sys.argv[1], 'result.json').write_text("
        f"json.dumps({{'refusal': {said!r}, 'compile_seconds': 2.0, 'host_bytes': 1}}))",
    )
    found = _compile(_module())
    assert not found.fits
    assert found.needed_bytes == round((15.75 + 3.22) * 2**30)
    assert found.usable_bytes == round(15.75 * 2**30)
    assert found.refusal == said
    assert (found.peak_bytes, found.hlo_text) == (None, None)


@pytest.mark.parametrize("given", [{}, {"xla_tiles": "true"}])
def test_what_is_refused_for_want_of_a_device_is_compiled_with_other_options(monkeypatch, given):
    monkeypatch.setitem(targets._AGAIN, "cpu", (("no tiles", "xla_tiles", "false"),))
    exhausted = "RESOURCE_EXHAUSTED: Used 18.97G of 15.75G hbm. Exceeded hbm capacity by 3.22G."
    _as_compiler(
        monkeypatch,
        "import json, sys, pathlib; folder = pathlib.Path(sys.argv[1])\n"
        "options = json.loads((folder / 'request.json').read_text())['options']\n"
        f"said = {exhausted!r} if options.get('xla_tiles') == 'false' else 'INTERNAL: no tiles'\n"
        "(folder / 'result.json').write_text("
        "json.dumps({'refusal': said, 'compile_seconds': 2.0, 'host_bytes': 1}))",
    )
    if given:  # it is the user's
        with pytest.raises(CompileError, match="no tiles"):
            _compile(_module(), compiler_options=given)
    else:
        assert _compile(_module()).options == {"xla_tiles": "false"}


def test_needs_are_held_against_the_cluster_where_the_compiler_does_not(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text('base = "cpu:2"\n[chip]\nmemory_bytes = 300\n')
    found = compile_in_subprocess(_module(), Cluster.from_toml(path), use_shardy=False)
    assert (found.fits, found.usable_bytes) == (False, 300)
    assert found.needed_bytes > 300
    assert found.hlo_text is not None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 18.97G of"
            " 15.75G hbm. Exceeded hbm capacity by 3.22G.",
            (round(18.97 * 2**30), round(15.75 * 2**30)),
        ),
        (
            "Used 15.75G of 15.75G hbm. Exceeded hbm capacity by 3.5K.",
            (round(15.75 * 2**30) + 3584, round(15.75 * 2**30)),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO"
            " temporaries (2.00T) exceeds available HBM (95.74G).",
            (2 * 2**40, round(95.74 * 2**30)),
        ),
        ("Ran out of memory in memory space vmem. Used 20.00M of 16.00M vmem.", None),
        ("INVALID_ARGUMENT: something else", None),
    ],
)
def test_messages_of_memory_are_read(message: str, expected: tuple[int, int] | None):
    assert read_out_of_memory(message) == expected


def test_the_largest_program_is_found_to_a_step():
    assert largest(lambda size: size <= 1_000_000) == 1_000_000 // STEP_BYTES * STEP_BYTES
    assert largest(lambda size: size == 0) == 0


@_needs_libtpu
@pytest.mark.parametrize(
    ("name", "devices"), [("v5e:1x1", 1), ("v5e:2x4", 8), ("v4:2x2x1", 8), ("v5p:2x2x1*2", 8)]
)
def test_devices_of_tpus_are_in_the_order_of_the_dims(name: str, devices: int):
    # Along the last axis of the mesh partitions p and p + 1 talk; they are neighbours if devices
    # are numbered as the cluster numbers them, and the compiler says where they are.
    code = f"""
import dataclasses
from autoshard.cluster import Cluster
from autoshard.cluster.devices import physical_place
from autoshard.verify.described_devices import devices_of_target
from autoshard.verify.targets import target_of
found = devices_of_target(dataclasses.asdict(target_of(Cluster.parse("{name}"))))
print([list(physical_place(one)) for one in found])
"""
    places = _printed_by(code)
    assert len(places) == devices
    sizes = [len(set(column)) for column in zip(*places, strict=True)]
    expected = [list(_digits(number, sizes)) for number in range(devices)]
    assert places == expected


@_needs_libtpu
def test_two_processes_describe_tpus_at_a_time():
    code = "import autoshard; print(len(autoshard.devices('v5e:2x2')), flush=True); input()"
    environment = {**compile_environment()}
    del environment["ALLOW_MULTIPLE_LIBTPU_LOAD"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        both = []
        for _ in range(2):  # the first one is still there while the second one asks
            process = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)
            both.append(stack.enter_context(process))
            assert process.stdout.readline() == "4\n"
        for process in both:
            process.stdin.write("\n")
            process.stdin.close()


def _printed_by(code: str) -> list:
    """What a process that compiles prints last."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=compile_environment(),
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _digits(number: int, sizes: list[int]) -> list[int]:
    """Digits of a number, slowest first."""
    digits: list[int] = []
    for size in reversed(sizes):
        number, digit = divmod(number, size)
        digits.append(digit)
    return digits[::-1]


def test_partitions_are_on_the_devices_of_the_order():
    target = asdict(target_of(Cluster.parse("cpu:4")))
    code = f"""
import jax
jax.config.update("jax_num_cpu_devices", 4)
from autoshard.verify.compile_process import ordered_devices
print([one.id for one in ordered_devices({target!r}, [2, 0, 3, 1])])
"""
    assert _printed_by(code) == [2, 0, 3, 1]


@_needs_libtpu
def test_tpus_are_compiled_for():
    found = _compile(_module(argument="{devices=[1,2]<=[2]}"), "v5e:1x2")
    assert found.fits
    assert found.compiler.startswith("libtpu ")
    assert found.hlo_text is not None
    assert "all-reduce" in found.hlo_text


@_needs_libtpu
def test_a_tpu_program_that_does_not_fit_says_by_how_much():
    huge = """
    module @m attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
      func.func public @main(%x: tensor<5368709120xf32>) -> tensor<1xf32> {
        %0 = stablehlo.slice %x [0:1] : (tensor<5368709120xf32>) -> tensor<1xf32>
        return %0 : tensor<1xf32>
      }
    }
    """
    found = _compile(huge.encode(), "v5e:1x1")
    assert not found.fits
    assert found.needed_bytes == 20 * 2**30
    assert abs(found.usable_bytes - Cluster.parse("v5e:1x1").usable_memory_bytes) < 2**24


@_needs_gpu_compiler
@pytest.mark.parametrize("name", ["a100:2", "h100:2", "h200:2x1", "b200:2"])
def test_gpus_are_compiled_for(name: str):
    found = _compile(_module(argument="{devices=[1,2]<=[2]}"), name)
    assert found.fits
    assert re.match(r"jax-cuda1[23]-pjrt \d", found.compiler)
    assert found.hlo_text is not None
    assert "all-reduce" in found.hlo_text


@_needs_gpu_compiler
@pytest.mark.parametrize("donated", [(), (0,), (0, 1)], ids=str)
def test_what_lives_on_the_device_has_nothing_of_the_host_in_it(donated: tuple[int, ...]):
    def step(parameters, momentum, x):
        gradient = jax.grad(lambda p: jnp.tanh(x @ p).sum())(parameters)
        momentum = 0.9 * autoshard.in_host_memory(momentum) + gradient
        return parameters - 0.01 * momentum, autoshard.in_host_memory(momentum)

    square = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    x = jax.ShapeDtypeStruct((512, 2048), jnp.float32)
    planned = autoshard.plan(
        step,
        *(square, square, x),
        cluster="h100:2",
        mode="data_parallel",
        batch_argnums=2,
        donate_argnums=donated,
    )
    found = planned.verify().program
    assert found.host_argument_bytes == 2048 * 2048 * 4
    assert found.peak_bytes is not None
    assert found.live_bytes == pytest.approx(found.peak_bytes, rel=0.01)


def test_what_lives_is_not_known_of_a_program_that_stacks_values_on_the_host() -> None:
    said = {
        **{"target": "v6e:2x4", "compiler": "libtpu", "partitioner": "shardy", "fits": True},
        **{"needed_bytes": 60, "usable_bytes": 100, "compile_seconds": 1.0, "host_bytes": 1},
        **{"reported_peak_bytes": 90, "host_argument_bytes": 10, "host_output_bytes": 10},
    }
    assert CompiledProgram.from_json({**said, "host_aliased_bytes": 10}).live_bytes == 80
    assert CompiledProgram.from_json({**said, "host_temporary_bytes": 40}).live_bytes is None


def _as_compiler(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let ``script`` be what runs in the process; ``sys.argv[1]`` is the folder."""
    monkeypatch.setattr(ahead_of_time, "_PROCESS", ("-c", script))


def _runs(process: int) -> bool:
    try:
        os.kill(process, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    # A process that has ended, but for which nobody has waited, is a zombie.
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
