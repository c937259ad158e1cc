"""What a loop may be annotated with: hints to the code generator, which the meaning of a program never depends on."""

from __future__ import annotations

from collections.abc import Mapping

Annotation = tuple[str, int | str]

KNOWN: Mapping[str, tuple[type, str]] = {
    "prefetch": (int, "so many iterations ahead, ask for the memory that an iteration of the serial loop reads"),
    "blockize": (str, "the loop belongs to the unit whose outermost loop has that name: steps do not break it up"),
    "tensorize": (str, "the nest from this loop on is what the intrinsic of that name computes: emit the intrinsic"),
    "prefetch_next": (
        str,
        "in each iteration, ask for the memory that it will read when the serial loop of that name around it is one on",
    ),
}


def wrong(key: str, value: int | str) -> str | None:
    """Why there is no such annotation."""
    if key not in KNOWN:
        return f"there is no annotation {key}: the annotations are {', '.join(KNOWN)}"
    kind, meaning = KNOWN[key]
    if type(value) is not kind or (isinstance(value, int) and value < 1):
        what = "a positive number" if kind is int else "a name"
        return f"{key} is {value!r}, not {what} ({meaning})"
    return None
