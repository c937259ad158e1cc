"""LLVM: textual IR in; object code, assembly, optimised IR or callable addresses out.

The pass pipeline is LLVM's own at level 2 (SROA, instruction combining, GVN, LICM, strength reduction …) without its
loop and SLP vectorizers and without its unroller: vectors and unrolling are the schedule's, and a loop unrolls only
where its metadata say so.
Nothing here allows fast-math: an operation is fused, reordered or dropped only where the IR itself says so.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

import llvmlite.binding as llvm
from llvmlite.binding import ffi
from llvmlite.binding.newpassmanagers import NewPassManager

from pipeline.errors import CodegenError
from pipeline.ir.target import Target

_LOCK = threading.RLock()
_PARSE_ERROR = re.compile(r"<string>:(\d+):(\d+): error: (.*)")
_NO_SYMBOLS: Mapping[str, int] = MappingProxyType({})


def compile_ir(text: str, target: Target, *, optimise: bool = True, level: int = 3) -> bytes:
    """A relocatable, position-independent object for the target, which need not be this machine.

    level  of the code generator, from 0 to 3; the passes over the IR end at LLVM's level 2
    """
    with _LOCK:
        module, machine = _module(text, target, optimise, level)
        return bytes(machine.emit_object(module))


def assembly(text: str, target: Target, *, optimise: bool = True, level: int = 3) -> str:
    """The assembly of what `compile_ir` returns."""
    with _LOCK:
        module, machine = _module(text, target, optimise, level)
        return str(machine.emit_assembly(module))


def optimised_ir(text: str, target: Target) -> str:
    """The IR after the pass pipeline, before instruction selection."""
    with _LOCK:
        module, _ = _module(text, target, True, 3)
        return str(module)


def function_attributes(target: Target) -> str:
    """What a code generator writes between the parameters and the body of every function: `define void @f() {these} {`.

    On x86 LLVM halves 512-bit vectors on some CPUs unless the function asks for the whole width.
    """
    if target.triple.split("-")[0] not in ("x86_64", "amd64"):
        return "nounwind"
    return f'nounwind "prefer-vector-width"="{target.vector_bits}" "min-legal-vector-width"="{target.vector_bits}"'


class LoadedObject:
    """Object code linked into this process; its addresses are valid as long as this object lives.

    object_code  one object, or several that refer to each other
    symbols      addresses of further symbols that they may refer to; those of the process (libc, libm) are known anyway
    target       what the code was made for: when given, a CPU that lacks one of its features is refused
    """

    __slots__ = ("_addresses", "_jit", "_library", "_trackers")

    def __init__(
        self,
        object_code: bytes | Sequence[bytes],
        *,
        symbols: Mapping[str, int] = _NO_SYMBOLS,
        target: Target | None = None,
    ) -> None:
        objects = (object_code,) if isinstance(object_code, bytes) else tuple(object_code)
        for code in objects:
            _refuse_foreign_machine(code)
        if target is not None:
            _refuse_missing_features(target)
        with _LOCK:
            _initialise()
            self._jit = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
            builder = llvm.JITLibraryBuilder().add_current_process()
            for code in objects:
                builder.add_object_img(code)
            for name, address in symbols.items():
                builder.import_symbol(name, address)
            try:
                self._library = builder.link(self._jit, "kernels")
            except RuntimeError as error:
                raise CodegenError(
                    "object code cannot be loaded",
                    why=str(error),
                    todo="Check that each object is whole and that no symbol is defined twice",
                ) from error
        self._addresses: dict[str, int] = {}
        self._trackers: list[llvm.ResourceTracker] = []

    def address(self, symbol: str) -> int:
        """Where the function or global of that name is."""
        known = self._addresses.get(symbol)
        if known is not None:
            return known
        with _LOCK:
            try:
                tracker = self._jit.lookup("kernels", symbol)
            except RuntimeError as error:
                raise CodegenError(
                    "symbol cannot be resolved",
                    where=symbol,
                    why=str(error),
                    todo="Either no object defines it, or the objects refer to a symbol that is neither in them, "
                    "nor in `symbols`, nor in this process",
                ) from error
            self._trackers.append(tracker)
            self._addresses[symbol] = int(tracker[symbol])
            return self._addresses[symbol]


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Carrying a load that the next iteration repeats costs the register tile a register.
    llvm.set_option("", "-enable-load-pre=false")


@cache
def _host_features() -> frozenset[str]:
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _module(text: str, target: Target, optimise: bool, level: int) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    _initialise()
    # The schedule has put multiply-adds and loads in the order in which they should issue. With registers to spare
    # LLVM's scheduler moves loads up to hide their latency, which the processor does by itself, and spills the register
    # tile for it; with sixteen it is what keeps selection from doing so. The option is LLVM's own, of the process: set
    # each time.
    llvm.set_option("", f"-enable-misched={'true' if target.vector_registers <= 16 else 'false'}")
    features = ",".join(target.features)
    try:
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=features, opt=level if optimise else 1, reloc="pic", codemodel="default"
        )
    except RuntimeError as error:
        raise CodegenError(
            "LLVM cannot generate code for the target", where=target.name, why=str(error), todo="Check target.triple"
        ) from error
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
    except RuntimeError as error:
        raise CodegenError("LLVM refuses the IR", why=_parse_error(text, str(error))) from error
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    try:
        module.verify()
    except RuntimeError as error:
        reasons = " | ".join(str(error).strip().split("\n"))
        raise CodegenError("LLVM's verifier refuses the IR", why=reasons) from error
    options = llvm.create_pipeline_tuning_options(speed_level=min(level, 2) if optimise else 0)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    manager = builder.getModulePassManager()
    manager.run(module, builder)
    # llvmlite 0.50's pass managers inherit an empty `_dispose` in front of their own, and lose 70 KB for each module.
    if llvm.ModulePassManager._dispose is ffi.ObjectRef._dispose:
        NewPassManager._dispose(manager)
        manager.detach()
    return module, machine


def _parse_error(text: str, message: str) -> str:
    found = _PARSE_ERROR.search(message)
    if found is None:
        return message
    number, column, what = int(found[1]), int(found[2]), found[3]
    lines = text.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    return f"line {number}, column {column}: {what}: `{line}`"


def _refuse_foreign_machine(code: bytes) -> None:
    """LLVM's linker maps an object of another architecture without a word, and calling it is a crash."""
    found = _object_machine(code)
    host = llvm.get_process_triple().split("-")[0].replace("arm64", "aarch64").replace("amd64", "x86_64")
    if found is not None and found != host:
        raise CodegenError(
            "object code is for another machine",
            why=f"it holds {found} code and this process runs {host} code",
            todo="Compile for the native target",
        )


