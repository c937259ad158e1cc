"""What the user sees: a progress bar or plain lines while the search runs, and tables at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from pipeline.errors import counted
from pipeline.report.summary import Machine, PeerSummary, Summary, TaskSummary
from pipeline.report.superopt_report import subprogram_lines

_LINE_SECONDS = 10.0
_DRAW_SECONDS = 0.1
_BAR = 24


class Progress:
    """How far the search is, the time left and the best so far.

    On a terminal it is one line that is drawn again and again, elsewhere a plain line every ten seconds.


    stream           where it is shown; None: nowhere
    trials, seconds  the budget; what is None has no limit
    unit             what is counted, in the plural
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        trials: int | None = None,
        seconds: float | None = None,
        terminal: bool | None = None,
        columns: int = 100,
        unit: str = "trials",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._trials, self._seconds, self._columns = stream, trials, seconds, columns
        self._terminal = (stream is not None and stream.isatty()) if terminal is None else terminal
        self._clock, self._unit = clock, unit
        self._start = self._drawn = clock()
        self._done, self._text, self._shown, self._width = 0, "", False, 0
        self._steps = False

    def update(
        self, done: int, *, best_ms: float | None = None, untuned_ms: float | None = None, task: str = ""
    ) -> None:
        """Trials that have ended, the best time of the model so far, and what is being searched."""
        self._done = done
        parts = [counted(done, self._unit) if self._trials is None else f"{done}/{self._trials} {self._unit}"]
        if best_ms is not None:
            gain = f" ({untuned_ms / best_ms:.2f}x)" if untuned_ms and best_ms > 0 else ""
            parts.append(f"best {duration(best_ms / 1e3)}{gain}")
        if task:
            parts.append(task)
        self._text = ", ".join(parts)
        now = self._clock()
        if now - self._drawn >= (_DRAW_SECONDS if self._terminal else _LINE_SECONDS) or not self._shown:
            self._drawn = now
            self._draw()

    def step(self, done: int, count: int, name: str) -> None:
        """So many of so many have ended, and the one of this name begins."""
        self._trials, self._steps = count, True
        self.update(done, task=name[:40])

    def message(self, text: str) -> None:
        """A line of its own, above the bar."""
        self.erase()
        self._write(text + "\n")
        if self._shown and self._terminal:
            self._draw()

    def close(self) -> None:
        """The last state of a search stays on the screen; of steps nothing does, as what they came to is told."""
        if self._steps:
            self.erase()
            self._shown = False
        if self._shown:
            self._draw()
            if self._terminal:
                self._write("\n")
            self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def share(self) -> float | None:
        """Of the budget that is spent: the larger of trials and time; None without a limit."""
        shares = []
        if self._trials:
            shares.append(self._done / self._trials)
        if self._seconds:
            shares.append((self._clock() - self._start) / self._seconds)
        return min(1.0, max(shares)) if shares else None

    def left_seconds(self) -> float | None:
        """The time left, as far as one can tell."""
        spent, share = self._clock() - self._start, self.share()
        if share is None or share <= 0:
            return self._seconds
        left = spent / share - spent
        return left if self._seconds is None else min(left, max(0.0, self._seconds - spent))

    def _draw(self) -> None:
        share, left = self.share(), self.left_seconds()
        spent = duration(self._clock() - self._start)
        when = spent if left is None else f"{spent}, {duration(left)} left"
        if not self._terminal:
            percent = "" if share is None else f"{share:4.0%}  "
            self._write(f"{percent}{self._text}, {when}\n")
        else:
            full = round(_BAR * (share or 0.0))
            bar = "" if share is None else f"[{'=' * full}{' ' * (_BAR - full)}] {share:4.0%} "
            line = f"{bar}{when}  {self._text}"[: self._columns - 1]
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        self._shown = True

    def erase(self) -> None:
        """Makes room for a line of the log, until the next update."""
        if self._shown and self._terminal:
            self._write("\r" + " " * self._width + "\r")

    def _write(self, text: str) -> None:
        """A reader that went away (a closed pipe) costs the bar, not the run."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def duration(seconds: float) -> str:
    """In the unit that suits: 812 us, 4.26 ms, 9.4 s, 3 min 05 s, 2 h 10 min."""
    if seconds <= 0:
        return "0 s"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


ABOVE = 1.1  # times the measured peak: more than the noise of two measurements


def summary_lines(summary: Summary) -> list[str]:
    """The end of a run: the tasks, the peers, and the result in a few lines."""
    lines = ["", *task_table(summary.tasks), ""]
    if kernels := kernel_table(summary.tasks):
        lines += [*kernels, ""]
    if fused := subprogram_lines(summary.superopt):
        lines += [*fused, ""]
    if summary.peers:
        ours = None if summary.latency_ms is None else summary.latency_ms.median
        lines += [*peer_table(summary.peers, ours), ""]
    machine = summary.machine
    if machine.peak_gflops is not None and machine.bandwidth_gbs is not None:
        gpu = any(task.kernel for task in summary.tasks)
        lines.append(f"machine: {machine.cpu}, {_limits(machine, gpu)}")
        fastest = max((task.flops / task.latency_ms / 1e6 for task in summary.tasks if task.latency_ms), default=0.0)
        if not gpu and fastest > ABOVE * machine.peak_gflops:
            lines.append(
                f"machine: a kernel reaches {fastest:.0f} GFLOP/s, so it was slower when its peak was measured, "
                "and shares of the roofline are too large. Run again when nothing else runs"
            )
    failed = sum(summary.failed_candidates.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.failed_candidates.items()) if count)
    lines.append(
        f"search: {counted(summary.trials, 'trials')} in {duration(summary.tuning_seconds)}"
        + (f", {failed} failed ({reasons})" if failed else "")
    )
    if summary.latency_ms is not None:
        gain = ""
        if summary.untuned_ms is not None and summary.latency_ms.median > 0:
            gain = f", untuned {_ms(summary.untuned_ms)} ({summary.untuned_ms / summary.latency_ms.median:.2f}x)"
        kind = "predicted" if summary.predicted else "median"
        lines.append(f"{summary.workload}: {_ms(summary.latency_ms.median)} {kind}{gain}")
    verified = "verified" if summary.verified else "NOT VERIFIED"
    but = f", but not {summary.unchecked}" if summary.verified and summary.unchecked else ""
    lines.append(f"{summary.status}, {verified}{but}{_errors(summary)}")
    if summary.artifact:
        lines.append(f"artifact: {summary.artifact}")
    return lines


def _limits(machine: Machine, gpu: bool) -> str:
    if gpu:
        said = f"{counted(machine.cores, 'multiprocessors')}, by its maker"
    else:
        said = f"{counted(machine.cores, 'cores')}, {machine.vector_bits}-bit vectors, measured"
    return f"{said} {machine.peak_gflops:.0f} GFLOP/s and {machine.bandwidth_gbs:.0f} GB/s"


def task_table(tasks: Sequence[TaskSummary]) -> list[str]:
    """One line per task, the one that takes most of the model's time first."""
    head = ("task", "weight", "latency", "share", "roofline", "of it", "GFLOP/s", "sketches", "trials", "best at")
    total = sum((task.latency_ms or 0.0) * task.weight for task in tasks)
    rows = []
    for task in sorted(tasks, key=lambda task: -(task.latency_ms or 0.0) * task.weight):
        latency = task.latency_ms
        rows.append(
            (
                task.name,
                str(task.weight),
                _ms(latency),
                f"{latency * task.weight / total:.0%}" if latency and total else "-",
                _ms(task.roofline_ms),
                f"{task.roofline_ms / latency:.0%}" if latency else "-",
                f"{task.flops / latency / 1e6:.1f}" if latency else "-",
                str(task.sketches),
                str(task.trials),
                str(task.best_at_trial) if task.best_at_trial else "untuned",
            )
        )
    return aligned(head, rows)


