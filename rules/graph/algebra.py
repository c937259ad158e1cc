"""The algebra that the superoptimizer prunes by: axioms as data, and a user's own beside them.

There is no cancellation of a divisor (x * y / y is not x here): with it everything would be a part of everything, and
nothing could be ruled out. The one exception is the shift of an exponential by a maximum, which a safe softmax needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.errors import ConfigError, listed
from pipeline.ir.axiom import Axiom

AXIOMS: dict[str, str] = {
    "add-commutes": "x + y <-> y + x",
    "add-associates": "x + (y + z) <-> (x + y) + z",
    "mul-commutes": "x * y <-> y * x",
    "mul-associates": "x * (y * z) <-> (x * y) * z",
    "mul-distributes": "x * (y + z) <-> x * y + x * z",
    "sub-adds": "x - y <-> x + -1 * y",
    "neg-multiplies": "-x <-> -1 * x",
    "div-multiplies": "x / y <-> x * reciprocal(y)",
    "reciprocal-of-mul": "reciprocal(x * y) <-> reciprocal(x) * reciprocal(y)",
    "reciprocal-twice": "reciprocal(reciprocal(x)) -> x",
    "div-distributes": "(x + y) / z <-> x / z + y / z",
    "div-of-div": "(x / y) / z <-> x / (y * z)",
    "square": "pow(x, 2) <-> x * x",
    "sum-of-sum": "sum(F, sum(G, x)) <-> sum(F | G, x)  if F apart from G",
    "sum-of-add": "sum(F, x + y) <-> sum(F, x) + sum(F, y)",
    "sum-of-mul": "sum(F, x * y) <-> sum(F, x) * y  if F not in y",
    "sum-of-div": "sum(F, x / y) <-> sum(F, x) / y  if F not in y",
    "sqrt-of-mul": "sqrt(x * y) <-> sqrt(x) * sqrt(y)  if x >= 0 and y >= 0",
    "sqrt-of-div": "sqrt(x / y) <-> sqrt(x) / sqrt(y)  if x >= 0 and y > 0",
    "rsqrt-divides": "rsqrt(x) <-> 1 / sqrt(x)  if x > 0",
    "exp-of-add": "exp(x + y) <-> exp(x) * exp(y)",
    "exp-of-sub": "exp(x - y) -> exp(x) / exp(y)",
    "max-of-max": "max(F, max(G, x)) <-> max(F | G, x)  if F apart from G",
    "max-of-add": "max(F, x + y) <-> max(F, x) + y  if F not in y",
    "max-of-scale": "max(F, c * x) <-> c * max(F, x)  if c is number and c > 0",
    "max-commutes": "max(x, y) <-> max(y, x)",
    "min-of-min": "min(F, min(G, x)) <-> min(F | G, x)  if F apart from G",
    "min-of-add": "min(F, x + y) <-> min(F, x) + y  if F not in y",
    "min-of-scale": "min(F, c * x) <-> c * min(F, x)  if c is number and c > 0",
    "min-commutes": "min(x, y) <-> min(y, x)",
    "prod-of-prod": "prod(F, prod(G, x)) <-> prod(F | G, x)  if F apart from G",
    "exp-shift": "exp(x) <-> exp(x - max(F, x)) * exp(max(F, x))",
}
NAMED = re.compile(r"\s*([a-z][a-z0-9-]*)\s*:(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Algebra:
    """The axioms by which a value is known to be a part of something that equals the goal.

    extra    a user's own, as text; with a name before a colon: "softsign: x / (1 + abs(x)) <-> ..."
    without  names of axioms that are left out

    Each axiom is tested on random values before it is used, and a wrong one is refused with a counter-example. Pruning
    is all that they are for: what is found is proven without them.
    """

    extra: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def axioms(self) -> tuple[Axiom, ...]:
        """Those that are left, in order. ConfigError for a name that is not known or known twice."""
        unknown = sorted(set(self.without) - set(AXIOMS))
        if unknown:
            raise ConfigError("an axiom to be left out does not exist", where="algebra.without", why=listed(unknown),
                              todo=f"Choose of {listed(AXIOMS)}")  # fmt: skip
        found = [Axiom.parse(text, name) for name, text in AXIOMS.items() if name not in self.without]
        for text in self.extra:
            match = NAMED.match(text)
            axiom = Axiom.parse(match[2].strip(), match[1]) if match else Axiom.parse(text)
            if axiom.name in AXIOMS or axiom.name in {other.name for other in found}:
                raise ConfigError("an axiom has the name of another", where="algebra.extra", why=axiom.name,
                                  todo="Give it a name of its own")  # fmt: skip
            found.append(axiom)
        return tuple(found)
