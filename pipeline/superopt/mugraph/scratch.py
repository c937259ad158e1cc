"""The scratch of a block graph: in which order its operators run, what is alive when, and where each tile lies.

A block with n loops has 2n + 1 phases: what each depth does before the loops further in, from the outside to the
inside, then what it does after them, from the inside to the outside. The phase of an operator is given (what only the
phase after a loop reads is put there), its place in the phase is free. A tile is alive

    from its producer to its last reader;
    if it is read in a loop that it does not change in, until that loop ends;
    if it is an accumulator or a running maximum of level L, all the time that loop L runs;
    if it is loaded, from its first reader on, or from where the loop begins in which it is read.

An elementwise operator may write over an operand that dies with it. The order is one of least peak: exact in each phase
by dynamic programming over the sets of operators that are done, greedy where these are too many. Offsets are packed
with tiles by size, by length of life and by birth, and the smallest of the three arenas is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pipeline.errors import CheckError
from pipeline.ir.graph import Shape
from pipeline.superopt.mugraph.check import seen_through
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    Map,
    MuGraph,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    Unsqueeze,
    depths,
)
from pipeline.superopt.mugraph.shapes import Shapes

ALIGNMENT = 64  # bytes of a cache line
MOST_STATES = 20_000  # sets of operators of one phase that are looked at before the order becomes greedy


@dataclass(frozen=True, slots=True)
class ScratchPlan:
    """Where the tiles of a block lie in one piece of memory; sizes and offsets in bytes, multiples of the alignment.

    order    the values that operators make, as they run
    phases   of each of them, in that order
    offsets  of each value; None where it takes no room: a number, one that is computed where it is read, one of no size
    before   of each running maximum that a rescaled sum follows: a second tile, of what it was before
    peak     the most that is alive at a time: no plan of this order needs less
    size     of the whole piece
    exact    whether no other order has a smaller peak
    """

    order: tuple[int, ...]
    phases: tuple[int, ...]
    offsets: tuple[int | None, ...]
    before: tuple[tuple[int, int], ...]
    peak: int
    size: int
    exact: bool


def plan_scratch(
    block: BlockGraph,
    sizes: Sequence[int],
    *,
    inlined: Collection[int] = (),
    order: Sequence[int] | None = None,
    align: int = ALIGNMENT,
) -> ScratchPlan:
    """A plan for the tiles of a valid block.

    sizes    of each value in bytes; 0 for an input that is read where it lies
    inlined  values that are not kept: whoever reads one reads its operands instead. An output is kept all the same
    order    of the values that are kept and made by operators, where it is given; CheckError where one runs too early
    """
    return _Planner(block, sizes, frozenset(inlined), align).plan(order)


def live_bytes(block: BlockGraph, tiles: Sequence[Shape], *, item: int = 4, inlined: Collection[int] = ()) -> int:
    """The peak of the bytes that are alive, where each value is a tile of this shape, an element has `item` bytes."""
    sizes = [item * math.prod(shape) for shape in tiles]
    return plan_scratch(block, sizes, inlined=inlined, align=1).peak


def check_scratch(graph: MuGraph, shapes: Shapes, limit: int, *, item: int = 4) -> None:
    """CheckError where a block needs more than `limit` bytes when all its tiles are kept."""
    for number, (node, found) in enumerate(zip(graph.nodes, shapes.blocks, strict=True)):
        if isinstance(node.op, BlockGraph) and found is not None:
            size = plan_scratch(node.op, found.tile_bytes(item)).size
            if size > limit:
                raise CheckError("the tiles of a block do not fit", where=f"µGraph, kernel {number}",
                                 why=f"They take {size} bytes of {limit}",
                                 todo="Give its grid or its loops larger extents")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tile, as the planner sees it.

    value     whose tile it is
    producer  the value whose operator makes it; None where it is loaded
    readers   values whose operators read it
    whole     first and last phase of those in which it is alive all the time; (0, -1) for none
    """

    value: int
    size: int
    producer: int | None
    readers: frozenset[int]
    whole: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _PhasePiece:
    """A tile in one phase; sets of the operators of the phase are bits.

    born     it is alive when the phase begins, or would be if it were read
    makers   any of these brings it to life
    later    it is read in a later phase
    touch    it is alive while one of these runs
    replace  readers whose result may take its place
    """

    size: int
    born: bool
    makers: int
    readers: int
    later: bool
    touch: int
    replace: int

    def alive(self, done: int) -> bool:
        """Is it alive between operators, when these are done?"""
        return bool((self.born or self.makers & done) and (self.later or self.readers & ~done))