def _object_machine(code: bytes) -> str | None:
    """The architecture that an ELF or Mach-O header names; None for a kind of object that is not read here."""
    if code[:4] == b"\x7fELF" and len(code) >= 20:
        number = struct.unpack_from("<H" if code[5] == 1 else ">H", code, 18)[0]
        return {62: "x86_64", 183: "aarch64", 243: "riscv64"}.get(number, f"ELF machine {number}")
    if code[:4] == b"\xcf\xfa\xed\xfe" and len(code) >= 8:
        number = struct.unpack_from("<I", code, 4)[0]
        return {0x01000007: "x86_64", 0x0100000C: "aarch64"}.get(number, f"Mach-O cputype {number}")
    return None


def _refuse_missing_features(target: Target) -> None:
    # A tuning flag such as +prefer-256-bit is not a capability and never appears among the host's features.
    tuning = ("prefer-", "tuning-", "fast-", "slow-", "branchfusion", "macrofusion")
    wanted = {name[1:] for name in target.features if name.startswith("+") and not name[1:].startswith(tuning)}
    missing = sorted(wanted - _host_features())
    if missing:
        raise CodegenError(
            "this CPU cannot run the object code",
            where=target.name,
            why=f"it was compiled for {', '.join(missing)}, which {llvm.get_host_cpu_name()} lacks",
            todo="Compile for the native target",
        )
