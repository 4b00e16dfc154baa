"""A tokenizer shared by the readers of mesh and sharding texts."""

from __future__ import annotations

import re
from typing import NoReturn

from autoshard.errors import ParseError

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<integer>-?\d+)|(?P<word>[A-Za-z_][\w.]*)|(?P<mark><=|->|[^\s]))"""
)
_MOST_DIGITS = 18
"""Digits of an integer: so many fit 63 bits."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.]*")


def quoted_if_needed(name: str) -> str:
    """``dp`` as it is; quoted if it has more than letters, digits, ``_`` and ``.`` in it."""
    return name if _PLAIN_NAME.fullmatch(name) else f'"{name}"'


class Scanner:
    """Reads one text token by token; every error shows the text and the column.

    Args:
        text: What is read.
        what: What the text should be, for errors: ``"mesh"``, ``"HloSharding"``.
        example: A correct text, for errors.
    """

    def __init__(self, text: str, what: str, example: str) -> None:
        self.text = text
        self.what = what
        self.example = example
        self._kinds: list[str] = []
        self._tokens: list[str] = []
        self._starts: list[int] = []
        self._next = 0
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or "mark"
            self._kinds.append(kind)
            self._tokens.append(match.group(kind))
            self._starts.append(match.start(kind))

    @property
    def at_end(self) -> bool:
        """Whether every token was read."""
        return self._next >= len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        """The token ``ahead`` places on, or ``""`` behind the end."""
        place = self._next + ahead
        return self._tokens[place] if place < len(self._tokens) else ""

    def accept(self, token: str) -> bool:
        """Step over ``token`` if it comes next."""
        if self.peek() != token:
            return False
        self._next += 1
        return True

    def expect(self, token: str) -> None:
        """Step over ``token``.

        Raises:
            ParseError: Something else comes next.
        """
        if not self.accept(token):
            self.fail(f"expected {token!r}")

    def expect_end(self) -> None:
        """Raise ParseError if anything is left."""
        if not self.at_end:
            self.fail("expected the end")

    def next_is(self, kind: str) -> bool:
        """Whether the next token is a ``string``, ``integer``, ``word`` or ``mark``."""
        return not self.at_end and self._kinds[self._next] == kind

    def integer(self) -> int:
        """The next token as an integer that 63 bits hold, or ParseError."""
        if not self.next_is("integer"):
            self.fail("expected an integer")
        if len(self._tokens[self._next]) > _MOST_DIGITS:
            self.fail(f"expected an integer of at most {_MOST_DIGITS} digits")
        return int(self._take())

    def word(self) -> str:
        """The next token as a bare word, or ParseError."""
        if not self.next_is("word"):
            self.fail("expected a word")
        return self._take()

    def name(self) -> str:
        """A bare or quoted name, or ParseError."""
        if self.next_is("string"):
            return self._take()[1:-1]
        if self.next_is("word"):
            return self._take()
        self.fail("expected a name")

    def integers(self, close: str) -> tuple[int, ...]:
        """Comma-separated integers up to and with ``close``; may be empty."""
        if self.accept(close):
            return ()
        values = [self.integer()]
        while self.accept(","):
            values.append(self.integer())
        self.expect(close)
        return tuple(values)

    def skip_braces(self) -> None:
        """Step over ``{...}`` with everything inside."""
        self.expect("{")
        depth = 1
        while depth:
            if self.at_end:
                self.fail("expected '}'")
            token = self._take()
            depth += (token == "{") - (token == "}")

    def fail(self, expected: str) -> NoReturn:
        """Raise ParseError at the next token."""
        column = self._starts[self._next] + 1 if not self.at_end else len(self.text) + 1
        found = repr(self.peek()) if not self.at_end else "the end of the text"
        raise ParseError(
            f"cannot read {self.what} {self.text!r}: {expected} at column {column}, found {found}."
            f" Write it as {self.example!r}."
        )

    def _take(self) -> str:
        self._next += 1
        return self._tokens[self._next - 1]
