"""A reshape as groups of dimensions: the smallest runs of old and new dimensions that hold the same elements."""

from __future__ import annotations

from pipeline.ir.graph import Shape

Groups = tuple[tuple[range, range], ...]


def reshape_groups(source: Shape, target: Shape) -> Groups | None:
    """(dimensions of the source, dimensions of the target) in order; None where there are no elements.

    (4, 6, 1) to (2, 2, 6): ((0), (0, 1)), ((1), (2)), ((2), ())
    """
    if 0 in source:
        return None
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first, second, left, right = i, j, 1, 1
        if i < len(source):
            left, i = source[i], i + 1
        if j < len(target):
            right, j = target[j], j + 1
        while left != right:
            if left < right:
                left, i = left * source[i], i + 1
            else:
                right, j = right * target[j], j + 1
        groups.append((range(first, i), range(second, j)))
    return tuple(groups)


def before_reshape(source: Shape, target: Shape, operand: Shape) -> Shape | None:
    """The shape that an operand has before a reshape from `source` to `target`, with which it broadcasts.

    None where it is broadcast along only a part of the dimensions that the reshape mixes.
    """
    groups = reshape_groups(source, target)
    if groups is None or len(operand) > len(target):
        return None
    full = (1,) * (len(target) - len(operand)) + operand
    shape: list[int] = []
    for old, new in groups:
        wide = [j for j in new if target[j] != 1]
        if all(full[j] == target[j] for j in wide):
            shape.extend(source[i] for i in old) if wide else shape.extend(1 for _ in old)
        elif all(full[j] == 1 for j in wide):
            shape.extend(1 for _ in old)
        else:
            return None
    return tuple(shape)


def axes_before_reshape(source: Shape, target: Shape, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions of `source` that hold what `axes` of `target` hold; None where they are mixed with others."""
    groups = reshape_groups(source, target)
    if groups is None:
        return None
    chosen: list[int] = []
    for old, new in groups:
        wide = [j for j in new if target[j] != 1]
        if wide and all(j in axes for j in wide):
            chosen.extend(old)
        elif any(j in axes for j in wide):
            return None
    return tuple(chosen)


def moves_only_ones(perm: tuple[int, ...], shape: Shape) -> bool:
    """Is the transposition a reshape, because what it moves past one another has one element?"""
    wide = [p for p in perm if shape[p] != 1]
    return wide == sorted(wide)
