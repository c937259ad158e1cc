"""Whether LLVM knows a target: asked in another process, where it may complain or abort."""

from __future__ import annotations

import subprocess
import sys

from pipeline.errors import UserError
from pipeline.ir.target import Target

_ASK = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
triple, cpu, features = sys.argv[1:]
llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
"""


def refuse_unknown(target: Target) -> None:
    """Raises a `UserError` where LLVM would warn of the target and then make code for another one, or abort."""
    features = ",".join(target.features)
    asked = subprocess.run(
        [sys.executable, "-c", _ASK, target.triple, target.cpu, features],
        capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if asked.returncode == 0 and "not a recognized" not in asked.stderr:
        return
    said = asked.stderr.strip().splitlines()
    told = [line for line in said if "not a recognized" in line or "Error" in line or "Assertion" in line] or said
    raise UserError(
        "LLVM does not know the target",
        where="target",
        why=told[-1].strip() if told else f"it ended with {asked.returncode}",
        todo="Correct target.triple, target.cpu and target.features, or leave them to target=native",
    )
