"""Inputs that are nearly right: bytes, words, numbers and whole parts of one that is."""

from __future__ import annotations

import random
import re

_PIECE = re.compile(rb"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]")
_NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"7",
    b"4294967296",
    b"99999999999999999999",
    b"1e999",
    b"nan",
    b"0.5",
)
_OPENING = b"[{(<"
_DEEP = 2000
"""Brackets in brackets: more than Python lets functions call each other."""


def mutated(data: bytes, chance: random.Random) -> bytes:
    """``data`` with one to three changes: of bytes, words, numbers, or whole parts."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        if not found:
            return bytes(found)
        at = chance.randrange(len(found))
        end = min(len(found), at + chance.choice((1, 2, 8, 64, 1024)))
        kind = chance.randrange(25)
        if kind < 4:
            found[at] = chance.randrange(256)
        elif kind < 8:
            del found[at:end]
        elif kind < 12:
            found[at:at] = found[at:end] * chance.choice((1, 1, 3))
        elif kind < 16:
            del found[at:]
        elif kind == 16:
            _nest(found, at, chance)
        else:
            _change_a_piece(found, at, chance)
    return bytes(found)


def _nest(found: bytearray, at: int, chance: random.Random) -> None:
    """Very many brackets where the next one is, or right here."""
    places = [place for place in range(at, min(len(found), at + 400)) if found[place] in _OPENING]
    place = places[0] if places else at
    bracket = found[place : place + 1] if places else bytearray([chance.choice(_OPENING)])
    found[place:place] = bracket * _DEEP


def _change_a_piece(found: bytearray, at: int, chance: random.Random) -> None:
    """A number for a number, or a piece near it for a piece."""
    pieces = list(_PIECE.finditer(bytes(found), at, min(len(found), at + 400)))
    if not pieces:
        return
    piece = chance.choice(pieces)
    other = chance.choice(pieces).group()
    new = chance.choice(_NUMBERS) if piece.group().isdigit() else other
    found[piece.start() : piece.end()] = new
