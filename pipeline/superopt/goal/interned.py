"""Polys, products and atoms by number: each is kept once, under the first of all namings of its bound variables.

    poly       a multiset of products: their sum
    product    bound variables, which are summed over, and a multiset of (atom, exponent)
    atom       an element of an input, a number, a function, max or min of polys; a poly where its exponent is not 1
    variable   a factor of an axis and a copy number: 0 where it is free in the whole term; sums of one factor in
               one product have copies of their own

Exponents do not add up: x * (1 / x) stays. Only exp(x) * (1 / exp(x)) is 1, since exp(x - y) is one function of one
value; what that loses is made good where it is asked what contributes (`pipeline.superopt.goal.relevance`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

ONE = 4  # exponents are counted in quarters
COPIES = 16  # of a factor in one product
MANY = 512  # products of a poly
ORDERS = 720  # of the bound copies of a product, tried to find the first one

COMMUTATIVE = frozenset({"max", "min", "and", "or", "xor", "eq", "ne"})

Power = tuple[int, int]  # (atom, exponent in quarters)
Renaming = tuple[tuple[int, int], ...]  # (variable, variable), sorted


class TooLarge(Exception):
    """The form is larger than it is worth: nothing is known about the term."""


@dataclass(frozen=True, slots=True)
class Atom:
    """What a product is made of.

    kind   "in", "num", "app", "max", "min", "prod" or "poly"
    head   the number of the input, the value, or the name of the function
    vars   of an input: its variables; of max, min and prod: those that they bind
    args   polys
    free   the variables that it varies with, as a set of bits
    """

    kind: str
    head: Hashable
    vars: tuple[int, ...]
    args: tuple[int, ...]
    free: int


@dataclass(frozen=True, slots=True)
class Product:
    """Bound variables and powers, both sorted; the sets of its free and of its bound variables as bits."""

    bound: tuple[int, ...]
    powers: tuple[Power, ...]
    free: int
    binds: int


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(variables: Iterable[int]) -> int:
    return functools.reduce(lambda mask, variable: mask | 1 << variable, variables, 0)


class Interned:
    """All polys of one goal. A poly is a sorted tuple of products."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.products: list[Product] = []
        self.polys: list[tuple[int, ...]] = []
        self.free: list[int] = []  # of each poly
        self._atom_ids: dict[tuple[Hashable, ...], int] = {}
        self._product_ids: dict[tuple[tuple[int, ...], tuple[Power, ...]], int] = {}
        self._poly_ids: dict[tuple[int, ...], int] = {}
        self._factors: dict[Hashable, int] = {}
        self._renamed: dict[tuple[str, int, Renaming], int] = {}
        self.cancelled: set[int] = set()  # exponentials that met their reciprocal
        self.minus = -1  # there is none yet
        self.minus = self.atom("num", -1.0)

    # ---- interning

    def variable(self, factor: Hashable) -> int:
        """The free variable of a factor."""
        return self._factors.setdefault(factor, len(self._factors)) * COPIES

    def atom(self, kind: str, head: Hashable, variables: tuple[int, ...] = (), args: tuple[int, ...] = ()) -> int:
        key = (kind, head, variables, args)
        found = self._atom_ids.get(key)
        if found is None:
            free = functools.reduce(lambda mask, arg: mask | self.free[arg], args, 0)
            free = free | mask_of(variables) if kind == "in" else free & ~mask_of(variables)
            found = self._atom_ids[key] = len(self.atoms)
            self.atoms.append(Atom(kind, head, variables, args, free))
        return found

    def poly(self, products: Iterable[int]) -> int:
        key = tuple(sorted(products))
        found = self._poly_ids.get(key)
        if found is None:
            if len(key) > MANY:
                raise TooLarge
            found = self._poly_ids[key] = len(self.polys)
            self.polys.append(key)
            self.free.append(functools.reduce(lambda mask, product: mask | self.products[product].free, key, 0))
        return found

    def single(self, atom: int, exponent: int = ONE) -> int:
        return self.poly((self.product(0, ((atom, exponent),)),))

    def product(self, binds: int, powers: Iterable[Power]) -> int:
        """The product of powers, summed over the variables in `binds`: the first of all its namings."""
        powers = self._simplified(powers)
        free = functools.reduce(lambda mask, power: mask | self.atoms[power[0]].free, powers, 0) & ~binds
        powers.sort()
        if binds and not self._is_first_naming(binds, free):
            binds, powers = self._named(binds, free, powers)
        key = (tuple(bits(binds)), tuple(powers))
        found = self._product_ids.get(key)
        if found is None:
            found = self._product_ids[key] = len(self.products)
            self.products.append(Product(*key, free, binds))
        return found

    def _simplified(self, powers: Iterable[Power]) -> list[Power]:
        """Without an exponential and its reciprocal, and with one sign at most."""
        left: list[Power] = []
        negative = False
        for atom, exponent in powers:
            if atom == self.minus and exponent % ONE == 0:
                negative ^= exponent // ONE % 2 == 1
            elif self.atoms[atom].head == "exp" and (atom, -exponent) in left:
                left.remove((atom, -exponent))
                self.cancelled.add(atom)
            else:
                left.append((atom, exponent))
        return [*left, (self.minus, ONE)] if negative else left

    @staticmethod
    def _is_first_naming(binds: int, free: int) -> bool:
        """Whether no factor has two bound copies, and each has the lowest number that is not free."""
        last = -1
        for variable in bits(binds):
            factor = variable // COPIES
            if factor == last:
                return False
            last = factor
            below = (1 << variable) - (1 << factor * COPIES)
            if free & below != below:
                return False
        return True

    def _named(self, binds: int, free: int, powers: Sequence[Power]) -> tuple[int, list[Power]]:
        """The first naming of bound variables: groups of powers that share some are named each by itself, then sorted.

        So only the copies within one group have to be tried in all orders.
        """
        groups: list[tuple[int, list[Power]]] = []
        alone: list[Power] = []
        for bound, own in self.components(binds, powers):
            if not bound:
                alone.extend(own)
                continue
            inside = functools.reduce(lambda mask, power: mask | self.atoms[power[0]].free, own, 0) & ~bound
            groups.append(
                min(
                    (mask_of(dict(names).get(v, v) for v in bits(bound)), self.renamed_powers(own, names))
                    for names in self._namings(bound, inside)
                )
            )
        used = free
        named = 0
        for bound, own in sorted(groups):
            names: list[tuple[int, int]] = []
            for variable in bits(bound):
                first = variable // COPIES * COPIES
                name = next((v for v in range(first, first + COPIES) if not used >> v & 1), None)
                if name is None:
                    raise TooLarge
                used |= 1 << name
                named |= 1 << name
                names.append((variable, name))
            alone.extend(self.renamed_powers(own, tuple(names)))
        return named, sorted(alone)

    def _namings(self, binds: int, free: int) -> Iterator[Renaming]:
        """All ways to give the bound variables the lowest copy numbers that are not free; () where they have them."""
        copies: dict[int, list[int]] = {}
        for variable in bits(binds):
            copies.setdefault(variable // COPIES, []).append(variable)
        choices: list[tuple[list[int], list[tuple[int, ...]]]] = []
        orders = 1
        for factor, own in copies.items():
            names = [v for v in range(factor * COPIES, (factor + 1) * COPIES) if not free >> v & 1][: len(own)]
            if len(names) < len(own):
                raise TooLarge
            orders *= math.factorial(len(own))
            if orders > ORDERS:
                raise TooLarge
            choices.append((own, list(itertools.permutations(names))))
        for chosen in itertools.product(*(names for _, names in choices)):
            pairs = ((v, w) for (own, _), names in zip(choices, chosen, strict=True)
                     for v, w in zip(own, names, strict=True))  # fmt: skip
            yield tuple(sorted((v, w) for v, w in pairs if v != w))

    # ---- renaming of free variables

    def renamed_powers(self, powers: Iterable[Power], names: Renaming) -> list[Power]:
        return sorted((self.rename_atom(atom, names), exponent) for atom, exponent in powers)

    def _relevant(self, names: Renaming, free: int) -> Renaming:
        return tuple((v, w) for v, w in names if v != w and free >> v & 1)

    def rename_poly(self, poly: int, names: Renaming) -> int:
        names = self._relevant(names, self.free[poly])
        if not names:
            return poly
        key = ("poly", poly, names)
        if key not in self._renamed:
            self._renamed[key] = self.poly(self.rename_product(product, names) for product in self.polys[poly])
        return self._renamed[key]

    def rename_product(self, number: int, names: Renaming) -> int:
        product = self.products[number]
        names = self._relevant(names, product.free)
        if not names:
            return number
        key = ("product", number, names)
        if key not in self._renamed:
            aside = self.aside(product.binds, product.free | mask_of(w for _, w in names) | product.binds)
            both = tuple(sorted((*names, *aside)))
            binds = mask_of(w for _, w in aside)
            self._renamed[key] = self.product(binds, self.renamed_powers(product.powers, both))
        return self._renamed[key]

    def rename_atom(self, number: int, names: Renaming) -> int:
        atom = self.atoms[number]
        names = self._relevant(names, atom.free)
        if not names:
            return number
        key = ("atom", number, names)
        if key in self._renamed:
            return self._renamed[key]
        if atom.kind == "in":
            new = dict(names)
            found = self.atom("in", atom.head, tuple(sorted(new.get(v, v) for v in atom.vars)))
        elif atom.vars:
            aside = self.aside(mask_of(atom.vars), atom.free | mask_of(w for _, w in names) | mask_of(atom.vars))
            body = self.rename_poly(atom.args[0], tuple(sorted((*names, *aside))))
            found = self.bound_atom(atom.kind, tuple(w for _, w in aside), body)
        else:
            args = [self.rename_poly(arg, names) for arg in atom.args]
            found = self.atom(atom.kind, atom.head, (), tuple(sorted(args) if atom.head in COMMUTATIVE else args))
        self._renamed[key] = found
        return found

    def aside(self, binds: int, used: int) -> Renaming:
        """New names for the bound variables, that nothing uses."""
        found: list[tuple[int, int]] = []
        for variable in bits(binds):
            factor = variable // COPIES
            name = next((v for v in range(factor * COPIES, (factor + 1) * COPIES) if not used >> v & 1), None)
            if name is None:
                raise TooLarge
            used |= 1 << name
            found.append((variable, name))
        return tuple(found)

    def bound_atom(self, kind: str, variables: Sequence[int], body: int) -> int:
        """max, min or prod over the variables, under the first of all namings."""
        binds = mask_of(variables)
        found = []
        for names in self._namings(binds, self.free[body] & ~binds):
            named = mask_of(dict(names).get(v, v) for v in variables)
            found.append((named, self.rename_poly(body, names)))
        binds, body = min(found)
        return self.atom(kind, "", tuple(bits(binds)), (body,))

    def components(self, binds: int, powers: Iterable[Power]) -> list[tuple[int, list[Power]]]:
        """Powers in groups that share no bound variable; one that varies with none is alone."""
        groups: list[tuple[int, list[Power]]] = [(1 << variable, []) for variable in bits(binds)]
        for power in powers:
            bound = self.atoms[power[0]].free & binds
            mine, together = bound, [power]
            apart = []
            for group in groups:
                if group[0] & bound:
                    mine, together = mine | group[0], together + group[1]
                else:
                    apart.append(group)
            groups = [*apart, (mine, together)]
        return groups
