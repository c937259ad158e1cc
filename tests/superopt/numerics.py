"""The numerics of lowered µGraphs, as a long command: hostile inputs, and random shapes within the derived tolerance.

    python -m tests.superopt.numerics [--shapes 1000] [--seed 0] [--only attention] [--target avx2]

Every kernel is compiled and run; what it gives is compared with the specification in float64.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.build import build_kernel
from pipeline.ir.target import Target
from pipeline.search.candidates import SketchSpace
from pipeline.space.lower import argument_name
from pipeline.superopt.spec import Spec
from pipeline.verification.tolerance import Reference
from pipeline.verification.verdict import Verdict, compare
from tests.codegen.kernel_runs import described, native, run_kernel
from tests.superopt.lowered_cases import (
    LOWEST,
    Case,
    attention,
    full_mlp,
    gated_mlp,
    lora,
    ntrans,
    rmsnorm_linear,
    split_attention,
)
from tests.superopt.lowered_runs import Feeds, at_labels, constants, drawn, reference, sketches

SIZES = (1, 1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 33, 47, 61, 64, 71, 97, 128, 131)
FEW = (1, 2, 3, 5, 7, 8, 13, 16, 31)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """One candidate of a µGraph, compiled."""

    spec: Spec
    kernel: Kernel
    target: Target

    def verdict(self, feeds: Feeds) -> Verdict:
        given = {argument_name(name): array for name, array in feeds.items()}
        want = reference(self.spec, feeds)
        got = at_labels(self.spec, run_kernel(self.kernel, given, self.target)["out0"])
        verdict = compare(got, want)
        return replace(verdict, ok=False, reason=said) if verdict.ok and (said := unsound(want, got)) else verdict


def unsound(want: Reference, got: np.ndarray) -> str:
    """What is wrong with a result also where no bound can be derived, or "": it is NaN or infinite where the reference
    is not, or the other way round, or off by more than 1e-5 of the largest element."""
    finite = np.isfinite(want.value)
    if not np.array_equal(np.where(finite, 0, want.value), np.where(np.isfinite(got), 0, got), equal_nan=True):
        return "it is NaN or infinite at other places than the reference"
    largest = np.abs(want.value[finite]).max(initial=0.0)
    free = finite & np.isinf(want.bound)
    distance = np.abs(np.where(free, got, 0) - np.where(free, want.value, 0))
    worst = float(distance.max(initial=0.0))
    return f"it is off by {worst:.3g} where there is no bound" if worst > 1e-5 * largest else ""


def built(case: Case, target: Target, rng: np.random.Generator) -> Built:
    """A random candidate of a random sketch."""
    spec, graph = case
    found = sketches(spec, graph, target)
    space = SketchSpace(0, found[int(rng.integers(len(found)))], target)
    return Built(spec, build_kernel(space.program(space.draw(1, rng)[0]), target), target)


def hostile_attention(spec: Spec, rng: np.random.Generator) -> Iterator[tuple[str, Feeds]]:
    """Inputs of attention with a mask that is added (labels i, j), by name. Logits of size 80 are exact: each query is
    a unit vector."""
    _, queries, keys, dim, _ = spec.extents
    normal = drawn(spec, seed=int(rng.integers(1 << 30))) | {"mask": np.zeros((queries, keys), np.float32)}
    unit = np.zeros_like(normal["q"])
    unit[:, np.arange(queries), np.arange(queries) % dim] = 1
    signs = rng.choice([-80.0, 80.0], size=normal["k"].shape).astype(np.float32)
    rising = np.sort(rng.uniform(-80, 80, size=normal["k"].shape), axis=1).astype(np.float32)
    yield "logits of ±80", normal | {"q": unit, "k": signs}
    yield "logits that rise from -80 to 80", normal | {"q": unit, "k": rising}
    yield "logits that fall from 80 to -80", normal | {"q": unit, "k": rising[:, ::-1].copy()}
    for value in (-10000.0, LOWEST, -np.inf):
        for what, rows, columns in (
            ("everything", slice(None), slice(None)),
            ("the first row", slice(0, 1), slice(None)),
            ("all keys but the last", slice(None), slice(0, keys - 1)),
            ("the first half of the keys", slice(None), slice(0, keys // 2)),
            ("the last half of the keys", slice(None), slice(keys // 2, None)),
            ("later keys", None, None),
        ):
            mask = np.zeros((queries, keys), np.float32)
            if rows is None or columns is None:
                mask[np.triu_indices(queries, 1, keys)] = value
            else:
                mask[rows, columns] = value
            for size, feeds in (("", normal), (", logits of ±80", normal | {"q": unit, "k": signs})):
                yield f"{what} masked by {value:.3g}{size}", feeds | {"mask": mask}
    for name in ("q", "k", "v", "mask"):
        for value in (np.nan, np.inf, -np.inf):
            for where in (0, -1):
                array = normal[name].copy()
                array[..., where, 0] = value
                yield f"{name} has {value} in its {'last' if where else 'first'} row", normal | {name: array}


def hostile(spec: Spec, rng: np.random.Generator) -> Iterator[tuple[str, Feeds]]:
    """Inputs of any other specification: large ones, zeros, and those that are not finite."""
    normal = drawn(spec, seed=int(rng.integers(1 << 30)))
    yield "zeros", {name: np.zeros_like(array) for name, array in normal.items()}
    yield "large", normal | {"x": normal["x"] * np.float32(80)}
    yield "tiny", normal | {"x": normal["x"] * np.float32(1e-12)}
    for name in normal:
        for value in (np.nan, np.inf, -np.inf):
            array = normal[name].copy()
            array[0, -1] = value
            yield f"{name} has {value}", normal | {name: array}


def hostile_of(name: str, spec: Spec, rng: np.random.Generator) -> Iterator[tuple[str, Feeds]]:
    yield from (hostile_attention if name == "attention" else hostile)(spec, rng)


def hostile_cases(name: str) -> tuple[Case, ...]:
    """The shapes at which hostile inputs are run: one tile of keys, several, and sizes off the vector width."""
    match name:
        case "attention":
            sizes = ((2, 5, 37, 8, 9), (1, 3, 64, 16, 16), (1, 1, 2, 1, 1))
            whole = tuple(attention(*size, scale=scale, mask="add") for size in sizes for scale in (None, 0.125))
            return (*whole, split_attention(2, 3, 53, 8, 9, mask=True), split_attention(1, 1, 7, 3, 2, mask=True))
        case _:
            return (ROUTINES[name](), ROUTINES[name](*(1,) * COUNTS[name]))


ROUTINES: dict[str, Callable[..., Case]] = {
    "attention": attention,
    "rmsnorm_linear": rmsnorm_linear,
    "gated_mlp": gated_mlp,
    "lora": lora,
    "ntrans": ntrans,
    "full_mlp": full_mlp,
}
COUNTS = {"rmsnorm_linear": 3, "gated_mlp": 3, "lora": 4, "ntrans": 2, "full_mlp": 3}  # sizes that each takes


def random_case(name: str, rng: np.random.Generator) -> tuple[str, Case]:
    """A workload at a random shape, with what to call it."""
    if name == "attention":
        heads, queries = int(rng.choice((1, 2, 3))), int(rng.choice(FEW))
        keys, dim, width = (int(n) for n in rng.choice(SIZES, 3))
        mask = str(rng.choice(["", "add", "keys", "where"]))
        scale = (None, 0.125)[int(rng.integers(2))]
        what = f"attention {(heads, queries, keys, dim, width)} mask {mask or 'none'} scale {scale}"
        return what, attention(heads, queries, keys, dim, width, scale=scale, mask=mask)
    sizes = [int(rng.choice(FEW)), *(int(n) for n in rng.choice(SIZES, COUNTS[name] - 1))]
    spec, graph = ROUTINES[name](*sizes)
    packed = [one.name for one in spec.inputs if one.name[0] == "w" and rng.random() < 0.5]
    return f"{name} {tuple(sizes)} packed {packed}", (constants(spec, *packed), graph)


@dataclass(slots=True)
class Tally:
    """Figures of one workload."""

    runs: int = 0
    failed: int = 0
    share: float = 0.0
    relative: float = 0.0
    aside: float = 0.0

    def add(self, verdict: Verdict, what: str) -> None:
        self.runs += 1
        self.aside = max(self.aside, verdict.unstable)
        if verdict.ok:
            self.share = max(self.share, verdict.share)
            self.relative = max(self.relative, verdict.max_relative)
        else:
            self.failed += 1
            print(f"\nWRONG {what}: {verdict.reason}", flush=True)

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.failed} wrong; largest error {100 * self.share:.1f} % of its bound, "
            f"{self.relative:.1e} of the largest element; at most {100 * self.aside:.0f} % of a result without a bound"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=1000, help="random shapes in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*ROUTINES], help="one workload")
    parser.add_argument("--target", choices=["avx2"], help="code for another target that this machine runs")
    given = parser.parse_args()
    target = described(given.target) if given.target else native()
    names = [given.only] if given.only else [*ROUTINES]
    rng = np.random.default_rng(given.seed)
    tallies: dict[str, Tally] = defaultdict(Tally)
    for name in names:
        for case in hostile_cases(name):
            kernel = built(case, target, rng)
            for what, feeds in hostile_of(name, case[0], rng):
                tallies[f"{name}, hostile inputs"].add(kernel.verdict(feeds), f"{name} {case[0].extents}: {what}")
    start = time.monotonic()
    for number in range(given.shapes):
        name = names[number % len(names)]
        what, case = random_case(name, rng)
        kernel = built(case, target, rng)
        feeds = drawn(case[0], seed=int(rng.integers(1 << 30)))
        tallies[f"{name}, random shapes"].add(kernel.verdict(feeds), what)
        print(f"\r{number + 1} of {given.shapes} shapes, {time.monotonic() - start:.0f} s", end="", flush=True)
    print()
    for name, tally in tallies.items():
        print(f"{name:32} {tally}")
    return int(any(tally.failed for tally in tallies.values()))


if __name__ == "__main__":
    raise SystemExit(main())
