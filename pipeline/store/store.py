"""The tuning store: records in a database, each candidate once per target and compiler version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from pipeline.errors import UserError
from pipeline.store.database import Database
from pipeline.store.record import Record
from pipeline.store.schema import NOTES, RECORDS

_COLUMNS = RECORDS.c


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """What the store holds about one task on one target with one version."""

    task_key: str
    task_name: str
    target: str
    version: str
    predicted: bool
    ok: int
    failed: int
    best_ns: float | None
    newest: datetime


class Store:
    """Tuning records at a database URL. Several processes may write at once; a kill loses the open batch only."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        self._database = Database(url, create=create)

    @property
    def url(self) -> str:
        """Without the password."""
        return self._database.where

    def add(self, records: Iterable[Record]) -> int:
        """Commit a batch in one transaction; gives how many were new. A candidate that is there stays as it is."""
        rows = []
        for record in records:
            if (reason := record.why_invalid()) is not None:
                raise ValueError(f"record of {record.task_name}: {reason}")
            rows.append(_to_row(record))
        if not rows:
            return 0
        return self._database.write(lambda connection: self._insert(connection, rows))

    def records(self, task_key: str, target: str, version: str, *, predicted: bool | None = False) -> list[Record]:
        """Records of a task, oldest first; measured ones, predicted ones, or both (None)."""
        where = _of(task_key, target, version, predicted)
        query = select(RECORDS).where(where).order_by(_COLUMNS.id)
        return [_to_record(row) for row in self._database.read(lambda c: c.execute(query).all())]

    def best(self, task_key: str, target: str, version: str, *, predicted: bool = False) -> Record | None:
        """The fastest candidate that did not fail; a prediction never stands in for a measurement."""
        where = and_(_of(task_key, target, version, predicted), _COLUMNS.status == "ok")
        query = select(RECORDS).where(where).order_by(_COLUMNS.latency_ns, _COLUMNS.id).limit(1)
        row = self._database.read(lambda connection: connection.execute(query).first())
        return None if row is None else _to_record(row)

    def known(self, task_key: str, target: str, version: str, *, predicted: bool = False) -> set[str]:
        """Keys of the candidates that need not be measured again, failed ones too."""
        query = select(_COLUMNS.candidate_key).where(_of(task_key, target, version, predicted))
        return set(self._database.read(lambda connection: connection.execute(query).scalars().all()))

    def everything(self, task: str = "") -> list[Record]:
        """All records, oldest first; with `task`, those whose task has that name or a key that begins so."""
        query = select(RECORDS).order_by(_COLUMNS.id)
        if task:
            query = query.where(_named(task))
        return [_to_record(row) for row in self._database.read(lambda connection: connection.execute(query).all())]

    def tasks(self, task: str = "") -> list[TaskSummary]:
        """One line per task, target and version."""
        group = (_COLUMNS.task_key, _COLUMNS.target, _COLUMNS.version, _COLUMNS.predicted)
        ok = func.sum((_COLUMNS.status == "ok").cast(_COLUMNS.inner.type))
        best = func.min(_COLUMNS.latency_ns).filter(_COLUMNS.status == "ok")
        query = (
            select(*group, func.max(_COLUMNS.task_name), ok, func.count(), best, func.max(_COLUMNS.created))
            .group_by(*group)
            .order_by(func.max(_COLUMNS.task_name), *group)
        )
        if task:
            query = query.where(_named(task))
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [
            TaskSummary(key, name, target, version, predicted, fine, count - fine, best_ns, newest.replace(tzinfo=UTC))
            for key, target, version, predicted, name, fine, count, best_ns, newest in rows
        ]

    def prune(
        self,
        *,
        failed: bool = False,
        before: datetime | None = None,
        slower_than: float | None = None,
        dry: bool = False,
    ) -> int:
        """Delete records; gives how many (with `dry`, how many it would).

        failed       those that failed
        before       those created earlier
        slower_than  those slower than so many times the best of their task, target and version (of their own kind)
        """
        conditions: list[ColumnElement[bool]] = []
        if failed:
            conditions.append(_COLUMNS.status == "failed")
        if before is not None:
            conditions.append(_COLUMNS.created < before.astimezone(UTC).replace(tzinfo=None))
        if slower_than is not None:
            other = RECORDS.alias()
            same = and_(*(other.c[name] == _COLUMNS[name] for name in ("task_key", "target", "version", "predicted")))
            best = select(func.min(other.c.latency_ns)).where(same, other.c.status == "ok").scalar_subquery()
            conditions.append(and_(_COLUMNS.status == "ok", _COLUMNS.latency_ns > slower_than * best))
        if not conditions:
            return 0

        def change(connection: Connection) -> int:
            ids = connection.execute(select(_COLUMNS.id).where(or_(*conditions))).scalars().all()
            if not dry:
                for start in range(0, len(ids), 500):
                    connection.execute(delete(RECORDS).where(_COLUMNS.id.in_(ids[start : start + 500])))
            return len(ids)

        return self._database.write(change)

    def problems(self) -> list[str]:
        """What is wrong with the database or with a record in it."""
        found = list(self._database.integrity())
        for row in self._database.read(lambda connection: connection.execute(select(RECORDS)).all()):
            try:
                record = _to_record(row)
                reason = record.why_invalid()
                if reason is None and record.candidate_key != row.candidate_key:
                    reason = "its key is not that of its contents"
            except (TypeError, ValueError, AttributeError) as error:
                reason = f"it cannot be read: {error}"
            if reason is not None:
                found.append(f"record {row.id} ({row.task_name}): {reason}")
        return found

    def note(self, key: str, text: str) -> None:
        """Keep a text under a key of at most 64 characters, in the place of what is there."""

        def change(connection: Connection) -> None:
            connection.execute(delete(NOTES).where(NOTES.c.key == key))
            created = datetime.now(UTC).replace(tzinfo=None)
            connection.execute(NOTES.insert().values(key=key, text=text, created=created))

        self._database.write(change)

    def noted(self, key: str) -> str | None:
        """The text that was kept under a key, or None."""
        query = select(NOTES.c.text).where(NOTES.c.key == key)
        return self._database.read(lambda connection: connection.execute(query).scalar())

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _insert(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
        statement: sqlite.Insert | postgresql.Insert
        match self._database.dialect:
            case "sqlite":
                statement = sqlite.insert(RECORDS).on_conflict_do_nothing()
            case "postgresql":
                statement = postgresql.insert(RECORDS).on_conflict_do_nothing()
            case other:
                raise UserError(f"{other} cannot hold a tuning store", where=self.url)
        return sum(connection.execute(statement.values(row)).rowcount for row in rows)


def _of(task_key: str, target: str, version: str, predicted: bool | None) -> ColumnElement[bool]:
    where = and_(_COLUMNS.task_key == task_key, _COLUMNS.target == target, _COLUMNS.version == version)
    return where if predicted is None else and_(where, _COLUMNS.predicted == predicted)


def _named(task: str) -> ColumnElement[bool]:
    return or_(_COLUMNS.task_name == task, _COLUMNS.task_key.startswith(task, autoescape=True))


def _to_row(record: Record) -> dict[str, Any]:
    return {
        "candidate_key": record.candidate_key,
        "task_key": record.task_key,
        "task_name": record.task_name,
        "sketch": record.sketch,
        "values": {name: int(value) for name, value in record.values.items()},
        "target": record.target,
        "version": record.version,
        "predicted": record.predicted,
        "status": record.status,
        "reason": record.reason,
        "samples": [float(sample) for sample in record.samples],
        "inner": record.inner,
        "latency_ns": None if record.latency_ns is None else float(record.latency_ns),
        "max_error": None if record.max_error is None else float(record.max_error),
        "tolerance": None if record.tolerance is None else float(record.tolerance),
        "seed": record.seed,
        "created": record.created.astimezone(UTC).replace(tzinfo=None),
    }


def _to_record(row: Row[Any]) -> Record:
    return Record(
        task_key=row.task_key,
        task_name=row.task_name,
        sketch=row.sketch,
        values=dict(row._mapping["values"]),
        target=row.target,
        version=row.version,
        status=row.status,
        created=row.created.replace(tzinfo=UTC),
        predicted=row.predicted,
        reason=row.reason,
        samples=tuple(row.samples),
        inner=row.inner,
        latency_ns=row.latency_ns,
        max_error=row.max_error,
        tolerance=row.tolerance,
        seed=row.seed,
    )
