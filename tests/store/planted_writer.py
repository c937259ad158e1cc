"""A process that writes batches to a store and says on standard output which of them are committed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from pipeline.store.record import Record
from pipeline.store.store import Store


def batch(writer: str, number: int, size: int = 8) -> list[Record]:
    return [
        Record(
            task_key="k" * 64,
            task_name="gmm",
            sketch=f"{writer} " + "step; " * 200,
            values={"number": number, "row": row},
            target="here",
            version="1",
            status="ok",
            created=datetime(2026, 1, 1, tzinfo=UTC),
            samples=(float(1 + number),),
            latency_ns=float(1 + number),
        )
        for row in range(size)
    ]


def main() -> None:
    url, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print("ready", flush=True)
    with Store(url) as store:
        for number in range(count):
            store.add(batch(writer, number))
            print(number, flush=True)


if __name__ == "__main__":
    main()
