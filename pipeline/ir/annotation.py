"""What a loop may be annotated with: hints to the code generator, which the meaning of a program never depends on."""

from __future__ import annotations

from collections.abc import Mapping

Annotation = tuple[str, int | str]

PARAMETRIC = frozenset({"software_pipeline"})  # their number may be that of a parameter, given by its name

KNOWN: Mapping[str, tuple[type, str]] = {
    "prefetch": (int, "so many iterations ahead, ask for the memory that an iteration of the serial loop reads"),
    "blockize": (str, "the loop belongs to the unit whose outermost loop has that name: steps do not break it up"),
    "tensorize": (str, "the nest from this loop on is what the intrinsic of that name computes: emit the intrinsic"),
    "software_pipeline": (
        int,
        "so many iterations of the loop are under way at a time: the copies from global into shared memory that begin "
        "an iteration are started that many iterations less one ahead, into buffers of their own",
    ),
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
    if key in PARAMETRIC and isinstance(value, str) and value:
        return None
    if type(value) is not kind or (isinstance(value, int) and value < 1):
        what = "a positive number" if kind is int else "a name"
        return f"{key} is {value!r}, not {what} ({meaning})"
    return None


def parameter_of(annotation: Annotation) -> str | None:
    """The name of the parameter whose value the annotation's number is."""
    key, value = annotation
    return value if key in PARAMETRIC and isinstance(value, str) else None


def bound_annotation(annotation: Annotation, values: Mapping[str, int]) -> Annotation:
    """The annotation with the value of its parameter."""
    name = parameter_of(annotation)
    return annotation if name is None or name not in values else (annotation[0], values[name])
