"""Random programs times random legal steps keep their meaning."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from pipeline.ir.poly import Poly
from pipeline.ir.program import Loop, Program, walk
from pipeline.ir.program_check import check
from pipeline.schedule.nest import all_blocks, loads_of, places, readers, writers
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    DecomposeReduction,
    Fuse,
    Inline,
    Pack,
    Pad,
    Parallel,
    Reindex,
    Reorder,
    ReverseComputeAt,
    ReverseInline,
    Rfactor,
    SetScope,
    Split,
    Step,
    TransformLayout,
    Unroll,
    Vectorize,
)
from pipeline.schedule.trace import from_json, replay, to_json
from pipeline.schedule.variables import Tile
from tests.schedule.programs import ALL, keeps_meaning

SIZES: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "feed_forward": ("m", "n", "k"),
    "normalise": ("m", "n"),
    "stencil": ("n",),
    "running_sum": ("m", "n"),
    "whole_sum": ("m", "n"),
    "middle": ("m", "k", "n"),
}
SIZE = (1, 2, 3, 4, 5, 7, 8, 11)


def draw_program(rng: random.Random) -> Program:
    kind = rng.choice(sorted(ALL))
    if kind == "convolution":
        r, stride = rng.choice([(1, 1), (3, 1), (3, 2), (1, 2)])
        h, w, c, f = (rng.choice([1, 2, 3, 4, 5]) for _ in range(4))
        return ALL[kind](h=h, w=w, c=c, f=f, r=r, stride=stride)
    sizes = {name: rng.choice(SIZE) for name in SIZES[kind]}
    if rng.random() < 0.1 and kind != "whole_sum":
        # a reduction over nothing has no initial value: that is for lowering to avoid
        sizes |= {name: 0 for name in SIZES[kind][:1]}
    return ALL[kind](**sizes)


def draw_start(rng: random.Random, program: Program) -> Sketch:
    """The program as it is, or as far as a register tile of its product is scheduled."""
    sketch = Sketch(program)
    if program.name not in ("matmul", "feed_forward") or rng.random() < 0.4:
        return sketch
    extents = [found.axes[0].extent for found in walk(program.body.body[0]) if isinstance(found, Loop)]
    for loop, extent in zip("mnk", extents, strict=True):
        symbols = (f"{loop}a", f"{loop}b")
        sketch = sketch.declare(Tile(symbols, extent.value, (1, rng.choice((1, 2, 4))), (8, 8)))
        factors = tuple(Poly.symbol(symbol) for symbol in symbols)
        sketch = sketch.apply(Split(f"mm_{loop}", factors, (f"{loop}0", f"{loop}1", f"{loop}2")))
    order = rng.choice(ORDERS)
    sketch = sketch.apply(Reorder(order))
    typical: list[Step] = [
        CacheWrite("mm", "local", rng.choice(order[2:7])),
        Pack("mm", "B", ("n0", "n1", "k0", "k1", "k2", "n2"), "Bp"),
        Pack("mm", "A", tuple(name for name in order[2:] if name[0] in "mk"), "Ap", order[1]),
        DecomposeReduction("mm", next(name for name in order if name[0] == "k")),
        *(Fuse(("m0", "n0")), Parallel("m0"), Vectorize("n2"), Vectorize("mm_w_1")),
        *(ReverseInline("bias"), ReverseComputeAt("bias", "n0"), ReverseComputeAt("act", rng.choice(order[:5]))),
    ]
    for step in typical:
        if rng.random() < 0.7 and step.why_not(sketch.program) is None:
            sketch = sketch.apply(step)
    return sketch


def draw_step(rng: random.Random, sketch: Sketch, number: int) -> tuple[Sketch, Step]:
    """A step on names that exist, which may or may not be legal, and the sketch with the variables that it needs."""
    program = sketch.program
    loops = [place.stmt for place in places(program) if isinstance(place.stmt, Loop)]
    loop = rng.choice(loops)
    name = loop.axes[0].var
    block, place = rng.choice(all_blocks(program))
    around = [found.axes[0].var for found in place.loops] or [name]
    buffers = sorted({load.buffer for load in loads_of(block)} or {block.buffer})
    buffer = rng.choice(buffers)
    kind = rng.choice(MAKERS)
    match kind:
        case "Split":
            symbols = (f"t{number}a", f"t{number}b")[: rng.randint(1, 2)]
            extent = loop.axes[0].extent
            if not extent.is_constant or rng.random() < 0.5:
                factors: tuple[Poly | int, ...] = tuple(rng.randint(1, 4) for _ in symbols)
            else:
                multiples = tuple(rng.choice([1, 1, 2]) for _ in symbols)
                tile = Tile(symbols, extent.value, multiples, tuple(8 for _ in symbols))
                sketch, factors = sketch.declare(tile), tuple(Poly.symbol(symbol) for symbol in symbols)
            return sketch, Split(name, factors, tuple(f"s{number}_{i}" for i in range(len(symbols) + 1)))
        case "Fuse":
            inner = loop.body.axes[0].var if isinstance(loop.body, Loop) else name
            return sketch, Fuse((name, inner))
        case "Reorder":
            chain = [found.axes[0].var for found in walk(loop) if isinstance(found, Loop)]
            return sketch, Reorder(tuple(rng.sample(chain, len(chain))))
        case "Parallel":
            return sketch, Parallel(around[0])
        case "Vectorize":
            return sketch, Vectorize(around[-1])
        case "Unroll":
            return sketch, Unroll(name)
        case "CacheWrite":
            return sketch, CacheWrite(block.name, rng.choice(["local", "shared"]), rng.choice(around))
        case "CacheRead":
            scope = rng.choice(["local", "shared"])
            return sketch, CacheRead(block.name, buffer, scope, rng.choice(around), f"read{number}")
        case "DecomposeReduction":
            return sketch, DecomposeReduction(block.name, rng.choice(around))
        case "Pack":
            at = rng.choice([None, None, *around])
            inside = [axis.var for axis in place.axes]
            used = rng.sample(inside, len(inside))
            which = rng.choice([None, 0, 1])
            step = Pack(block.name, buffer, tuple(used), f"pack{number}", at, which)
            for _ in range(len(used)):  # leave out what the step says it must
                reason = step.why_not(program)
                if reason is None or "leave it out" not in reason:
                    break
                gone = next(var for var in step.order if f"loop {var} " in reason or f"loop {var}:" in reason)
                step = Pack(block.name, buffer, tuple(v for v in step.order if v != gone), f"pack{number}", at, which)
            return sketch, step
        case "Reindex":
            return sketch, Reindex(block.name, buffer, f"index{number}")
        case "ComputeAt":
            near = [at.axes[0].var for _, there in readers(program, block.buffer) for at in there.loops] or [name]
            return sketch, ComputeAt(block.name, rng.choice(near), rng.choice(["global", "shared", "local"]))
        case "ReverseComputeAt":
            near = [at.axes[0].var for _, there in writers(program, buffer) for at in there.loops] or [name]
            return sketch, ReverseComputeAt(block.name, rng.choice(near))
        case "Inline":
            return sketch, Inline(block.name)
        case "ReverseInline":
            return sketch, ReverseInline(block.name)
        case "Rfactor":
            return sketch, Rfactor(block.name, rng.choice(around), rng.randint(0, 1))
        case "SetScope":
            near = [at.axes[0].var for _, there in writers(program, buffer) for at in there.loops]
            at = rng.choice([None, *near])
            return sketch, SetScope(buffer, rng.choice(["shared", "local"]), at)
        case "Pad":
            return sketch, Pad(buffer, rng.randint(0, 1), rng.choice([1, 4, 8]))
        case _:
            rank = len(program.buffer(buffer).shape)
            tiles = tuple(rng.choice([1, 2, 4]) for _ in range(rank))
            parts = range(rank + sum(tile > 1 for tile in tiles))
            return sketch, TransformLayout(buffer, tiles, tuple(rng.sample(parts, len(parts))))


ORDERS = (
    ("m0", "n0", "m1", "n1", "k0", "k1", "m2", "k2", "n2"),
    ("m0", "n0", "k0", "m1", "n1", "k1", "k2", "m2", "n2"),
    ("m0", "n0", "m1", "k0", "n1", "k1", "k2", "m2", "n2"),
    ("n0", "m0", "k0", "k1", "n1", "m1", "k2", "n2", "m2"),
)
MAKERS = (
    *("Split", "Split", "Fuse", "Reorder", "Parallel", "Vectorize", "Unroll", "CacheWrite", "CacheWrite", "CacheRead"),
    *("DecomposeReduction", "Pack", "Reindex", "ComputeAt", "ComputeAt", "ReverseComputeAt", "ReverseComputeAt"),
    *("Inline", "ReverseInline", "Rfactor", "SetScope", "Pad", "TransformLayout"),
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_legal_steps_keep_the_meaning_of_random_programs(rng: random.Random) -> None:
    program = draw_program(rng)
    sketch = draw_start(rng, program)
    for number in range(rng.randint(1, 10)):
        declared, step = draw_step(rng, sketch, number)
        if step.why_not(declared.program) is None:
            sketch = declared.apply(step)
            check(sketch.program)
    keeps_meaning(program, sketch, samples=2)
    assert replay(program, from_json(to_json(sketch.trace))) == sketch
