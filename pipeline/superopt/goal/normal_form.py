"""The normal form of terms: multisets of products with their sums in front, under algebra without cancellation.

Commutativity and associativity of + and *, distributivity, sums of sums and of products, reciprocals and roots of
products, and exponentials of sums are identities of this form: terms that these axioms make equal have the same form,
without any search. So it does what equality saturation does for them, at no risk of a limit: n factors have 2^n
products, and here they are one multiset (`pipeline.superopt.goal.interned`).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from pipeline.superopt.goal.interned import COMMUTATIVE, MANY, ONE, Interned, Power, TooLarge, bits, mask_of

# What the form is built on, and what it can do without, by the names of the axioms in rules/graph/algebra.py.
FOUNDATIONS = frozenset({
    "add-commutes", "add-associates", "mul-commutes", "mul-associates", "mul-distributes", "sub-adds",
    "neg-multiplies", "div-multiplies", "reciprocal-of-mul", "reciprocal-twice", "div-distributes", "div-of-div",
    "square", "sum-of-sum", "sum-of-add", "sum-of-mul", "sum-of-div", "sqrt-of-mul", "sqrt-of-div", "rsqrt-divides",
    "max-of-max", "max-commutes", "min-of-min", "min-commutes", "prod-of-prod",
})  # fmt: skip
EXP_OF_SUM = frozenset({"exp-of-add", "exp-of-sub"})  # one without the other has no normal form
OPTIONAL = EXP_OF_SUM | {"max-of-add", "max-of-scale", "min-of-add", "min-of-scale", "exp-shift"}
SAME = frozenset({"identity", "cast"})


class Forms(Interned):
    """The operations on the normal forms of one goal, by their numbers. Each is remembered."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        """`without`: axioms of OPTIONAL that do not hold here."""
        super().__init__()
        self.without = without
        self._memo: dict[tuple[Hashable, ...], int] = {}
        self.zero = self.poly(())
        self.one = self.poly((self.product(0, ()),))
        self.minus_one = self.single(self.minus)

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
        rounded = float(f"{1 / value if small else value:.12g}")
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
            names = self.aside(binds_x, used)
            binds_x = mask_of(w for _, w in names)
            powers_x = tuple(self.renamed_powers(powers_x, names))
            names = self.aside(binds_y, used | binds_x)
            binds_y = mask_of(w for _, w in names)
            powers_y = tuple(self.renamed_powers(powers_y, names))
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
        aside = self.aside(product.binds, product.binds | product.free | over) if product.binds & over else ()
        binds = mask_of(w for _, w in aside) if aside else product.binds
        powers = self.renamed_powers(product.powers, aside) if aside else product.powers
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
        for binds, powers in self.components(single.binds, single.powers):
            whole = [exponent * quarters for _, exponent in powers]
            if not binds and all(value % ONE == 0 for value in whole):
                result.extend((atom, value // ONE) for (atom, _), value in zip(powers, whole, strict=True))
            else:
                result.append((self.atom("poly", "", (), (self.poly((self.product(binds, powers),)),)), quarters))
        return self.poly((self.product(0, result),))

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
            aside = self.aside(mask_of(atom.vars), self.free[atom.args[0]] | mask_of(atom.vars) | over)
            body = self.rename_poly(atom.args[0], aside)
            return self.single(self.bound_atom(kind, [*bits(over), *(w for _, w in aside)], body))
        return self.single(self.bound_atom(kind, list(bits(over)), body))

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
