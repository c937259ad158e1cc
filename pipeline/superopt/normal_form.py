"""The normal form of terms: multisets of products with their sums in front, under algebra without cancellation.

Commutativity and associativity of + and *, distributivity, sums of sums and of products, reciprocals and roots of
products, and exponentials of sums are identities of this form: terms that these axioms make equal have the same form,
without any search. So it does what equality saturation does for them, at no risk of a limit: n factors have 2^n
products, and here they are one multiset.

    poly       a multiset of products: their sum
    product    bound variables, which are summed over, and a multiset of (atom, exponent)
    atom       an element of an input, a number, a function, max or min of polys; a poly where its exponent is not 1
    variable   a factor of an axis and a copy number: 0 where it is free in the whole term; sums of one factor in
               one product have copies of their own

Exponents do not add up: x * (1 / x) stays. Only exp(x) * (1 / exp(x)) is 1, since exp(x - y) is one function of one
value; what that loses is made good where it is asked what contributes (`pipeline.superopt.relevance`).
Everything is interned: forms are compared by their number, and each operation is remembered.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

ONE = 4  # exponents are counted in quarters
COPIES = 16  # of a factor in one product
MANY = 512  # products of a poly
ORDERS = 720  # of the bound copies of a product, tried to find the first one

# What the form is built on, and what it can do without, by the names of the axioms in rules/graph/algebra.py.
FOUNDATIONS = frozenset({
    "add-commutes", "add-associates", "mul-commutes", "mul-associates", "mul-distributes", "sub-adds",
    "neg-multiplies", "div-multiplies", "reciprocal-of-mul", "reciprocal-twice", "div-distributes", "div-of-div",
    "square", "sum-of-sum", "sum-of-add", "sum-of-mul", "sum-of-div", "sqrt-of-mul", "sqrt-of-div", "rsqrt-divides",
    "max-of-max", "max-commutes", "min-of-min", "min-commutes", "prod-of-prod",
})  # fmt: skip
EXP_OF_SUM = frozenset({"exp-of-add", "exp-of-sub"})  # one without the other has no normal form
OPTIONAL = EXP_OF_SUM | {"max-of-add", "max-of-scale", "min-of-add", "min-of-scale", "exp-shift"}

COMMUTATIVE = frozenset({"max", "min", "and", "or", "xor", "eq", "ne"})
SAME = frozenset({"identity", "cast"})

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


class Forms:
    """All normal forms of one goal, by number. A poly is a sorted tuple of products; 0 is the poly without any."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        """`without`: axioms of OPTIONAL that do not hold here."""
        self.without = without
        self.atoms: list[Atom] = []
        self.products: list[Product] = []
        self.polys: list[tuple[int, ...]] = []
        self.free: list[int] = []  # of each poly
        self._atom_ids: dict[tuple[Hashable, ...], int] = {}
        self._product_ids: dict[tuple[tuple[int, ...], tuple[Power, ...]], int] = {}
        self._poly_ids: dict[tuple[int, ...], int] = {}
        self._factors: dict[Hashable, int] = {}
        self._renamed: dict[tuple[str, int, Renaming], int] = {}
        self._memo: dict[tuple[Hashable, ...], int] = {}
        self.cancelled: set[int] = set()  # exponentials that met their reciprocal
        self.minus = -1  # there is none yet
        self.zero = self.poly(())
        self.one = self.poly((self.product(0, ()),))
        self.minus = self.atom("num", -1.0)
        self.minus_one = self.single(self.minus)

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
        for bound, own in self._components(binds, powers):
            if not bound:
                alone.extend(own)
                continue
            inside = functools.reduce(lambda mask, power: mask | self.atoms[power[0]].free, own, 0) & ~bound
            groups.append(
                min(
                    (mask_of(dict(names).get(v, v) for v in bits(bound)), self._renamed_powers(own, names))
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
            alone.extend(self._renamed_powers(own, tuple(names)))
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

    def _renamed_powers(self, powers: Iterable[Power], names: Renaming) -> list[Power]:
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
            aside = self._aside(product.binds, product.free | mask_of(w for _, w in names) | product.binds)
            both = tuple(sorted((*names, *aside)))
            binds = mask_of(w for _, w in aside)
            self._renamed[key] = self.product(binds, self._renamed_powers(product.powers, both))
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
            aside = self._aside(mask_of(atom.vars), atom.free | mask_of(w for _, w in names) | mask_of(atom.vars))
            body = self.rename_poly(atom.args[0], tuple(sorted((*names, *aside))))
            found = self._bound_atom(atom.kind, tuple(w for _, w in aside), body)
        else:
            args = [self.rename_poly(arg, names) for arg in atom.args]
            found = self.atom(atom.kind, atom.head, (), tuple(sorted(args) if atom.head in COMMUTATIVE else args))
        self._renamed[key] = found
        return found

    def _aside(self, binds: int, used: int) -> Renaming:
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

    def _bound_atom(self, kind: str, variables: Sequence[int], body: int) -> int:
        """max, min or prod over the variables, under the first of all namings."""
        binds = mask_of(variables)
        found = []
        for names in self._namings(binds, self.free[body] & ~binds):
            named = mask_of(dict(names).get(v, v) for v in variables)
            found.append((named, self.rename_poly(body, names)))
        binds, body = min(found)
        return self.atom(kind, "", tuple(bits(binds)), (body,))

    # ---- operations

    def leaf(self, number: int, factors: Iterable[Hashable]) -> int:
        return self.single(self.atom("in", number, tuple(sorted(self.variable(factor) for factor in factors))))

    def number(self, value: float) -> int:
        """A number; one below 1 is the reciprocal of another, so that x / n and x * (1 / n) are the same."""
        if value == 1.0:
            return self.one
        if value < 0 and value != -1.0:
            return self.multiply(self.minus_one, self.number(-value))
        if value in (0.0, -1.0) or not math.isfinite(value):
            return self.single(self.atom("num", value))
        small = abs(value) < 1
        rounded = float(f"{1 / value if small else value:.6g}")
        return self.single(self.atom("num", rounded), -ONE if small else ONE)

    def add(self, a: int, b: int) -> int:
        return self.poly(self.polys[a] + self.polys[b])

    def multiply(self, a: int, b: int) -> int:
        key = ("*", *sorted((a, b)))
        if key not in self._memo:
            if len(self.polys[a]) * len(self.polys[b]) > MANY:
                raise TooLarge
            self._memo[key] = self.poly(self.times(x, y) for x in self.polys[a] for y in self.polys[b])
        return self._memo[key]

    def times(self, a: int, b: int) -> int:
        """The product of two products, their bound variables kept apart."""
        x, y = self.products[a], self.products[b]
        powers_x, powers_y, binds_x, binds_y = x.powers, y.powers, x.binds, y.binds
        if binds_x & (y.free | binds_y) or binds_y & x.free:
            used = x.free | y.free | binds_x | binds_y
            names = self._aside(binds_x, used)
            binds_x = mask_of(w for _, w in names)
            powers_x = tuple(self._renamed_powers(powers_x, names))
            names = self._aside(binds_y, used | binds_x)
            binds_y = mask_of(w for _, w in names)
            powers_y = tuple(self._renamed_powers(powers_y, names))
        return self.product(binds_x | binds_y, powers_x + powers_y)

    def reduced(self, kind: str, over: int, poly: int) -> int:
        """The sum, greatest, least or product of a poly over variables."""
        match kind:
            case "sum":
                return self.poly(self.summed(over, product) for product in self.polys[poly]) if over else poly
            case "max" | "min":
                return self.extremum(kind, over, poly)
            case _:
                if over & ~self.free[poly]:
                    raise TooLarge  # a power whose exponent is an extent
                return self._extremum(kind, over, poly)

    def mask(self, factors: Iterable[Hashable]) -> int:
        """The free variables of factors."""
        return mask_of(self.variable(factor) for factor in factors)

    def summed(self, over: int, number: int) -> int:
        product = self.products[number]
        aside = self._aside(product.binds, product.binds | product.free | over) if product.binds & over else ()
        binds = mask_of(w for _, w in aside) if aside else product.binds
        powers = self._renamed_powers(product.powers, aside) if aside else product.powers
        return self.product(binds | over, powers)

    def power(self, poly: int, quarters: int) -> int:
        """A poly to the power of quarters / 4: of each factor of its products by itself where there is one product."""
        if quarters == ONE or poly == self.one:
            return poly
        key = ("**", poly, quarters)
        if key not in self._memo:
            self._memo[key] = self._power(poly, quarters)
        return self._memo[key]

    def _power(self, poly: int, quarters: int) -> int:
        products = self.polys[poly]
        if len(products) != 1:
            shared = self._shared(products)
            if not shared:
                return self.single(self.atom("poly", "", (), (poly,)), quarters)
            rest = self.poly(self._less(product, shared) for product in products)
            outer = self.poly((self.product(0, shared),))
            return self.multiply(self.power(outer, quarters), self.power(rest, quarters))
        result: list[Power] = []
        single = self.products[products[0]]
        for binds, powers in self._components(single.binds, single.powers):
            whole = [exponent * quarters for _, exponent in powers]
            if not binds and all(value % ONE == 0 for value in whole):
                result.extend((atom, value // ONE) for (atom, _), value in zip(powers, whole, strict=True))
            else:
                result.append((self.atom("poly", "", (), (self.poly((self.product(binds, powers),)),)), quarters))
        return self.poly((self.product(0, result),))

    def _components(self, binds: int, powers: Iterable[Power]) -> list[tuple[int, list[Power]]]:
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

    def _shared(self, products: Sequence[int]) -> list[Power]:
        """The powers that all products have, and that vary with none of what they bind."""
        shared: Counter[Power] | None = None
        for number in products:
            product = self.products[number]
            own = Counter(power for power in product.powers if not self.atoms[power[0]].free & product.binds)
            shared = own if shared is None else shared & own
        return sorted((shared or Counter()).elements())

    def _less(self, number: int, powers: Sequence[Power]) -> int:
        product = self.products[number]
        return self.product(product.binds, (Counter(product.powers) - Counter(powers)).elements())

    def exponential(self, poly: int) -> int:
        """exp of a sum is the product of exps; of -x, the reciprocal of exp of x."""
        if self.without & EXP_OF_SUM:
            return self.single(self.atom("app", "exp", (), (poly,)))
        minus = (self.minus, ONE)
        powers: list[Power] = []
        for number in self.polys[poly]:
            negative = minus in self.products[number].powers
            body = self._less(number, [minus]) if negative else number
            powers.append((self.atom("app", "exp", (), (self.poly((body,)),)), -ONE if negative else ONE))
        return self.poly((self.product(0, powers),))

    def extremum(self, kind: str, over: int, poly: int) -> int:
        """max or min over variables: of what varies with them, plus the rest; a positive number comes out."""
        varying = [number for number in self.polys[poly] if self.products[number].free & over]
        if not varying:
            return poly
        if f"{kind}-of-add" in self.without:
            varying = list(self.polys[poly])
        rest = list((Counter(self.polys[poly]) - Counter(varying)).elements())
        body = self.poly(varying)
        scale = [power for power in self._shared(varying) if self.is_positive(power)]
        if f"{kind}-of-scale" in self.without:
            scale = []
        if scale:
            body = self.poly(self._less(number, scale) for number in varying)
        found = self._extremum(kind, over, body)
        return self.add(self.multiply(self.poly((self.product(0, scale),)), found), self.poly(rest))

    def _extremum(self, kind: str, over: int, body: int) -> int:
        over &= self.free[body]
        inner = self.alone(body)
        if inner is not None and self.atoms[inner].kind == kind:
            atom = self.atoms[inner]
            aside = self._aside(mask_of(atom.vars), self.free[atom.args[0]] | mask_of(atom.vars) | over)
            body = self.rename_poly(atom.args[0], aside)
            return self.single(self._bound_atom(kind, [*bits(over), *(w for _, w in aside)], body))
        return self.single(self._bound_atom(kind, list(bits(over)), body))

    def alone(self, poly: int) -> int | None:
        """The atom that a poly is, if it is one."""
        products = self.polys[poly]
        if len(products) != 1:
            return None
        product = self.products[products[0]]
        if product.bound or len(product.powers) != 1 or product.powers[0][1] != ONE:
            return None
        return product.powers[0][0]

    def is_number(self, power: Power) -> bool:
        return self.atoms[power[0]].kind == "num"

    def is_positive(self, power: Power) -> bool:
        value = self.atoms[power[0]].head
        return self.is_number(power) and isinstance(value, float) and value > 0

    def value(self, poly: int) -> float | None:
        """The number that a poly is, if it is one."""
        if len(self.polys[poly]) != 1:
            return None
        product = self.products[self.polys[poly][0]]
        if product.bound or not all(self.is_number(power) for power in product.powers):
            return None
        heads = [(self.atoms[atom].head, exponent) for atom, exponent in product.powers]
        if any(isinstance(head, float) and head <= 0 and exponent % ONE for head, exponent in heads):
            return None
        return math.prod(head ** (exponent / ONE) for head, exponent in heads if isinstance(head, float))

    def apply(self, fn: str, args: Sequence[int]) -> int:
        """A scalar function of polys."""
        match fn, tuple(args):
            case "add", (a, b):
                return self.add(a, b)
            case "sub", (a, b):
                return self.add(a, self.multiply(self.minus_one, b))
            case "mul", (a, b):
                return self.multiply(a, b)
            case "div", (a, b):
                return self.multiply(a, self.power(b, -ONE))
            case "neg", (a,):
                return self.multiply(self.minus_one, a)
            case "reciprocal", (a,):
                return self.power(a, -ONE)
            case "sqrt", (a,):
                return self.power(a, ONE // 2)
            case "rsqrt", (a,):
                return self.power(a, -ONE // 2)
            case "exp", (a,):
                return self.exponential(a)
            case "pow", (a, b):
                return self._to_the(a, b)
            case _, (a,) if fn in SAME:
                return a
            case _:
                ordered = tuple(sorted(args)) if fn in COMMUTATIVE else tuple(args)
                return self.single(self.atom("app", fn, (), ordered))

    def _to_the(self, base: int, exponent: int) -> int:
        value = self.value(exponent)
        if value is not None and value in (2.0, 3.0, 4.0):
            return functools.reduce(self.multiply, [base] * int(value))
        if value is not None and value in (1.0, 0.5, -0.5, -1.0, 0.25, -0.25):
            return self.power(base, round(value * ONE))
        return self.single(self.atom("app", "pow", (), (base, exponent)))
