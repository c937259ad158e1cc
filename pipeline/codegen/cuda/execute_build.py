"""Kernels as libraries of this host: the emitted text under the host body of the header, compiled by a C++ compiler."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from pipeline.codegen.cuda.kernel import CudaSource
from pipeline.codegen.cuda.scratch_folder import scratch_folder
from pipeline.errors import CodegenError

HERE = Path(__file__).resolve().parent
MACHINE = "machine.cpp"
COMPILERS = ("c++", "g++", "clang++")
HEADERS = ("setjmp.h", "signal.h", "stdint.h", "stdlib.h", "string.h", "sys/mman.h")
FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti",
    "-w",
    "-U_FORTIFY_SOURCE",
)
# Of kernels, each where the compiler knows it: an index outside of a thread's own array is a trap, and that a fault;
# what a thread does not set is no zero by chance; code stays in the order of the text, by which lanes that went
# different ways are matched; a large stack touches its pages in order, so that it meets the guard below it; and the
# library finds what it lacks in the machine's when it is loaded.
CHECKS = (
    ("-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"), ("-ftrivial-auto-var-init=pattern",),
    ("-fno-reorder-blocks",), ("-fstack-clash-protection",), ("-Wl,-undefined,dynamic_lookup",),
)  # fmt: skip
SECONDS = 120.0
_SHOWN_LINES = 12  # of what the compiler says, in an error
_SHOWN_LETTERS = 300  # where it is said in one line why there is no compiler
_SIZES = {"bool": 1, "char": 1, "i8": 1, "u8": 1, "short": 2, "f16": 2, "bf16": 2, "u16": 2}


@dataclass(frozen=True, slots=True)
class HostLibraries:
    """Paths of the machine's library and of the kernel's, which needs the first."""

    machine: Path
    kernel: Path


def find_compiler(named: str = "") -> str | None:
    """The C++ compiler of that name, or else the first of the usual names on the path, that can make a library with the
    headers of this system; None: there is none, or the system is one that the machine does not know."""
    if sys.platform == "win32":
        return None
    for name in (named, *COMPILERS):
        if name and (found := shutil.which(name)) and knows(found, ()):
            return found
    return None


def why_no_compiler() -> str:
    """Why `find_compiler` finds none: that there is none, or which ones do not work and what they say."""
    if sys.platform == "win32":
        return "this system is one that the machine which runs kernels does not know"
    said = [refusal(found, ()) or "" for name in COMPILERS if (found := shutil.which(name))]
    shown = "; ".join(textwrap.shorten(text, _SHOWN_LETTERS) for text in said)
    return shown or f"none of {', '.join(COMPILERS)} is on the path"


def compile_for_host(source: CudaSource, compiler: str) -> HostLibraries:
    """The libraries, made once in this process for each text. Raises CodegenError where the compiler refuses it."""
    return HostLibraries(machine_library(compiler), _kernel_library(host_text(source), compiler))


def host_text(source: CudaSource) -> str:
    """The kernel's text, whose lines keep their numbers, and a function for each launch that takes its arguments as
    a list."""
    launches = {launch.symbol: launch for launch in (*source.prologue, *source.launches)}
    calls = []
    for symbol, launch in launches.items():
        given = ", ".join(f"a[{number}]" for number in range(len(launch.arguments)))
        calls.append(f'extern "C" void ms_call_{symbol}(ms::host::Region **a) {{ {symbol}({given}); }}\n')
    return source.source + "\n" + "".join(calls)


def granule(source: CudaSource) -> int:
    """Bytes of the smallest element of any array in shared memory: who touched what is kept for pieces of this size."""
    types = re.findall(r"MS_SHARED\(\s*([^,]+),", source.source)
    return min((_SIZES.get(re.split(r"[\s:]+", name.strip())[-1], 4) for name in types), default=4)


_MACHINES: dict[str, Path] = {}  # by compiler


def machine_library(compiler: str) -> Path:
    """The library of the machine itself."""
    if compiler not in _MACHINES:
        path = scratch_folder() / f"machine-{_name(compiler)}.so"
        _compile(compiler, HERE / MACHINE, path, ("-O2",))
        _MACHINES[compiler] = path
    return _MACHINES[compiler]


def adopt_machine(compiler: str, path: Path) -> None:
    """Use the library that another process compiled with the same compiler, as long as it is there."""
    if compiler not in _MACHINES and path.exists():
        _MACHINES[compiler] = path


@functools.lru_cache(maxsize=64)
def _kernel_library(text: str, compiler: str) -> Path:
    name = _name(text, compiler)
    folder = scratch_folder()
    written = folder / f"kernel-{name}.cpp"
    written.write_text(text, encoding="utf-8")
    path = folder / f"kernel-{name}.so"
    checks = [flag for flags in CHECKS if knows(compiler, flags) for flag in flags]
    _compile(compiler, written, path, ("-O1", *checks, "-DMUSCHEDULE_HOST", "-I", str(HERE)))
    return path


def knows(compiler: str, flags: tuple[str, ...]) -> bool:
    """Whether the compiler takes these flags, and finds the headers that the machine includes."""
    return refusal(compiler, flags) is None


@functools.cache
def refusal(compiler: str, flags: tuple[str, ...]) -> str | None:
    """What the compiler says, with its name, of these flags or of the headers that the machine includes; None: it takes
    them."""
    probe = scratch_folder() / "probe.cpp"
    probe.write_text("".join(f"#include <{header}>\n" for header in HEADERS), encoding="utf-8")
    try:
        _compile(compiler, probe, probe.with_suffix(".so"), flags)
    except CodegenError as error:
        return error.why
    return None


def _compile(compiler: str, source: Path, path: Path, flags: tuple[str, ...]) -> None:
    command = [compiler, *FLAGS, *flags, str(source), "-o", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CodegenError("the C++ compiler of this host could not be run", why=f"{compiler}: {error}",
                           todo="Name another one") from error  # fmt: skip
    if done.returncode:
        shown = "\n".join(done.stderr.splitlines()[:_SHOWN_LINES]) or f"exit code {done.returncode}"
        raise CodegenError(
            "the C++ compiler of this host refuses the source", where=source.name, why=f"{compiler}:\n{shown}"
        )


def _name(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