class _Planner:
    """One planning: phases and pieces first, then the order, then the offsets."""

    def __init__(self, block: BlockGraph, sizes: Sequence[int], inlined: frozenset[int], align: int) -> None:
        self.block, self.count, self.loops = block, len(block.inputs), len(block.loops)
        self.align = align
        self.depth = depths(block)
        scalars = {v for v, node in enumerate(block.nodes, self.count) if isinstance(node.op, Scalar)}
        self.dropped = (inlined - {out.value for out in block.outputs}) | scalars
        self.reads = {
            value: self._operands(value)
            for value in range(self.count, self.count + len(block.nodes))
            if value not in self.dropped
        }
        self.readers: dict[int, list[int]] = {}
        for value, operands in self.reads.items():
            for operand in operands:
                self.readers.setdefault(operand, []).append(value)
        self.runs = {value: max((self.depth[i] for i in below), default=0) for value, below in self.reads.items()}
        self.phase = self._phases()
        self.pieces = self._pieces(sizes)

    def plan(self, given: Sequence[int] | None) -> ScratchPlan:
        order = list(given or ())
        exact = given is None
        for phase in range(2 * self.loops + 1) if given is None else ():
            here = [value for value in self.reads if self.phase[value] == phase]
            found, best = self._ordered(phase, here)
            order += found
            exact = exact and best
        self._in_order(order)
        lives = self._lives(order)
        peak = max((sum(life.size for life in lives if life.start <= t <= life.end) for t in range(2 * len(order) + 2)),
                   default=0)  # fmt: skip
        size, places = min(
            (_packed(lives, key) for key in (_by_size, _by_length, _by_start)), key=lambda packing: packing[0]
        )
        offsets: list[int | None] = [None] * (self.count + len(self.block.nodes))
        before: list[tuple[int, int]] = []
        for life, offset in zip(lives, places, strict=True):
            for i in life.pieces:
                piece = self.pieces[i]
                if piece.producer is not None and offsets[piece.value] is not None:
                    before.append((piece.value, offset))
                else:
                    offsets[piece.value] = offset
        phases = tuple(self.phase[value] for value in order)
        return ScratchPlan(tuple(order), phases, tuple(offsets), tuple(before), peak, size, exact)

    # What is there

    def _operands(self, value: int) -> tuple[int, ...]:
        """The values that the operator of a value reads, through those that are not kept."""
        found: list[int] = []
        for operand in self.block.nodes[value - self.count].inputs:
            if operand in self.dropped and operand >= self.count:
                found += self._operands(operand)
            elif operand not in self.dropped:
                found.append(operand)
        return tuple(dict.fromkeys(found))

    def _phases(self) -> dict[int, int]:
        late: set[int] = set()
        phase: dict[int, int] = {}
        for value, below in self.reads.items():
            after = any(i in late for i in below)
            if after or isinstance(self.block.nodes[value - self.count].op, Accumulate | RescaledSum):
                late.add(value)
            phase[value] = 2 * self.loops - self.runs[value] if after else self.runs[value]
        for value in reversed(self.reads):  # what is read only after a loop can wait for it, if its operands can
            depth, readers = self.runs[value], self.readers.get(value, [])
            wait = 2 * self.loops - depth
            if (
                self.depth[value] == depth
                and not isinstance(self.block.nodes[value - self.count].op, Running)
                and readers
                and all(phase[reader] == wait for reader in readers)
                and all(i < self.count or self.readers[i] == [value] for i in self.reads[value])
            ):
                phase[value] = wait
        return phase

    def _pieces(self, sizes: Sequence[int]) -> list[_Piece]:
        found: list[_Piece] = []
        for value, size in enumerate(sizes):
            if value in self.dropped or not size:
                continue
            size = -(-size // self.align) * self.align
            readers = frozenset(self.readers.get(value, []))
            depth = self.depth[value]
            whole = self._inside(depth) if any(self.runs[r] > depth for r in readers) else (0, -1)
            producer = None if value < self.count else value
            op = None if producer is None else self.block.nodes[value - self.count].op
            if isinstance(op, Accumulate | Running | RescaledSum):
                whole = self._inside(op.level)
            found.append(_Piece(value, size, producer, readers, whole))
            if followers := self._followers(value):
                found.append(_Piece(value, size, producer, followers, (0, -1)))
        return found

    def _followers(self, value: int) -> frozenset[int]:
        """The rescaled sums that follow a running maximum, whatever views they see it through."""
        return frozenset(
            reader
            for reader in self.reads
            if isinstance(self.block.nodes[reader - self.count].op, RescaledSum)
            and seen_through(self.block, self.block.nodes[reader - self.count].inputs[1]) == value
        )

    def _inside(self, loop: int) -> tuple[int, int]:
        """The first and the last phase of a loop."""
        return loop + 1, 2 * self.loops - loop - 1

    # In which order

    def _in_order(self, order: Sequence[int]) -> None:
        if sorted(order) != sorted(self.reads):
            raise CheckError("the order is not that of the block", where=f"scratch, order {list(order)}",
                             why=f"The values to order are {sorted(self.reads)}")  # fmt: skip
        place = {value: i for i, value in enumerate(order)}
        phases = [self.phase[value] for value in order]
        early = [v for v in order if any(i in place and place[i] > place[v] for i in self.reads[v])]
        if early or phases != sorted(phases):
            why = f"{early} before an operand" if early else f"The phases would be {phases}"
            raise CheckError("an operator runs too early", where=f"scratch, order {list(order)}", why=why)

    def _replaces(self, piece: _Piece, value: int) -> bool:
        """May the result of an elementwise operator take the place of this operand, once it is dead?"""
        op = self.block.nodes[value - self.count].op
        direct = piece.value in self.block.nodes[value - self.count].inputs
        own = next((p for p in self.pieces if p.producer == value), None)
        return direct and isinstance(op, Map | Squeeze | Unsqueeze) and own is not None and own.size == piece.size

    def _ordered(self, phase: int, here: Sequence[int]) -> tuple[list[int], bool]:
        """The operators of a phase in an order of least peak, and whether that is certain."""
        count = len(here)
        below = [sum(1 << i for i, value in enumerate(here) if value in self.reads[of]) for of in here]
        always, pieces = self._in_phase(phase, here)
        own = [next((piece.size for piece in self.pieces if piece.producer == value), 0) for value in here]

        def alive(done: int) -> int:
            return always + sum(piece.size for piece in pieces if piece.alive(done))

        def step(done: int, i: int) -> int:
            """The bytes that are alive while operator i runs."""
            total, bit, spare = always, 1 << i, 0
            for piece in pieces:
                if bit & piece.touch or piece.alive(done):
                    total += piece.size
                    if bit & piece.replace and not piece.alive(done | bit):
                        spare = own[i]
            return total - spare

        # Of equal peaks the one with less alive on the whole; then the order in which they were written.
        best: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
        seen = 0
        for _ in here:
            following: dict[int, tuple[int, int, tuple[int, ...]]] = {}
            for done, (peak, total, order) in best.items():
                for i in range(count):
                    if done >> i & 1 or below[i] & ~done:
                        continue
                    bytes_ = step(done, i)
                    state = (max(peak, bytes_), total + bytes_, (*order, i))
                    key = done | 1 << i
                    if key not in following or state < following[key]:
                        following[key] = state
            best = following
            seen += len(best)
            if seen > MOST_STATES:
                break
        else:
            ((_, _, order),) = best.values()
            return [here[i] for i in order], True
        done, found = 0, list[int]()
        while len(found) < count:
            ready = [i for i in range(count) if not done >> i & 1 and not below[i] & ~done]
            found.append(min(ready, key=lambda i: (alive(done | 1 << i), step(done, i), i)))
            done |= 1 << found[-1]
        return [here[i] for i in found], False

    def _in_phase(self, phase: int, here: Sequence[int]) -> tuple[int, list[_PhasePiece]]:
        """The bytes that are alive all through a phase, and the other pieces, over sets of its operators."""
        bits = {value: 1 << i for i, value in enumerate(here)}
        always, found = 0, list[_PhasePiece]()
        for piece in self.pieces:
            first, last = piece.whole
            if first <= phase <= last:
                always += piece.size
                continue
            readers = sum(bits.get(value, 0) for value in piece.readers)
            makers = readers if piece.producer is None else bits.get(piece.producer, 0)
            earlier = piece.readers if piece.producer is None else (piece.producer,)
            born = any(self.phase[v] < phase for v in earlier) or (piece.producer is None and first <= last < phase)
            later = any(self.phase[value] > phase for value in piece.readers)
            replace = sum(bits[value] for value in piece.readers if value in bits and self._replaces(piece, value))
            found.append(_PhasePiece(piece.size, born, makers, readers, later, makers | readers, replace))
        return always, found

    # Where

    def _lives(self, order: Sequence[int]) -> list[_Life]:
        """Operator i of the order runs at 2i + 1; loops begin and end at the even times between operators."""
        time = {value: 2 * i + 1 for i, value in enumerate(order)}

        def begin(phase: int) -> int:
            return 2 * sum(self.phase[value] < phase for value in order)

        lives: list[_Life] = []
        at: dict[int, int] = {}  # the life of the tile of a value
        for i, piece in sorted(enumerate(self.pieces), key=lambda item: self._birth(item[1], time)):
            readers = [time[r] for r in piece.readers]
            moments = readers + ([] if piece.producer is None else [time[piece.producer]])
            first, last = piece.whole
            if first <= last:
                moments += [begin(first), begin(last + 1)]
            if not moments:
                continue  # an input that only a value which is not kept would have read
            start, end = min(moments), max(moments)
            over = None
            if piece.producer is not None and first > last:
                over = self._dying(piece.producer, start, at, lives)
            if over is not None:
                lives[lives.index(over)] = over = _Life(over.size, over.start, end, (*over.pieces, i))
                at[piece.value] = lives.index(over)
            else:
                lives.append(_Life(piece.size, start, end, (i,)))
                at.setdefault(piece.value, len(lives) - 1)
        return lives

    def _dying(self, value: int, time: int, at: dict[int, int], lives: Sequence[_Life]) -> _Life | None:
        """The life of an operand that ends as the operator of a value runs, and whose place its result may take."""
        for operand in self.block.nodes[value - self.count].inputs:
            if operand in at and lives[at[operand]].end == time:
                life = lives[at[operand]]
                if self._replaces(self.pieces[life.pieces[-1]], value):
                    return life
        return None

    def _birth(self, piece: _Piece, time: dict[int, int]) -> int:
        return -1 if piece.producer is None else time[piece.producer]


@dataclass(frozen=True, slots=True)
class _Life:
    """A place in scratch and the pieces that it holds one after another, from a time to a time, both included."""

    size: int
    start: int
    end: int
    pieces: tuple[int, ...]


def _by_size(life: _Life) -> tuple[int, ...]:
    return (-life.size, life.start, life.pieces[0])


def _by_length(life: _Life) -> tuple[int, ...]:
    return (life.start - life.end, -life.size, life.pieces[0])


def _by_start(life: _Life) -> tuple[int, ...]:
    return (life.start, -life.size, life.pieces[0])


def _packed(lives: Sequence[_Life], key: Callable[[_Life], tuple[int, ...]]) -> tuple[int, list[int]]:
    """Each life at the lowest place that is free all its time, in the order of the key: the size, and the offsets."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(lives)), key=lambda i: key(lives[i])):
        life, lowest = lives[i], 0
        taken = sorted((at, at + lives[j].size) for j, at in offsets.items()
                       if lives[j].start <= life.end and life.start <= lives[j].end)  # fmt: skip
        for start, end in taken:
            if lowest + life.size <= start:
                break
            lowest = max(lowest, end)
        offsets[i] = lowest
    size = max((at + lives[i].size for i, at in offsets.items()), default=0)
    return size, [offsets[i] for i in range(len(lives))]
