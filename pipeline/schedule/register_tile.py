"""The sides of a product's register tile on a CPU: what they are multiples of, by how many registers there are."""

from __future__ import annotations

FEW, ROWS = 16, 4  # rows of a register tile are a multiple of the second, unless there are fewer than the first
MANY = 32  # registers: fewer hold half as many rows, and any number of vectors of them


def row_multiple(extent: int | None, registers: int) -> int:
    """Of the rows, of which there are `extent` in all; None: that is not known."""
    if extent is not None and extent < FEW:
        return 1
    return ROWS if registers >= MANY else ROWS // 2


def vector_multiple(extent: int | None, most: int, registers: int) -> int:
    """Of the vectors in a row, which holds `most` elements at most, of `extent` in all; None: that is not known."""
    return 2 if registers >= MANY and extent is not None and extent >= most else 1
