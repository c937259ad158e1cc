"""What can contribute to a goal: the polys that everything below it is a part of, and the test of being a part.

In algebra without cancellation a context is a product with something, a sum over variables, or a summand, until the
value becomes the argument of a function. So a term contributes exactly when there is a product r, and a poly P that is
the goal or the argument of a function in it, such that r times the term, summed over some variables, is among the
products of P. P has finitely many products, and r is what one of them has beyond one of the term's.

Arguments are also: what is divided by, what is under a root, the exponents of exponentials together, what is maximised
(also with what came out of it, and over fewer factors).

A softmax is shifted: exp(x) is exp(x - m) * exp(m) where exp(x) is divided by a sum of it, and m is the greatest x
over some of the factors of that sum. So exp(m) and its reciprocal are *units*: r may have them, where the sums allow.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

from pipeline.superopt.goal.interned import COPIES, ONE, Power, Product, Renaming, TooLarge, bits, mask_of
from pipeline.superopt.goal.normal_form import Forms

MANY_POLYS = 4096
SHIFTED = 6  # factors of a softmax whose subsets are all tried
Shape = tuple[Hashable, ...]
Signature = tuple[tuple[int, ...], tuple[int, ...]]


class Relevance:
    """The polys that a goal and its variants are made of, indexed by what occurs in their products."""

    def __init__(self, forms: Forms, roots: Iterable[int], *, shift: bool = True) -> None:
        self.forms = forms
        self.shift = shift
        self.units: set[int] = set()
        self.polys: dict[int, Counter[int]] = {}
        self._index: dict[int, dict[int, set[int]]] = {}  # shape -> poly -> products
        self._shapes: dict[Power, int] = {}
        self._shape_numbers: dict[Shape, int] = {}
        self._known_signatures: dict[int, Counter[Signature]] = {}
        self._answers: dict[int, bool | None] = {}
        self._sums: set[int] = set()  # with an exponent
        for atom in sorted(forms.cancelled):
            self._add_unit(atom)
        self.extend(roots)

    def extend(self, roots: Iterable[int]) -> None:
        """More polys, and all that they are made of."""
        self._answers.clear()
        todo = list(roots)
        while todo:
            poly = todo.pop()
            if poly in self.polys:
                continue
            if len(self.polys) >= MANY_POLYS:
                raise TooLarge
            self.polys[poly] = Counter(self.forms.polys[poly])
            self._sums |= self._sums_below(self.polys[poly])
            for product in self.polys[poly]:
                for power in self.forms.products[product].powers:
                    self._index.setdefault(self._shape(power), {}).setdefault(poly, set()).add(product)
                todo.extend(self._below(self.forms.products[product]))
            todo.extend(self._merged_extrema(poly))

    # ---- what a poly is made of

    def _below(self, product: Product) -> Iterator[int]:
        """The polys that are arguments in a product."""
        forms = self.forms
        for atom, exponent in product.powers:
            known = forms.atoms[atom]
            if known.head != "exp":
                yield from known.args
            if known.kind in ("max", "min", "prod"):
                yield from self._partial(known.kind, known.vars, known.args[0])
            if self.shift and known.kind == "poly" and exponent < 0:
                yield from self._shifts(known.args[0])
        logarithm = self._logarithm(product)
        if logarithm != forms.zero:
            yield logarithm
        divisor = [(atom, -e) for atom, e in product.powers if e < 0 or e % ONE or forms.is_number((atom, e))]
        if any(e < 0 for _, e in product.powers):
            yield self._argument(divisor)
        for root in sorted({abs(e) for _, e in product.powers if e % ONE}):
            for sign in (-1, 1):
                powers = [(atom, e) for atom, e in product.powers if abs(e) == root or forms.is_number((atom, e))]
                whole = [(atom, e * ONE * sign // root) for atom, e in powers if e * ONE % root == 0]
                yield self._argument(whole)

    def _argument(self, powers: Sequence[Power]) -> int:
        """A product of powers, in which the sums without an exponent are multiplied out."""
        forms = self.forms
        sums = [atom for atom, exponent in powers if forms.atoms[atom].kind == "poly" and exponent == ONE]
        rest = [(atom, exponent) for atom, exponent in powers if atom not in sums or exponent != ONE]
        factors = [forms.atoms[atom].args[0] for atom in sums]
        return functools.reduce(forms.multiply, factors, forms.poly((forms.product(0, rest),)))

    def _logarithm(self, product: Product) -> int:
        """The sum of the exponents of the exponentials in a product."""
        forms = self.forms
        found = forms.zero
        for atom, exponent in product.powers:
            if forms.atoms[atom].head == "exp" and abs(exponent) == ONE:
                body = forms.atoms[atom].args[0]
                found = forms.add(found, body if exponent > 0 else forms.multiply(forms.minus_one, body))
        return found

    def _partial(self, kind: str, variables: Sequence[int], body: int) -> Iterator[int]:
        for size in range(1, len(variables)):
            for chosen in itertools.combinations(variables, size):
                yield self.forms.reduced(kind, mask_of(chosen), body)

    def _merged_extrema(self, poly: int) -> Iterator[int]:
        """max(x) + y is max(x + y), and c * max(x) is max(c * x): what is maximised there."""
        forms = self.forms
        for number in set(forms.polys[poly]):
            product = forms.products[number]
            inner = [(a, e) for a, e in product.powers if forms.atoms[a].kind in ("max", "min") and e == ONE]
            rest = [power for power in product.powers if not forms.is_positive(power)]
            if product.bound or len(inner) != 1 or rest != inner:
                continue
            atom = forms.atoms[inner[0][0]]
            scale = [power for power in product.powers if forms.is_positive(power)]
            scaled = forms.multiply(forms.poly((forms.product(0, scale),)), atom.args[0])
            others = list(forms.polys[poly])
            others.remove(number)
            if scale:
                yield scaled
            apart = mask_of(atom.vars)
            if others and not any(forms.products[other].free & apart for other in others):
                yield forms.add(scaled, forms.poly(others))

    # ---- the shift of a softmax

    def _shifts(self, divisor: int) -> Iterator[int]:
        """What the maxima of the exponents in a divisor add to what contributes."""
        forms = self.forms
        for number in forms.polys[divisor]:
            product = forms.products[number]
            exponent = self._logarithm(product)
            over = [v for v in product.bound if forms.free[exponent] >> v & 1]
            if not over or len(over) > SHIFTED:
                continue
            exponent, over = self._with_first_copies(exponent, over)
            sizes = range(1, len(over) + 1)
            chosen = [c for size in sizes for c in itertools.combinations(over, size)]
            maxima = [forms.extremum("max", mask_of(c), exponent) for c in chosen]
            for greatest in maxima:
                for body in forms.polys[greatest]:
                    self._add_unit(forms.atom("app", "exp", (), (forms.poly((body,)),)))
                # what exp(x) * exp(-m) * exp(n) is the exponential of; x - m and n - m are parts of it
                shifted = forms.apply("sub", (exponent, greatest))
                yield greatest
                yield from (forms.add(shifted, other) for other in maxima)

    def _add_unit(self, atom: int) -> None:
        self.units.add(self.forms.rename_atom(atom, self._to_first_copies(self.forms.atoms[atom].free)))

    def _with_first_copies(self, poly: int, variables: Sequence[int]) -> tuple[int, list[int]]:
        names = self._to_first_copies(self.forms.free[poly])
        new = dict(names)
        return self.forms.rename_poly(poly, names), [new.get(v, v) for v in variables]

    @staticmethod
    def _to_first_copies(free: int) -> Renaming:
        """Copy 0 for every variable whose factor has no other copy among the free ones."""
        factors = Counter(v // COPIES for v in bits(free))
        return tuple((v, v // COPIES * COPIES) for v in bits(free) if v % COPIES and factors[v // COPIES] == 1)

    # ---- the test

    def contributes(self, poly: int) -> bool | None:
        """Whether a value is a part of the goal, or of something equal to it; None: not known."""
        if poly not in self._answers:
            found: bool | None = self._is_part(poly)
            self._answers[poly] = None if not found and self._may_be_split(poly) else found
        return self._answers[poly]

    def _may_be_split(self, poly: int) -> bool:
        """Whether a sum that is divided by, or is under a root, may be a product of sums, or a factor of one.

        The form does not factor sums: 1 / ((a + b) * (c + d)) is not 1 / (a + b) * 1 / (c + d) there.
        """
        forms = self.forms
        for mine in self._sums_below(forms.polys[poly]) - self._sums:
            size = len(forms.polys[mine])
            if any(len(forms.polys[a]) * len(forms.polys[b]) == size for a in self._sums for b in self._sums):
                return True
            for whole in self._sums:
                count = len(forms.polys[whole])
                if size < count and count % size == 0 and self._is_part(mine):
                    return True
        return False

    def _sums_below(self, products: Iterable[int]) -> set[int]:
        """The sums of several products that have an exponent in these products."""
        atoms = {atom for product in products for atom, _ in self.forms.products[product].powers}
        args = {self.forms.atoms[atom].args[0] for atom in atoms if self.forms.atoms[atom].kind == "poly"}
        return {arg for arg in args if len(self.forms.polys[arg]) > 1}

    def _is_part(self, poly: int) -> bool:
        forms = self.forms
        if poly in self.polys:
            return True
        products = forms.polys[poly]
        if len(products) == 1:
            powers = forms.products[products[0]].powers
            if not forms.products[products[0]].bound and all(self._is_unit(power) for power in powers):
                return self._modest(powers)
        elif len(products) == 0:
            return True
        order = sorted(Counter(products), key=lambda n: (-forms.products[n].free.bit_count(), n))
        first = order[0]
        for product, hosts in self._hosts(products, first).items():
            for names, bound, beyond in self._embeddings(forms.products[first], forms.products[product]):
                if len(products) == 1 or self._fits(poly, hosts, product, names, bound, beyond):
                    return True
        return False

    def _hosts(self, products: Sequence[int], first: int) -> dict[int, list[int]]:
        """The products with everything of the first of a part, and the polys of each that have all of the part."""
        forms = self.forms
        polys: set[int] | None = None
        for number in products:
            for shape in self._signature(0, forms.products[number].powers)[1]:
                found = self._index.get(shape)
                if found is None:
                    return {}
                polys = set(found) if polys is None else polys & found.keys()
                if not polys:
                    return {}
        needed = [self._shape(power) for power in forms.products[first].powers if not self._is_unit(power)]
        hosts: dict[int, list[int]] = {}
        for poly in self.polys if polys is None else sorted(polys):
            if len(forms.polys[poly]) < len(products):
                continue
            own: Iterable[int] = self.polys[poly]
            for shape in needed:
                own = [number for number in own if number in self._index.get(shape, {}).get(poly, ())]
            for number in sorted(own):
                hosts.setdefault(number, []).append(poly)
        return hosts

    def _fits(self, poly: int, hosts: Sequence[int], product: int, names: Renaming, bound: int,
              beyond: Sequence[Power]) -> bool:  # fmt: skip
        """Whether the other products of a part, with the same rest, are in a host too."""
        forms = self.forms
        parts = Counter(forms.polys[poly])
        alike: Counter[Signature] = Counter()
        over = tuple(v // COPIES for v in bits(bound))
        for number, count in parts.items():
            part = forms.products[number]
            factors, shapes = self._signature(part.binds, (*part.powers, *beyond))
            alike[tuple(sorted(factors + over)), shapes] += count
        hosts = [host for host in hosts if alike <= self._signatures(host)]
        if not hosts:
            return False
        rest = forms.product(0, beyond)
        named = {v for v, _ in names}
        there = forms.products[product].free | forms.products[product].binds
        missing = [v for v in bits(forms.free[poly]) if v not in named]
        options = [
            [w for w in bits(there) if w // COPIES == v // COPIES] or [v] if there & _COPIES_BEYOND_THE_FIRST else [v]
            for v in missing
        ]
        for chosen in itertools.product(*options):
            both = tuple(sorted((*names, *zip(missing, chosen, strict=True))))
            needed: Counter[int] = Counter()
            for number, count in parts.items():
                whole = forms.times(rest, forms.rename_product(number, both))
                needed[forms.summed(bound, whole)] += count
            if any(needed <= self.polys[host] for host in hosts):
                return True
        return False

    def _embeddings(self, part: Product, whole: Product) -> Iterator[tuple[Renaming, int, list[Power]]]:
        """The ways in which a product is a part of another: new names of its variables, and what the rest is.

        The rest: which variables it binds, and its powers.
        """
        if len(part.bound) > len(whole.bound) or len(part.powers) > len(whole.powers) + 2:
            return
        there = Counter(self._shape(power) for power in whole.powers)
        if Counter(self._shape(power) for power in part.powers if not self._is_unit(power)) - there:
            return
        for names, left, units in self._pairings(part.powers, 0, {}, list(whole.powers)):
            image = self._bound_image(part, whole, names)
            if image is None:
                continue
            free = tuple((v, w) for v, w in sorted(names.items()) if part.free >> v & 1)
            beyond = left + [(self.forms.rename_atom(atom, tuple(sorted(names.items()))), -e) for atom, e in units]
            if any(self.forms.atoms[atom].free & image for atom, _ in beyond):
                continue
            if any(image >> w & 1 for _, w in free) or not self._modest(units):
                continue
            yield free, whole.binds & ~image, beyond

    def _bound_image(self, part: Product, whole: Product, names: dict[int, int]) -> int | None:
        """The variables of `whole` that those bound in `part` are; None where one is not bound there."""
        image = 0
        used = 0
        for atom, _ in whole.powers:
            used |= self.forms.atoms[atom].free
        for variable in part.bound:
            target = names.get(variable)
            if target is None:
                free = [w for w in whole.bound if w // COPIES == variable // COPIES and not (used | image) >> w & 1]
                target = free[0] if free else None
            if target is None or not whole.binds >> target & 1 or image >> target & 1:
                return None
            image |= 1 << target
        return image

    def _pairings(self, powers: Sequence[Power], at: int, names: dict[int, int], left: list[Power]
                  ) -> Iterator[tuple[dict[int, int], list[Power], list[Power]]]:  # fmt: skip
        """Each power paired with one of `left` that it is under some naming, or set aside as a unit."""
        if at == len(powers):
            yield names, left, []
            return
        atom, exponent = powers[at]
        shape = self._shape(powers[at])
        for other in dict.fromkeys(left):
            if other[1] != exponent or self._shape(other) != shape:
                continue
            for extended in self._unified(atom, other[0], names):
                rest = list(left)
                rest.remove(other)
                yield from self._pairings(powers, at + 1, extended, rest)
        if self._is_unit(powers[at]):
            for found, rest, units in self._pairings(powers, at + 1, names, left):
                yield found, rest, [*units, powers[at]]

    def _unified(self, atom: int, other: int, names: dict[int, int]) -> Iterator[dict[int, int]]:
        """The extensions of a naming under which one atom is the other."""
        forms = self.forms
        mine, theirs = forms.atoms[atom].free, forms.atoms[other].free
        if mine == theirs and not mine & _COPIES_BEYOND_THE_FIRST:
            if atom == other:  # there is one name for each variable, its own
                own = {v: v for v in bits(mine)}
                if all(names.get(v, v) == v for v in own):
                    yield {**names, **own}
            return
        if mine.bit_count() != theirs.bit_count():
            return
        missing = [v for v in bits(mine) if v not in names]
        taken = set(names.values())
        options = [[w for w in bits(theirs) if w // COPIES == v // COPIES and w not in taken] for v in missing]
        for chosen in itertools.product(*options):
            if len(set(chosen)) < len(chosen):
                continue
            extended = {**names, **dict(zip(missing, chosen, strict=True))}
            if forms.rename_atom(atom, tuple(sorted(extended.items()))) == other:
                yield extended

    def _shape(self, power: Power) -> int:
        """A number for what a power has in common with all that it is under another naming."""
        found = self._shapes.get(power)
        if found is None:
            atom = self.forms.atoms[power[0]]
            key = (atom.kind, atom.head, len(atom.args), len(atom.vars), atom.free.bit_count(), power[1])
            found = self._shapes[power] = self._shape_numbers.setdefault(key, len(self._shape_numbers))
        return found

    def _signature(self, binds: int, powers: Iterable[Power]) -> Signature:
        """What two products have in common that differ in names, a sign, and exponentials."""
        minus, atoms = self.forms.minus, self.forms.atoms
        shapes = sorted(self._shape(power) for power in powers
                        if power[0] != minus and atoms[power[0]].head != "exp")  # fmt: skip
        return tuple(v // COPIES for v in bits(binds)), tuple(shapes)

    def _signatures(self, poly: int) -> Counter[Signature]:
        found = self._known_signatures.get(poly)
        if found is None:
            products = [self.forms.products[number] for number in self.forms.polys[poly]]
            found = Counter(self._signature(product.binds, product.powers) for product in products)
            self._known_signatures[poly] = found
        return found

    def _is_unit(self, power: Power) -> bool:
        atom, exponent = power
        if not self.units or abs(exponent) != ONE or self.forms.atoms[atom].head != "exp":
            return False
        return self.forms.rename_atom(atom, self._to_first_copies(self.forms.atoms[atom].free)) in self.units

    @staticmethod
    def _modest(units: Sequence[Power]) -> bool:
        """One shift and its inverse: an exponential is shifted once."""
        signs = Counter(exponent > 0 for _, exponent in units)
        return max(signs.values(), default=0) <= 1


_COPIES_BEYOND_THE_FIRST = sum(1 << v for v in range(64 * COPIES) if v % COPIES)
