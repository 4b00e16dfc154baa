"""Files whose texts are no UTF-8: jaxlib ends the process where Python reads one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoshard.errors import ParseError
from autoshard.ir import given_bytecode, new_context, parse_bytes, parse_given, print_module

CALL = r"""
func.func @f(%%x: tensor<4xf32>) -> tensor<4xf32> attributes {note = "%s"} {
  %%0 = stablehlo.custom_call @kernel(%%x) {
      backend_config = "\FE\00", mhlo.backend_config = {ir = "\FD\22"}}
      : (tensor<4xf32>) -> tensor<4xf32> loc("%s":1:2)
  return %%0 : tensor<4xf32>
}
"""


def text(note: str, file: str) -> bytes:
    return (CALL % (note, file)).encode()


def bytecode(data: bytes) -> bytes:
    return print_module(parse_bytes(data, new_context()), "bytecode")


@pytest.mark.parametrize("written", [bytes, bytecode], ids=["text", "bytecode"])
def test_texts_in_utf_8_and_what_kernels_are_handed_may_be_any_bytes(written) -> None:
    module = parse_bytes(written(text(r"\C3\A9", r"\C3\A9.py")), new_context())
    assert r"\FE\00" in str(module)


@pytest.mark.parametrize("place", ["note", "file"])
@pytest.mark.parametrize("is_bytecode", [False, True], ids=["text", "bytecode"])
def test_texts_that_are_no_utf_8_are_refused(place: str, is_bytecode: bool) -> None:
    data = text(*("wrong" if one == place else "right" for one in ("note", "file")))
    if is_bytecode:
        data = bytecode(data)
    damaged = data.replace(b"wrong", b"wr\xffng" if is_bytecode else rb"wr\FFng")
    with pytest.raises(ParseError, match=re.escape(r'x.mlir: "wr\FFng" is no UTF-8 text')):
        parse_bytes(damaged, new_context(), "x.mlir")


def test_an_error_whose_message_is_no_utf_8_does_not_end_the_process() -> None:
    data = bytecode(text("right", "a.py"))
    with pytest.raises(ParseError, match=r"x\.mlirbc"):
        parse_bytes(
            data.replace(b"kernel", b"k\xffrnel").replace(b"func\0", b"f\xffnc\0"),
            new_context(),
            "x.mlirbc",
        )


def test_bytecode_that_is_cut_off_is_refused() -> None:
    data = bytecode(text("right", "a.py"))
    for length in range(4, len(data), 7):
        with pytest.raises(ParseError):
            parse_bytes(data[:length], new_context())


def test_given_bytecode_is_read_as_it_is() -> None:
    data = bytecode(text("right", "a.py"))
    assert print_module(parse_given(data, new_context(), "x.mlirbc"), "bytecode") == data


def test_what_the_reader_says_of_given_bytecode_is_the_error() -> None:
    data = bytecode(text("right", "a.py"))
    with pytest.raises(ParseError, match=r"x\.mlirbc: ") as caught:
        parse_given(data[: len(data) // 2], new_context(), "x.mlirbc")
    with pytest.raises(ParseError) as alone:
        parse_bytes(data[: len(data) // 2], new_context(), "x.mlirbc")
    assert str(caught.value) == str(alone.value)


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("import os; os.abort()", r"ended its process \(SIGABRT\)"),
        ("import time; time.sleep(60)", "did not end within 0 s"),
        ("raise SystemExit('all of it')", "exit code 1"),
    ],
)
def test_whatever_given_bytecode_does_to_the_reader_is_an_error(
    does: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(does)
    monkeypatch.setattr(given_bytecode, "PROGRAM", [str(reader)])
    monkeypatch.setattr(given_bytecode, "TIME_LIMIT_SECONDS", 0.4 if "sleep" in does else 60.0)
    with pytest.raises(ParseError, match=rf"x\.mlirbc: the bytecode cannot be read: .*{message}"):
        parse_given(bytecode(text("right", "a.py")), new_context(), "x.mlirbc")
