"""A concrete program into a kernel for a GPU: its text, its launches, and its machine code."""

from __future__ import annotations

import hashlib

from pipeline.codegen.cuda.compile import HEADERS, compile_source
from pipeline.codegen.cuda.cpp import identifier
from pipeline.codegen.cuda.emit_region import Function, emit_region
from pipeline.codegen.cuda.kernel import CudaKernel, CudaSource
from pipeline.codegen.cuda.single_iterations import without_single_iterations
from pipeline.codegen.kernel import argument_of
from pipeline.errors import CodegenError
from pipeline.ir.program import Buffer, Program, Seq
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Gpu, Target
from pipeline.schedule.fragment_check import check_fragments

NAME_LENGTH = 48  # of the program's name in that of a kernel


def build_kernel(program: Program, target: Target, symbol: str | None = None) -> CudaKernel:
    """Machine code for a concrete program. Raises CodegenError for what cannot be emitted or compiled, UserError where
    the compiler is missing."""
    source = emit_kernel(program, target, symbol)
    if not source.launches and not source.prologue:
        return CudaKernel(source, b"", {})
    cubin, resources = compile_source(source.source, source.arch)
    return CudaKernel(source, cubin, resources)


def emit_kernel(program: Program, target: Target, symbol: str | None = None) -> CudaSource:
    """The program as CUDA C++: one function for each region. CodegenError where it is over a limit of the GPU,
    CheckError where it uses fragments in a way in which no warp can."""
    if target.gpu is None:
        raise CodegenError(f"{target.name} is no GPU", where="codegen.cuda")
    check_fragments(program)
    name = symbol or f"{identifier(program.name)[:NAME_LENGTH]}_{_fingerprint(program, target.gpu)}"
    body = _functions(program.body, name, program, target.gpu)
    prologue = _functions(program.prologue, f"{name}_pack", program, target.gpu)
    arguments = tuple(argument_of(buffer) for buffer in program.buffers)
    text = "\n".join([f'#include "{HEADERS[0]}"', *(f"\n{function.text}" for function in (*prologue, *body))]) + "\n"
    return CudaSource(name, text, tuple(f.launch for f in body), tuple(f.launch for f in prologue), arguments,
                      target.gpu.arch)  # fmt: skip


def _functions(regions: Seq, name: str, program: Program, gpu: Gpu) -> list[Function]:
    buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in program.buffers}
    found = []
    for number, region in enumerate(regions.body):
        symbol = name if len(regions.body) == 1 else f"{name}_{number}"
        function = emit_region(without_single_iterations(region), symbol, buffers, gpu)
        if function is not None:
            found.append(function)
    return found


def _fingerprint(program: Program, gpu: Gpu) -> str:
    return hashlib.sha256(f"{to_text(program)}{gpu!r}".encode()).hexdigest()[:10]
