"""Sizes that hang together, and smaller ones that keep what holds between them.

Every dim of a program has a ``Size``: a sum of products of *atoms*, sizes that may be chosen.

    reshape 2048x4096 -> 2048x32x128      {a, b} -> {a, c, d},   b = c*d
    slice   [1:2048] of a                 a - 1
    pad     interior 1 of a               2*a - 1

What two ops say of one size is made equal by putting one in place of the other. Where that does not
work, the sizes stay what they are: right, only slower.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod


@dataclass(frozen=True, slots=True)
class Least:
    """How small sizes may become that nothing else keeps larger."""

    atom: int = 4
    """One of 2 would hide what happens between the ends."""
    local: int = 2
    """Elements of a dim on each device, where there are so many: one would hide mistakes within."""


Atoms = tuple[int, ...]
"""A product, major first."""

Terms = tuple[tuple[Atoms, int], ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of products of atoms, and a number."""

    terms: Terms
    """Products and how often each is added, in the order of their sorted atoms."""
    constant: int = 0

    @property
    def atoms(self) -> frozenset[int]:
        """All atoms in it."""
        return frozenset(atom for product, _ in self.terms for atom in product)

    def __add__(self, other: Size | int) -> Size:
        """The sum."""
        if isinstance(other, int):
            return Size(self.terms, self.constant + other)
        return _sum((*self.terms, *other.terms), self.constant + other.constant)

    def __mul__(self, other: Size | int) -> Size:
        """The product; the atoms of ``self`` are the major ones."""
        if isinstance(other, int):
            return _sum(((p, n * other) for p, n in self.terms), self.constant * other)
        left = (*self.terms, ((), self.constant))
        right = (*other.terms, ((), other.constant))
        return _sum(((p + q, n * m) for p, n in left for q, m in right), 0)

    def __sub__(self, other: Size) -> Size:
        """The difference."""
        return self + other * -1

    def over(self, divisor: int) -> Size | None:
        """A ``divisor``-th of it, if all its parts have one."""
        if self.constant % divisor or any(count % divisor for _, count in self.terms):
            return None
        terms = tuple((product, count // divisor) for product, count in self.terms)
        return Size(terms, self.constant // divisor)

    def value(self, of: Sequence[int]) -> int:
        """Its number where atom ``a`` is ``of[a]``."""
        return self.constant + sum(n * prod(of[atom] for atom in p) for p, n in self.terms)


def number(value: int) -> Size:
    """A size that stays as it is."""
    return Size((), value)


def _atom(atom: int) -> Size:
    return Size((((atom,), 1),))


def _sum(parts: Iterable[tuple[Atoms, int]], constant: int) -> Size:
    terms: dict[Atoms, tuple[Atoms, int]] = {}
    for product, count in parts:
        key = tuple(sorted(product))
        if not key:
            constant += count
            continue
        first, before = terms.get(key, (product, 0))
        terms[key] = (first, before + count)
    return Size(tuple(terms[key] for key in sorted(terms) if terms[key][1]), constant)


@dataclass(frozen=True, slots=True)
class _Needs:
    """What a size must keep."""

    size: Size
    least: int
    divisor: int = 1
    """Its remainder stays what it is."""
    above: Size | None = None
    """A size that is smaller, or as large where it is so now."""


class Sizes:
    """The atoms of one program, and what holds between them."""

    def __init__(self) -> None:
        self.old: list[int] = []
        """Size of every atom so far."""
        self._bound: dict[int, Size] = {}
        self._above: list[tuple[Size, Size]] = []
        self._divisors: dict[Size, set[int]] = defaultdict(set)

    def fresh(self, old: int) -> Size:
        """A new size, ``old`` so far; those of 0 and 1 mean something and stay."""
        if old <= 1:
            return number(old)
        self.old.append(old)
        return _atom(len(self.old) - 1)

    def old_of(self, size: Size) -> int:
        """What it is so far."""
        return size.value(self.old)

    def resolved(self, size: Size) -> Size:
        """The same size in atoms that may be chosen."""
        if all(atom not in self._bound for product, _ in size.terms for atom in product):
            return size
        found = number(size.constant)
        for product, count in size.terms:
            term = number(count)
            for atom in product:
                bound = self._bound.get(atom)
                term = term * (_atom(atom) if bound is None else self.resolved(bound))
            found = found + term
        return found

    def make_equal(self, one: Size, other: Size) -> None:
        """Both are one size from now on."""
        if one == other:
            return
        while True:
            one, other = self.resolved(one), self.resolved(other)
            difference = one - other
            if not difference.terms and not difference.constant:
                return
            assert self.old_of(one) == self.old_of(other), "sizes that differ cannot be equal"
            if not (self._solve(difference) or self._refine(one, other)):
                self.keep(one)
                self.keep(other)
                return

    def _solve(self, difference: Size) -> bool:
        """Bind an atom that stands alone in what must be nothing."""
        in_terms = Counter(atom for product, _ in difference.terms for atom in set(product))
        alone = [
            (abs(count), -product[0], product[0], count)
            for product, count in difference.terms
            if len(product) == 1 and in_terms[product[0]] == 1
        ]
        for _, _, atom, count in sorted(alone):
            rest = difference - _atom(atom) * count
            bound = rest.over(-count)
            if bound is not None:
                self._bound[atom] = bound
                return True
        return False

    def _refine(self, one: Size, other: Size) -> bool:
        """Match factors of two products, one of which may be a part of the other."""
        if len(one.terms) != 1 or len(other.terms) != 1 or one.constant or other.constant:
            return False
        (first, first_count), (second, second_count) = one.terms[0], other.terms[0]
        common = gcd(first_count, second_count)
        mine, theirs = list(first), list(second)
        for atom in first:
            if atom in theirs:
                mine.remove(atom)
                theirs.remove(atom)
        for count, atoms in ((first_count // common, theirs), (second_count // common, mine)):
            if count > 1:
                return self._divide(atoms, count)
        if not mine or not theirs:
            return False
        pairs = [(self.old[a], self.old[b], a, b) for a in mine for b in theirs]
        for small, large, a, b in sorted(pairs, key=lambda pair: pair[0] != pair[1]):
            if small > large:
                small, large, a, b = large, small, b, a
            if large % small == 0:
                self._bound[b] = _atom(a) * self.fresh(large // small)
                return True
        return False

    def _divide(self, atoms: Sequence[int], count: int) -> bool:
        """Bind one of the atoms to so many times another size."""
        for atom in sorted(atoms, key=lambda atom: self.old[atom] != count):
            if self.old[atom] % count == 0:
                self._bound[atom] = self.fresh(self.old[atom] // count) * count
                return True
        return False

    def parts(self, size: Size, olds: Sequence[int]) -> list[Size]:
        """Sizes of which ``size`` is the product."""
        found = [self.fresh(old) for old in olds]
        self.make_equal(size, product_of(found))
        return found

    def keep(self, size: Size) -> None:
        """It stays what it is."""
        for atom in self.resolved(size).atoms:
            self._bound[atom] = number(self.old[atom])

    def keep_above(self, large: Size, small: Size) -> None:
        """``large`` is no smaller than ``small``, and larger where it is so now."""
        self._above.append((large, small))

    def keep_cut(self, size: Size, pieces: int) -> None:
        """It is cut into so many pieces, evenly if it is so now."""
        if pieces > 1:
            self._divisors[size].add(pieces)

    def chosen(self, all_sizes: Iterable[Size], least: Least) -> list[int]:
        """Small sizes for all atoms, by number.

        They are lowered one after the other, the largest first, each to the smallest that keeps
        everything: what holds now holds all the time.
        """
        needs = self._needs(all_sizes, least.local)
        by_atom: dict[int, list[_Needs]] = defaultdict(list)
        for need in needs:
            for atom in need.size.atoms | (need.above.atoms if need.above else frozenset()):
                by_atom[atom].append(need)
        new = list(self.old)
        order = sorted(by_atom, key=lambda atom: (-self.old[atom], atom))
        for _ in range(2):
            for atom in order:
                largest = new[atom]
                for new[atom] in range(min(least.atom, largest), largest + 1):
                    if all(self._holds(need, new) for need in by_atom[atom]):
                        break
        return new

    def _needs(self, all_sizes: Iterable[Size], local: int) -> list[_Needs]:
        found: set[_Needs] = set()
        for size in map(self.resolved, set(all_sizes)):
            found.add(_Needs(size, min(2, self.old_of(size))))
        for size, divisors in self._divisors.items():
            for divisor in divisors:
                least = min(local * divisor, self.old_of(size))
                found.add(_Needs(self.resolved(size), least, divisor))
        for large, small in self._above:
            found.add(_Needs(self.resolved(large), 0, above=self.resolved(small)))
        return list(found)

    def _holds(self, need: _Needs, new: Sequence[int]) -> bool:
        value, old = need.size.value(new), need.size.value(self.old)
        if value < need.least or (value - old) % need.divisor:
            return False
        if need.above is None:
            return True
        gap = value - need.above.value(new)
        return gap > 0 or (gap == 0 and old == need.above.value(self.old))


def product_of(sizes: Iterable[Size]) -> Size:
    """All of them multiplied, major first."""
    found = number(1)
    for size in sizes:
        found = found * size
    return found