def kernel_table(tasks: Sequence[TaskSummary]) -> list[str]:
    """What is known of the kernels of a GPU, in the order of the tasks' table; nothing where there are none."""
    head = ("kernel", "waits for", "of its peak, by the model", "registers", "spilled", "shared", "launches")
    rows = [
        (
            task.name, found.bound, f"{found.of_peak:.0%}", str(found.registers), f"{found.spill_bytes} B",
            f"{found.shared_bytes / 1024:.1f} KiB", str(found.launches),
        )
        for task in sorted(tasks, key=lambda task: -(task.latency_ms or 0.0) * task.weight)
        if (found := task.kernel) is not None
    ]  # fmt: skip
    return aligned(head, rows) if rows else []


def peer_table(peers: dict[str, PeerSummary], alone_ms: float | None) -> list[str]:
    """Us and each peer, as called in turns; a peer that could not run is a line that says why.

    alone_ms  our time where no peer could be timed beside us
    """
    ours = (peer.ours_ms for peer in peers.values() if peer.ours_ms is not None)
    rows = [("muschedule", _ms(next(ours, alone_ms)), "1.00x", "")]
    for name, peer in peers.items():
        ratio = "-" if peer.ratio is None else f"{peer.ratio:.2f}x"
        note = "" if peer.status == "ok" else f"{peer.status}: {peer.reason}" if peer.reason else peer.status
        rows.append((name, _ms(peer.median_ms), ratio, note))
    return aligned(("runtime", "median", "ratio", ""), rows)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side: the first and the last to the left, numbers to the right."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if column == 0 or (column == len(head) - 1 and not head[-1]) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else duration(milliseconds / 1e3)


def _errors(summary: Summary) -> str:
    found = summary.max_error
    if found is None or found.absolute is None:
        return ""
    allowed = "" if found.tolerance is None else f", tolerance {found.tolerance:.2g}"
    return f" (largest error {found.absolute:.2g}{allowed})"
