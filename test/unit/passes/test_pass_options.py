"""Options of passes: from text to dataclass fields, and what is refused."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from autoshard.errors import PassOptionError
from autoshard.ir import mlir
from autoshard.passes.base import Pass, make_pass, options_of, summary_of
from autoshard.passes.pipeline import split_options
from autoshard.passes.registry import ALL_PASSES, pass_type


@dataclass(frozen=True)
class Example(Pass):
    """Do nothing, but with every kind
    of option. More text.

    Not in the summary.
    """

    name: ClassVar[str] = "autoshard-example"

    mem_coeff: float = 0.1
    """Price of a byte,
    in seconds."""

    trip_count: int = 100

    enable: bool = False
    """Switch."""

    mode: Literal["fast", "exact"] = "fast"

    cluster: str = ""

    budget: int | None = None

    axes: tuple[str, ...] = ()

    sizes: tuple[int, ...] = (1, 2)

    def run(self, module: mlir.Module) -> None:
        raise NotImplementedError


def test_texts_become_values_of_the_fields():
    made = make_pass(
        Example,
        {
            "mem-coeff": "1e-3",
            "trip_count": "7",
            "enable": "true",
            "mode": "exact",
            "cluster": "v5p:4x4x4",
            "budget": "12",
            "axes": "dp,tp",
            "sizes": "4",
        },
    )
    assert made == Example(1e-3, 7, True, "exact", "v5p:4x4x4", 12, ("dp", "tp"), (4,))


def test_options_left_out_have_their_defaults():
    assert make_pass(Example, {}) == Example()
    assert make_pass(Example, {"budget": "none", "enable": "0"}) == Example()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mem-coef", "1", 'unknown option "mem-coef". Did you mean "mem-coeff"'),
        ("zzz", "1", 'unknown option "zzz". Options: mem-coeff, trip-count, enable'),
        ("trip-count", "1.5", "option trip-count=1.5: expected integer. Default: trip-count=100"),
        ("enable", "yes", "option enable=yes: expected true|false. Default: enable=false"),
        ("mode", "slow", "option mode=slow: expected fast|exact. Default: mode=fast"),
        ("budget", "much", "option budget=much: expected integer or none. Default: budget=none"),
        ("sizes", "1,x", "option sizes=1,x: expected integer,.... Default: sizes=1,2"),
    ],
)
def test_wrong_options_are_refused_with_a_way_out(name: str, text: str, message: str):
    with pytest.raises(PassOptionError, match="autoshard-example") as caught:
        make_pass(Example, {name: text})
    assert message in caught.value.message


def test_options_are_described_by_the_fields_docstrings():
    described = {option.name: option for option in options_of(Example)}
    assert list(described)[:2] == ["mem-coeff", "trip-count"]
    assert described["mem-coeff"].help == "Price of a byte, in seconds."
    assert described["trip-count"].help == ""
    assert described["axes"].type_text == "text,..."


def test_summary_is_the_first_paragraph():
    assert summary_of(Example) == "Do nothing, but with every kind of option. More text."


def test_option_text_is_split_outside_quotes_and_braces():
    text = "a=1  b='x y' c={d=2 e=3} flag f=dp=2,tp=4"
    assert split_options("p", text) == {
        "a": "1",
        "b": "x y",
        "c": "d=2 e=3",
        "flag": "true",
        "f": "dp=2,tp=4",
    }


@pytest.mark.parametrize("name", ALL_PASSES)
def test_every_pass_has_the_name_it_is_registered_by_and_says_what_it_does(name: str):
    found = pass_type(name)
    assert found.name == name
    assert summary_of(found).endswith(".")
    make_pass(found, {})
    for option in options_of(found):
        assert option.help, f"{name}: option {option.name} has no docstring"
