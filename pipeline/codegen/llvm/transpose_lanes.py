"""Square matrices in registers, turned by shuffles: as many vectors as each of them has lanes."""

from __future__ import annotations

from pipeline.codegen.llvm.ir_builder import IrBuilder, Value, vector_type

CHUNK = 16  # bytes: what x86 shuffles within at once, and all of a vector elsewhere


def transpose(b: IrBuilder, rows: list[Value], item_bytes: int) -> list[Value]:
    """Lane i of result j is lane j of row i. The number of rows is a power of two and that of the lanes.

    First pieces of neighbouring rows are interleaved within chunks of 16 bytes, then whole chunks change places: each
    of the log2(rows) stages is one shuffle (unpck, vperm2f128, vshuff32x4, zip) for each vector.
    """
    count = len(rows)
    assert count & (count - 1) == 0 and all(row.lanes == count for row in rows), "not a square of a power of two"
    within = min(count, max(1, CHUNK // item_bytes))
    # what is in each lane: (row, lane) of the matrix
    held = [[(i, j) for j in range(count)] for i in range(count)]
    vectors = list(rows)
    apart = 1
    while apart < count:
        first, second = _interleave(count, within, apart) if apart < within else _chunks(count, within)
        for i in range(count):
            if not i & apart:
                pair, old = (vectors[i], vectors[i + apart]), held[i] + held[i + apart]
                vectors[i], vectors[i + apart] = _shuffle(b, pair, first), _shuffle(b, pair, second)
                held[i], held[i + apart] = [old[lane] for lane in first], [old[lane] for lane in second]
        apart *= 2
    columns: dict[int, Value] = {}
    for vector, lanes in zip(vectors, held, strict=True):
        column = lanes[0][1]
        assert lanes == [(i, column) for i in range(count)], "the stages do not transpose"
        columns[column] = vector
    return [columns[j] for j in range(count)]


def _interleave(count: int, within: int, unit: int) -> tuple[list[int], list[int]]:
    """Units of the lower halves of two vectors' chunks in turn; those of the upper halves."""
    results = []
    for half in (0, within // 2):
        lanes: list[int] = []
        for chunk in range(0, count, within):
            for start in range(chunk + half, chunk + half + within // 2, unit):
                for vector in (0, count):
                    lanes.extend(range(vector + start, vector + start + unit))
        results.append(lanes)
    return results[0], results[1]


def _chunks(count: int, within: int) -> tuple[list[int], list[int]]:
    """The even chunks of two vectors, one vector after the other; the odd ones."""
    results = []
    for odd in (0, within):
        starts = [vector + start for vector in (0, count) for start in range(odd, count, 2 * within)]
        results.append([lane for start in starts for lane in range(start, start + within)])
    return results[0], results[1]


def _shuffle(b: IrBuilder, pair: tuple[Value, Value], lanes: list[int]) -> Value:
    type_ = vector_type(pair[0].type, len(lanes))
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    return b.assign(
        f"shufflevector {type_} {pair[0]}, {type_} {pair[1]}, <{len(lanes)} x i32> <{mask}>", pair[0].type, len(lanes)
    )
