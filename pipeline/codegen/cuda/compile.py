"""Text into a cubin: NVRTC as a library, which needs neither a device nor a driver nor any header of CUDA."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.codegen.cuda.kernel import Resources
from pipeline.errors import CodegenError, UserError
from pipeline.ir.target import capability_of

HEADERS = ("muschedule.cuh", "mma.cuh")
PACKAGES = "pip install nvidia-cuda-nvrtc cuda-python"
LANGUAGE = ("--std=c++17", "--device-as-default-execution-space", "--diag-suppress=186")  # 186: unsigned and negative
OPTIONS = (*LANGUAGE, "--ptxas-options=-v")

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")
_SHOWN_LINES = 12  # of a log, in an error


def compile_source(text: str, arch: str) -> tuple[bytes, Mapping[str, Resources]]:
    """The cubin of the text for "sm_80" and the like, and what the assembler says of each of its functions.

    Raises UserError where NVRTC is not installed or does not know the architecture, and CodegenError with NVRTC's log
    where it refuses the text.
    """
    nvrtc = load_nvrtc()
    cubin, log = _compiled(text, arch, (f"--gpu-architecture={arch}", *OPTIONS),
                           nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)  # fmt: skip
    return cubin, resources_of(log)


def compile_ptx(text: str, arch: str) -> str:
    """The PTX of the text, for a look at which instructions it uses. Raises as `compile_source` does."""
    nvrtc = load_nvrtc()
    options = (f"--gpu-architecture={arch.replace('sm_', 'compute_')}", *LANGUAGE)
    ptx, _ = _compiled(text, arch, options, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    return ptx.rstrip(b"\0").decode()


def _compiled(text: str, arch: str, options: tuple[str, ...], size_of: Any, read: Any) -> tuple[bytes, str]:
    """What NVRTC makes of the text, as it is read by those two functions, and its log."""
    nvrtc = load_nvrtc()
    known = supported_architectures()
    if str(capability_of(arch)) not in known:
        raise UserError(f"NVRTC cannot compile for {arch}", where="target.arch",
                        why=f"It knows {', '.join('sm_' + name for name in known)}",
                        todo=f"Choose one of those, or install another version of it: {PACKAGES}")  # fmt: skip
    program = _program(nvrtc, text)
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode().strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            shown = "\n".join(log.splitlines()[:_SHOWN_LINES])
            raise CodegenError("NVRTC refuses the source", where=f"codegen.cuda for {arch}",
                               why=f"{status.name}:\n{shown}")  # fmt: skip
        return _read(size_of, read, program), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def headers() -> tuple[str, ...]:
    """The texts of the header that kernels include, and of those that it includes."""
    return tuple(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in HEADERS)


def _program(nvrtc: Any, text: str) -> Any:
    texts, names = [text.encode() for text in headers()], [name.encode() for name in HEADERS]
    return _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", len(names), texts, names))


@functools.cache
def load_nvrtc() -> Any:
    """The bindings of NVRTC, once its library could be loaded; UserError that names the packages otherwise."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        _checked(nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError, OSError) as error:  # the library is found at the first call
        raise UserError("programs for NVIDIA GPUs cannot be compiled", where="codegen.cuda",
                        why=f"NVRTC is not here ({error})".splitlines()[0],
                        todo=f"Install it: {PACKAGES}. No GPU is needed") from error  # fmt: skip
    return nvrtc


@functools.cache
def supported_architectures() -> tuple[str, ...]:
    """ "75", "80" …: those that the installed NVRTC compiles for."""
    return tuple(str(number) for number in _checked(load_nvrtc().nvrtcGetSupportedArchs()))


def nvrtc_version() -> str:
    """As "13.5": what a compiled kernel is remembered with."""
    major, minor = load_nvrtc().nvrtcVersion()[1:]
    return f"{major}.{minor}"


def resources_of(log: str) -> dict[str, Resources]:
    """What ptxas' verbose log says of each function."""
    found: dict[str, Resources] = {}
    name, stack, stores, loads = "", 0, 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name, stack, stores, loads = match[1], 0, 0, 0
        elif match := _STACK.search(line):
            stack, stores, loads = (int(number) for number in match.groups())
        elif name and (match := _USED.search(line)):
            static = _STATIC.search(line)
            found[name] = Resources(int(match[1]), stores, loads, stack, int(static[1]) if static else 0)
            name = ""
    return found


def _checked(returned: tuple[Any, ...]) -> Any:
    status, *values = returned
    if status.value:
        raise RuntimeError(f"NVRTC says {status.name}")
    return values[0] if len(values) == 1 else values


def _read(size_of: Any, read: Any, program: Any) -> bytes:
    size = _checked(size_of(program))
    buffer = b" " * (size + 2)  # it is written into: bytes of one or none are the same object everywhere in Python
    _checked(read(program, buffer))
    return buffer[:size]
