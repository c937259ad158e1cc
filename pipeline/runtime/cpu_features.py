"""Which features of a CPU compiled code needs, and which of them this machine lacks."""

from __future__ import annotations

from collections.abc import Iterable

import llvmlite.binding as llvm

from pipeline.errors import UserError
from pipeline.ir.target import Target

# Tuning flags are no instructions; the others are reached through intrinsics only, which no generated code calls.
_TUNING = ("prefer-", "tuning-", "fast-", "slow-", "use-", "false-", "branchfusion", "macrofusion", "allow-")
_NEVER_GENERATED = frozenset({
    "aes", "sha", "sha2", "sha3", "sha512", "sm3", "sm4", "vaes", "pclmul", "vpclmulqdq", "gfni", "rdrnd",
    "rdseed", "rdpid", "rdpru", "clflushopt", "clwb", "clzero", "cldemote", "wbnoinvd", "invpcid", "pku",
    "shstk", "sgx", "fsgsbase", "ptwrite", "serialize", "monitor", "mwaitx", "movdiri", "movdir64b", "enqcmd",
    "hreset", "kl", "widekl", "uintr", "waitpkg", "tsxldtrk", "rtm", "lwp", "xsave", "xsavec", "xsaveopt",
    "xsaves", "usermsr", "prefetchi", "pconfig", "crc", "perfmon", "ras", "spe", "mte", "trace", "rand", "ssbs",
    "sb", "predres", "ccpp", "ccdp", "bti", "pauth", "dit",
})  # fmt: skip


def needed(target: Target) -> tuple[str, ...]:
    """Names without the plus sign. One that is not known here counts as needed: a refusal is safer than a crash."""
    names = {feature[1:] for feature in target.features if feature.startswith("+")}
    return tuple(sorted(n for n in names if not n.startswith(_TUNING) and n not in _NEVER_GENERATED))


def refuse_unfit(triple: str, features: Iterable[str], where: str) -> None:
    """Raises a `UserError` when code for that triple and those features cannot run on this machine."""
    here = llvm.get_process_triple()
    if _architecture(triple) != _architecture(here):
        raise UserError(
            "the artifact is for another machine",
            where=where,
            why=f"it was made for {triple} and this is {here}",
            todo="Make it again on this machine, or with this machine as its target",
        )
    present = llvm.get_host_cpu_features()
    missing = [name for name in features if not present.get(name, False)]
    if missing:
        raise UserError(
            "this CPU lacks features that the artifact needs",
            where=where,
            why=f"{llvm.get_host_cpu_name()} has no {', '.join(missing)}",
            todo="Make the artifact again for this CPU",
        )


def refuse_target(target: Target) -> None:
    """Raises a `UserError` when this machine cannot run, and so not measure, code for the target."""
    here = llvm.get_process_triple()
    if (_architecture(target.triple), _system(target.triple)) != (_architecture(here), _system(here)):
        raise UserError(
            "this machine cannot run code for the target, and every candidate is run and checked",
            where=f"target {target.name}",
            why=f"it is {target.triple} and this machine is {here}",
            todo="Run on such a machine, or choose target=native",
        )
    present = llvm.get_host_cpu_features()
    missing = [name for name in needed(target) if not present.get(name, False)]
    if missing:
        raise UserError(
            "this CPU lacks features of the target, and every candidate is run and checked",
            where=f"target {target.name}",
            why=f"{llvm.get_host_cpu_name()} has no {', '.join(missing)}",
            todo="Take them out of target.features, or choose target=native",
        )


def _architecture(triple: str) -> str:
    return triple.split("-")[0].replace("arm64", "aarch64").replace("amd64", "x86_64")


def _system(triple: str) -> str:
    found = next((name for name in ("linux", "windows", "darwin", "macos") if name in triple), "")
    return found.replace("macos", "darwin")
