"""The weights of an artifact: a safetensors file whose data section is the constants area, ready to be mapped.

The format allows no holes and the library that writes it aligns nothing, while kernels read vectors at multiples of 64
bytes; so the file is written here, with small tensors named `padding.N` between the others and a header that ends on a
multiple of 64. Any safetensors reader can read it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.codegen.llvm.link import aligned_empty
from pipeline.codegen.memory import ALIGNMENT
from pipeline.codegen.module import Weight
from pipeline.errors import UserError
from pipeline.ir.graph import ITEM_BYTES
from pipeline.measurement.host import memory_of_host

_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_PIECE = 1 << 24
_HUGE_FROM = 1 << 22  # bytes from which on NumPy asks for huge pages
_SHARE = 16  # of the machine's memory


def chunks(weights: Sequence[Weight], data: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[bytes | memoryview]:
    """The file, piece by piece."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body: list[Any] = []
    end = 0
    for weight in weights:
        if weight.offset > end:
            header[f"padding.{len(header)}"] = _entry("U8", (weight.offset - end,), end, weight.offset)
            body.append(bytes(weight.offset - end))
        array = np.ascontiguousarray(data[weight.name])
        end = weight.offset + array.nbytes
        header[weight.name] = _entry(_CODES[weight.dtype], weight.shape, weight.offset, end)
        body.append(array.reshape(-1).view(np.uint8))
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for part in body:
        view = memoryview(part)
        for start in range(0, view.nbytes, _PIECE):
            yield view[start : start + _PIECE]


def area_bytes(weights: Sequence[Weight]) -> int:
    """Size of the constants area."""
    return max((w.offset + int(np.prod(w.shape, dtype=np.int64)) * ITEM_BYTES[w.dtype] for w in weights), default=0)


def worth_a_copy(nbytes: int, root: Path = Path("/")) -> bool:
    """Whether weights are read into huge pages unless the caller says otherwise: the system has some, the weights are
    large enough to get them, and they take a sixteenth of the memory at most. Products that stream them are up to a
    tenth faster then."""
    try:
        modes = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return False
    return "[never]" not in modes and _HUGE_FROM <= nbytes <= memory_of_host(root) // _SHARE


def map_area(path: Path, nbytes: int, *, copy: bool = False) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The constants area, read from disk when it is first touched and shared by all processes that map it.

    copy  read all of it now into memory of this process, in huge pages where the system has them
    """
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if size != start + nbytes:
            raise UserError(
                "the weights are not whole",
                where=str(path),
                why=f"the file has {size} bytes and {start + nbytes} are expected",
                todo="Copy or make the artifact again",
            )
        if nbytes == 0:
            return np.zeros(0, np.uint8)
        # A header of another writer may end anywhere, but kernels rely on the alignment.
        if copy or start % ALIGNMENT != 0:
            memory = aligned_empty(nbytes)  # in huge pages; a shared mapping, as `mmap` makes, gets none
            file.seek(start)
            file.readinto(memory.data)
            return memory
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED)
        return np.frombuffer(mapped, np.uint8)[start:]


def _entry(code: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, Any]:
    return {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
