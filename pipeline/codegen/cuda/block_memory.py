"""Where the shared buffers of a region lie in its dynamic shared memory: those that never live together share bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from pipeline.codegen.cuda.emit_state import Place
from pipeline.codegen.memory import Lifetime, plan_memory
from pipeline.ir.lockstep import THREADS
from pipeline.ir.program import Alloc, Block, Buffer, Loop, Seq, Stmt

ALIGNMENTS = (128, 16)  # bytes: a row of all banks, so that swizzles work; where there is no room, the widest access


def shared_buffers(stmt: Stmt) -> list[Buffer]:
    """In program order. What a thread allocates for itself inside a nest is not among them."""
    match stmt:
        case Block():
            return []
        case Seq(body):
            return [buffer for child in body for buffer in shared_buffers(child)]
        case Alloc(buffer, body):
            return [*([buffer] if buffer.scope == "shared" else []), *shared_buffers(body)]
        case Loop(_, body, kind):
            return [] if kind in THREADS else shared_buffers(body)
        case _:
            assert_never(stmt)


def plan_shared(region: Stmt, elements: Mapping[str, int], alignment: int) -> tuple[dict[str, tuple[int, int]], int]:
    """The first byte of each shared buffer and the one after its last, and the bytes of all.

    elements   of the buffers of which a pipeline fills one stage while another is read: of all stages together
    """
    lifetimes: list[Lifetime] = []
    time = 0

    def visit(stmt: Stmt) -> None:
        nonlocal time
        time += 1
        match stmt:
            case Block():
                return
            case Seq(body):
                for child in body:
                    visit(child)
            case Loop(_, body, kind):
                if kind not in THREADS:
                    visit(body)
            case Alloc(buffer, body):
                first = time
                visit(body)
                if buffer.scope == "shared":
                    place = Place(buffer, buffer.name)
                    size = elements.get(buffer.name, place.count) * place.item
                    lifetimes.append(Lifetime(buffer.name, size, first, time))
            case _:
                assert_never(stmt)

    visit(region)
    plan = plan_memory(lifetimes, alignment)
    places = {item.name: (plan.offsets[item.name], plan.offsets[item.name] + item.nbytes) for item in lifetimes}
    return places, plan.total
