"""Nests that several blocks share, for the tests of the rules that schedule what is inside."""

from __future__ import annotations

from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text


def gated_product(
    rows: int = 5, depth: int = 12, columns: int = 22, *, role: str = "input", turned: bool = False, width: int = 8
) -> Program:
    """tanh(X W), columns in tiles of so many, of which the last one may have fewer; W may be stored across."""
    shape, at = (f"{columns}, {depth}", "j, k") if turned else (f"{depth}, {columns}", "k, j")
    return from_text(f"""program gated_product():
    input X: float32[{rows}, {depth}]
    {role} W: float32[{shape}]
    output Y: float32[{rows}, {columns}]
    body:
        for p in parallel({-(-columns // width)}):
            alloc T: float32[{rows}, {width}] in shared:
                for m in serial({rows}):
                    for n in serial({width}):
                        for r in serial({depth}):
                            block product:
                                spatial i in range({rows}) = m
                                spatial l in range({width}) = n
                                spatial j in range({columns}) = p * {width} + n
                                reduce k in range({depth}) = r
                                init 0.0:float32
                                T[i, l] += X[i, k] * W[{at}]
                for a in serial({rows}):
                    for b in serial({width}):
                        block gate:
                            spatial i in range({rows}) = a
                            spatial l in range({width}) = b
                            spatial j in range({columns}) = p * {width} + b
                            Y[i, j] = tanh(T[i, l]) * T[i, l]
""")


def streamed_product(
    rows: int = 2, depth: int = 12, columns: int = 16, tile: int = 5, *, beside: bool = False, blocks: int = 1
) -> Program:
    """X W with the sum in tiles: the accumulator is cleared before the loop over them.

    beside  another block is in that loop too
    blocks  of rows, over which a loop inside the one over tiles runs
    """
    other = (
        f"""
                    for e in serial(8):
                        block mark:
                            spatial q in range({-(-columns // 8)}) = p
                            spatial l in range(8) = e
                            M[q, l] = 1.0:float32"""
        if beside
        else ""
    )
    around = (
        ""
        if blocks == 1
        else f"""
                  for h in serial({blocks}):"""
    )
    return from_text(f"""program streamed_product():
    input X: float32[{rows}, {depth}]
    input W: float32[{depth}, {columns}]
    output Y: float32[{rows}, {columns}]
    {f"intermediate M: float32[{-(-columns // 8)}, 8]" if beside else ""}
    body:
        for p in parallel({-(-columns // 8)}):
            alloc T: float32[{rows}, 8] in shared:
                for z in serial({rows}):
                    for y in serial(8):
                        block clear:
                            spatial i in range({rows}) = z
                            spatial l in range(8) = y
                            T[i, l] = 0.0:float32
                for s in serial({-(-depth // tile)}):{around}{other}
                    for m in serial({rows // blocks}):
                        for n in serial(8):
                            for r in serial({tile}):
                                block product:
                                    spatial i in range({rows}) = {"" if blocks == 1 else f"h * {rows // blocks} + "}m
                                    spatial l in range(8) = n
                                    spatial j in range({columns}) = p * 8 + n
                                    reduce t in range({tile}) = r
                                    reduce k in range({depth}) = s * {tile} + r
                                    T[i, l] += X[i, k] * W[k, j]
                for a in serial({rows}):
                    for b in serial(8):
                        block out:
                            spatial i in range({rows}) = a
                            spatial l in range(8) = b
                            spatial j in range({columns}) = p * 8 + b
                            Y[i, j] = T[i, l]
""")


def dot_products(rows: int = 16, depth: int = 7) -> Program:
    """Of each column of X and row of Z the product, added up: the one lies along the lanes, the other across."""
    return from_text(f"""program dot_products():
    input X: float32[{depth}, {rows}]
    input Z: float32[{rows}, {depth}]
    output Y: float32[{rows}]
    body:
        for p in parallel(1):
            alloc T: float32[{rows}] in shared:
                for n in serial({rows}):
                    for r in serial({depth}):
                        block product:
                            spatial j in range({rows}) = n
                            reduce k in range({depth}) = r
                            init 0.0:float32
                            T[j] += X[k, j] * Z[j, k]
                for b in serial({rows}):
                    block out:
                        spatial j in range({rows}) = b
                        Y[j] = T[j] + T[j]
""")


def row_sums(rows: int = 5, columns: int = 13, kind: str = "+=", init: str = "init 0.0:float32") -> Program:
    """The rows of X, a tile of them in each iteration of a parallel loop: their sums, then each divided by its own."""
    return from_text(f"""program row_sums():
    input X: float32[{rows}, {columns}]
    output Y: float32[{rows}, {columns}]
    body:
        for p in parallel({rows}):
            alloc S: float32[] in shared:
                for r in serial({columns}):
                    block total:
                        spatial i in range({rows}) = p
                        reduce k in range({columns}) = r
                        {init}
                        S[] {kind} X[i, k]
                for b in serial({columns}):
                    block divide:
                        spatial i in range({rows}) = p
                        spatial j in range({columns}) = b
                        Y[i, j] = X[i, j] - S[]
""")


def columns_first(rows: int = 6, columns: int = 11) -> Program:
    """A copy and its transpose in one nest, their loops in the order that fits neither."""
    return from_text(f"""program columns_first():
    input X: float32[{rows}, {columns}]
    output Y: float32[{columns}, {rows}]
    body:
        for p in parallel(1):
            alloc T: float32[{rows}, {columns}] in shared:
                for n in serial({columns}):
                    for m in serial({rows}):
                        block copy:
                            spatial i in range({rows}) = m
                            spatial j in range({columns}) = n
                            T[i, j] = X[i, j] * 2.0:float32
                for a in serial({columns}):
                    for b in serial({rows}):
                        block turn:
                            spatial i in range({rows}) = b
                            spatial j in range({columns}) = a
                            Y[j, i] = T[i, j]
""")


def grid_of_sums(depth: int = 5, columns: int = 9) -> Program:
    """For each point of a grid of two axes in one loop a row of sums of products, with no rows of its own."""
    return from_text(f"""program grid_of_sums():
    input X: float32[2, {depth}]
    input W: float32[3, {columns}, {depth}]
    output Y: float32[2, 3, {columns}]
    body:
        for p, q in parallel(2, 3):
            alloc T: float32[{columns}] in shared:
                for n in serial({columns}):
                    for r in serial({depth}):
                        block product:
                            spatial i in range(2) = p
                            spatial e in range(3) = q
                            spatial j in range({columns}) = n
                            reduce k in range({depth}) = r
                            init 0.0:float32
                            T[j] += X[i, k] * W[e, j, k]
                for b in serial({columns}):
                    block out:
                        spatial i in range(2) = p
                        spatial e in range(3) = q
                        spatial j in range({columns}) = b
                        Y[i, e, j] = T[j] + T[j]
""")
