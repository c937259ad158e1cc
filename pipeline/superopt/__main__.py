"""The command `python -m pipeline.superopt verify file.json --spec gqa`: one line for each saved µGraph."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import CheckError, UserError
from pipeline.superopt.proof.mirage_json import import_mirage, input_shapes, read_mirage
from pipeline.superopt.proof.proof import Proof
from pipeline.superopt.proof.prove import prove
from pipeline.superopt.proof.saved_specs import named_spec, saved_spec, spec_names


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all are equal; 1: some are not; 2: the file or the call is wrong."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.superopt", description="The superoptimizer's tools.")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="prove or refute saved µGraphs")
    verify.add_argument("file", type=Path, help="a list of µGraphs as Mirage saves them (JSON)")
    verify.add_argument("--spec", required=True, help=f"what they should compute: {spec_names()}")
    verify.add_argument("--tests", type=int, default=2, help="independent tests of each, at the shapes of the file")
    verify.add_argument("--seed", type=int, default=0, help="of the random inputs")
    given = parser.parse_args(arguments)
    try:
        if given.tests < 1:
            raise UserError("a proof needs a test", where="--tests", why=f"{given.tests} given")
        if given.seed < 0:
            raise UserError("a seed is not negative", where="--seed", why=f"{given.seed} given")
        return verify_file(given.file, given.spec, given.tests, given.seed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def verify_file(path: Path, spec: str, tests: int, seed: int) -> int:
    """Prints the verdict on each µGraph of a file. The status: 0 where all are equal, else 1."""
    inputs, equal = named_spec(spec).inputs, True
    for number, saved in enumerate(read_mirage(path)):
        try:
            try:
                shapes = input_shapes(saved)
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise UserError("the inputs cannot be read", why=f"{type(error).__name__}: {error}") from None
            graph = saved_spec(spec, shapes)
            mugraph = import_mirage(saved, inputs)
        except UserError as error:
            error.where = f"{path}, µGraph {number}" + (f", {error.where}" if error.where else "")
            raise
        try:
            proof = prove(graph, mugraph, tests=tests, rng=np.random.default_rng([seed, number]))
        except CheckError as error:
            proof = Proof("not provable", reason=str(error))
        except MemoryError as error:
            proof = Proof("not provable", reason=f"this machine has not enough memory: {error}")
        print(f"{number}: {proof}", flush=True)
        equal = equal and proof.equal
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
