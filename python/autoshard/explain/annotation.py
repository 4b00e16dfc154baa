"""One line of user code that says how values lie."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.explain.halves import Half
from autoshard.frontend.logical_axes import Axes, Spec


def axes_text(axes: Axes) -> str:
    """How a dim is cut: ``None``, ``'data'``, ``('x', 'y')``."""
    return "None" if not axes else repr(axes[0] if len(axes) == 1 else axes)


def spec_text(spec: Spec) -> str:
    """``P('data', None, ('x', 'y'))``."""
    entries = list(map(axes_text, spec))
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


@dataclass(frozen=True)
class Annotation:
    """One line to write."""

    name: str
    """``params['layers'][*]['w1']`` of an argument, ``dot_general`` of what a line makes,
    ``operand 0 of convert`` of what it reads."""
    location: str | None
    """``file:line`` whose value is constrained, or that calls what makes it; None: an argument."""
    type: str
    """``4096x11008xbf16``."""
    spec: Spec
    """For each dim the axes that cut it."""
    count: int
    """How many values of the program it speaks of."""
    members: tuple[str, ...] = ()
    """The arguments that it speaks of, by name."""
    is_whole: bool = False
    """Whether it is what its line makes in the end, so that it has the name that is assigned."""
    half: Half = Half.FORWARD
    """Where its values are made, or read; arguments count as made by the forward half."""
    is_one_sided: bool = False
    """Whether it speaks of a value of the forward half and not of its cotangent, which the plan
    cuts otherwise."""
    within: str = ""
    """``file:line`` of a function that ``location`` calls, where it is made, or read."""

    @property
    def is_by_custom_vjp(self) -> bool:
        """Whether it is a line of ``constrained``, which ``Annotations.to_python`` defines."""
        return self.is_one_sided or self.half is Half.COTANGENT

    @property
    def is_writable(self) -> bool:
        """Whether the user's code can say it: not of a value between cotangents."""
        return self.half is not Half.BACKWARD

    @property
    def what(self) -> str:
        """``dot_general``, or ``dot_general of linear.py:287`` at a line that calls this one."""
        return f"{self.name} of {self.within.rpartition('/')[2]}" if self.within else self.name

    @property
    def text(self) -> str:
        """``mlp.py:8: dot_general 4096x11008xbf16 as P('data')``."""
        return f"{self.location}: {self.what} {self.type} as {self.spec_text}"

    @property
    def spec_text(self) -> str:
        """``P('data', None, ('x', 'y'))``."""
        return spec_text(self.spec)
