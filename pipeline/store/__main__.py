"""The command `python -m pipeline.store`: list, export, import, merge, prune and check tuning stores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

from pipeline.errors import UserError, counted
from pipeline.store.record import Record, from_json, to_json
from pipeline.store.store import Store, TaskSummary

DEFAULT_URL = "sqlite:///outputs/store.sqlite"
_BATCH = 500


def main(arguments: Sequence[str] | None = None, *, output: TextIO | None = None) -> int:
    """Run one command; gives the exit code: 0, or 1 where `check` found something, or 2 for the user's mistake."""
    out = sys.stdout if output is None else output
    options = _parser().parse_args(arguments)
    try:
        return _run(options, out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.store", description="Look after a tuning store.")
    parser.add_argument("--url", default=DEFAULT_URL, help="default: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="one line per task, target and compiler version")
    listing.add_argument("--task", default="", help="only the task of this name, or whose key begins so")
    exporting = commands.add_parser("export", help="write records as JSON lines")
    exporting.add_argument("file", help="a file that does not exist yet, or - for standard output")
    exporting.add_argument("--task", default="", help="only the task of this name, or whose key begins so")
    importing = commands.add_parser("import", help="add the records of a file of JSON lines")
    importing.add_argument("file", help="a file, or - for standard input")
    merging = commands.add_parser("merge", help="add the records of other stores")
    merging.add_argument("other", nargs="+", help="a URL, or the path of an SQLite file")
    pruning = commands.add_parser("prune", help="delete records")
    pruning.add_argument("--failed", action="store_true", help="those that failed (they would be measured again)")
    pruning.add_argument("--older-than", type=_positive, metavar="DAYS")
    pruning.add_argument("--slower-than-best", type=_factor, metavar="FACTOR", help="2 keeps up to twice the best time")
    pruning.add_argument("--dry-run", action="store_true", help="only say how many")
    commands.add_parser("check", help="look for damage")
    return parser


def _run(options: argparse.Namespace, out: TextIO) -> int:
    with Store(options.url, create=options.command in ("import", "merge")) as store:
        match options.command:
            case "list":
                _list(store.tasks(options.task), out)
            case "export":
                count = _export(store.everything(options.task), options.file, out)
                print(f"{counted(count, 'records')} exported", file=sys.stderr)
            case "import":
                read, new = _import(store, options.file)
                print(f"{counted(read, 'records')} read, {new} of them new", file=out)
            case "merge":
                for other in options.other:
                    read, new = _merge(store, other)
                    print(f"{other}: {counted(read, 'records')} read, {new} of them new", file=out)
            case "prune":
                _prune(store, options, out)
            case "check":
                problems = store.problems()
                print(*(problems or ["no problem found"]), sep="\n", file=out)
                return 1 if problems else 0
    return 0


def _list(tasks: Sequence[TaskSummary], out: TextIO) -> None:
    head = ("task", "key", "target", "version", "kind", "ok", "failed", "best", "newest")
    rows = [
        (
            task.task_name,
            task.task_key[:12],
            task.target[:24],
            task.version[:16],
            "predicted" if task.predicted else "measured",
            str(task.ok),
            str(task.failed),
            "" if task.best_ns is None else f"{task.best_ns / 1e3:,.1f} us",
            f"{task.newest:%Y-%m-%d %H:%M}",
        )
        for task in tasks
    ]
    numbers = {5, 6, 7}
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = (
            text.rjust(width) if column in numbers else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip(), file=out)
    if not rows:
        print("(no records)", file=out)


def _export(records: Sequence[Record], name: str, out: TextIO) -> int:
    lines = [to_json(record) + "\n" for record in records]
    if name == "-":
        out.writelines(lines)
        return len(lines)
    try:
        with open(name, "x", encoding="utf-8") as stream:
            stream.writelines(lines)
    except FileExistsError:
        raise UserError("the file exists", where=name, todo="Name another file, or remove this one first") from None
    except OSError as error:
        raise UserError("cannot write", where=name, why=str(error.strerror), todo="Name another file") from None
    return len(lines)


def _import(store: Store, name: str) -> tuple[int, int]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("cannot read", where=name, why=str(error), todo="Name a file of JSON lines") from None
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            records.append(from_json(line))
        except ValueError as error:
            todo = "Nothing was imported: correct the line, or export the store again"
            raise UserError("not a record", where=f"{name}, line {number}", why=str(error), todo=todo) from None
    return len(records), _add(store, records)


def _merge(store: Store, other: str) -> tuple[int, int]:
    url = other if "://" in other else f"sqlite:///{Path(other).absolute()}"
    with Store(url, create=False) as source:
        records = source.everything()
    return len(records), _add(store, records)


def _add(store: Store, records: Sequence[Record]) -> int:
    return sum(store.add(records[start : start + _BATCH]) for start in range(0, len(records), _BATCH))


def _prune(store: Store, options: argparse.Namespace, out: TextIO) -> None:
    if not (options.failed or options.older_than or options.slower_than_best):
        raise UserError(
            "nothing is selected", where="prune", todo="Give --failed, --older-than DAYS or --slower-than-best FACTOR"
        )
    before = None if options.older_than is None else datetime.now(UTC) - timedelta(days=options.older_than)
    count = store.prune(failed=options.failed, before=before, slower_than=options.slower_than_best, dry=options.dry_run)
    print(f"{counted(count, 'records')} {'would be ' if options.dry_run else ''}deleted", file=out)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of days above 0")
    return value


def _factor(text: str) -> float:
    value = float(text)
    if not value >= 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1, which would delete the best too")
    return value


if __name__ == "__main__":
    sys.exit(main())
