"""The reference interpreter: runs any concrete program in NumPy and refuses what compiled code would do silently.

Refused are: an index out of bounds, a read of an element that was never written, an output with such an element, and
two iterations of parallel loops (of the grid, or of the threads of one nest) touching one element, one of them writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from pipeline.errors import CheckError, listed
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import FLOATS, dtype_name
from pipeline.ir.interpret_lanes import Machine
from pipeline.ir.interpret_points import PointMachine
from pipeline.ir.program import Program

Precision = Literal["native", "float64"]
Mode = Literal["lanes", "points"]


def interpret(program: Program, feeds: Mapping[str, np.ndarray], *, precision: Precision = "native",
              mode: Mode = "lanes") -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs by name.

    feeds      arrays for every input and constant, of the declared shape and dtype (any floating dtype with "float64")
    precision  native: each operation rounds to its dtype · float64: every floating dtype is float64
    mode       lanes: many points at a time · points: one after another, the slow reference of the first
    """

    def dtype(name: DType) -> DType:
        return "float64" if precision == "float64" and name in FLOATS else name

    if program.params or program.derived:
        raise CheckError(f"program {program.name} has parameters", why=listed(program.params),
                         todo="Instantiate it first")  # fmt: skip
    arrays = _checked(program, feeds, precision)
    machine: Machine | PointMachine = Machine(program, dtype) if mode == "lanes" else PointMachine(program, dtype)
    outputs = {}
    with np.errstate(all="ignore"):
        for name, array in arrays.items():
            machine.fill(name, array)
        machine.run(program.prologue)
        machine.run(program.body)
        for buffer in program.buffers:
            if buffer.role == "output":
                outputs[buffer.name] = machine.read(buffer.name)
    return outputs


def _checked(program: Program, feeds: Mapping[str, np.ndarray], precision: Precision) -> dict[str, np.ndarray]:
    wanted = {buffer.name: buffer for buffer in program.buffers if buffer.role in ("input", "constant")}
    if set(feeds) != set(wanted):
        raise CheckError(f"the feeds of {program.name} are not its inputs and constants",
                         why=f"Given {listed(feeds) or 'none'}; wanted {listed(wanted) or 'none'}")  # fmt: skip
    arrays = {}
    for name, buffer in wanted.items():
        array = np.asarray(feeds[name])
        shape = tuple(extent.value for extent in buffer.shape)
        given = dtype_name(array.dtype)
        same = given == buffer.dtype or (precision == "float64" and given in FLOATS and buffer.dtype in FLOATS)
        if array.shape != shape or not same:
            raise CheckError(f"the array for {name} does not fit", where=program.name,
                             why=f"Given {given}{list(array.shape)}; declared {buffer.dtype}{list(shape)}")  # fmt: skip
        arrays[name] = array.astype(np.float64) if precision == "float64" and given in FLOATS else array
    return arrays
