"""A connection to a store's database: opened, prepared for several writers, and its errors told in the user's words."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from pipeline.errors import UserError
from pipeline.store.schema import LAYOUT, METADATA, SCHEMA_VERSION

BUSY_SECONDS = 60.0
_DIALECTS = ("sqlite", "postgresql")
Result = TypeVar("Result")


class Database:
    """The engine of one store URL, with `read` and `write` as the only ways in."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = _parsed(url)
        self.where = self.url.render_as_string(hide_password=True)
        self.dialect = self.url.get_backend_name()
        # Records in memory live in one connection, which threads then take turns to use.
        self._turn: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        options: dict[str, Any] = {}
        if self.dialect == "sqlite" and self.url.database in (None, "", ":memory:"):
            self._turn = threading.RLock()
            options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        elif self.dialect == "sqlite":
            _prepare_folder(self.url, self.where, create)
        try:
            self.engine = create_engine(self.url, **options)
        except (SQLAlchemyError, ImportError) as error:
            raise UserError(
                "cannot open the tuning store",
                where=self.where,
                why=str(error),
                todo="Install the driver of that database, or set store.url to sqlite:///<file>",
            ) from None
        if self.dialect == "sqlite":
            _tune_sqlite(self.engine)
        if not self.read(self._is_ready):
            self.write(self._prepare)

    def read(self, query: Callable[[Connection], Result]) -> Result:
        """Run the query in one transaction that only reads: it sees one state of the store."""
        return self._run(query, writes=False)

    def write(self, change: Callable[[Connection], Result]) -> Result:
        """Run the change in one transaction: all of it or nothing. It is tried again where another writer was first."""
        return self._run(change, writes=True)

    def integrity(self) -> tuple[str, ...]:
        """What the database itself finds wrong with its file; nothing for other databases than SQLite."""
        if self.dialect != "sqlite":
            return ()
        rows = self.read(lambda connection: connection.execute(text("PRAGMA integrity_check")).scalars().all())
        return tuple(row for row in rows if row != "ok")

    def close(self) -> None:
        self.engine.dispose()

    def _run(self, work: Callable[[Connection], Result], *, writes: bool) -> Result:
        deadline = time.monotonic() + BUSY_SECONDS
        wait = 0.01
        while True:
            try:
                with self._turn, self.engine.connect() as connection:
                    with connection.execution_options(muschedule_writes=writes).begin():
                        result = work(connection)
                    return result
            except DatabaseError as error:
                if not _another_writer(error) or time.monotonic() > deadline:
                    raise self._told(error) from error
            except (InterfaceError, OSError) as error:
                raise self._told(error) from error
            time.sleep(wait)
            wait = min(2 * wait, 0.5)

    def _is_ready(self, connection: Connection) -> bool:
        """Whether all tables are there. Raises where they are of another version, or somebody else's."""
        tables = set(inspect(connection).get_table_names())
        if LAYOUT.name not in tables:
            if tables and self.dialect == "sqlite":
                raise UserError(
                    "this is not a tuning store",
                    where=self.where,
                    why=f"the file holds other tables: {', '.join(sorted(tables)[:5])}",
                    todo="Set store.url to another file",
                )
            return False
        version = connection.execute(select(LAYOUT.c.version)).scalar()
        if version != SCHEMA_VERSION:
            newer = version is not None and version > SCHEMA_VERSION
            raise UserError(
                f"the tuning store has layout {version}",
                where=self.where,
                why=f"this program reads layout {SCHEMA_VERSION}",
                todo=f"{'Update MuSchedule, or set' if newer else 'Set'} store.url to another file",
            )
        return tables >= set(METADATA.tables)

    def _prepare(self, connection: Connection) -> None:
        if not self._is_ready(connection):  # another process may have been faster
            METADATA.create_all(connection)
            if connection.execute(select(LAYOUT.c.version)).first() is None:
                connection.execute(LAYOUT.insert().values(version=SCHEMA_VERSION))

    def _told(self, error: Exception) -> UserError:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        low = cause.lower()
        todo = "Check store.url"
        if "readonly" in low or "read-only" in low or "permission" in low:
            todo = "Make the file and its folder writable, or set store.url to a place that is"
        elif "unable to open" in low:
            todo = "Check that the folder exists and is writable, or set store.url to another file"
        elif "not a database" in low or "malformed" in low or "corrupt" in low:
            todo = "Move the file away and restore a copy of it, or set store.url to another file"
        elif "full" in low or "disk i/o" in low:  # the second is what a full disk says of the write-ahead log
            todo = "Free some space, or set store.url to another disk"
        elif "locked" in low:
            todo = f"Another program has held it for {BUSY_SECONDS:g} seconds: end that, and try again"
        return UserError("cannot use the tuning store", where=self.where, why=cause, todo=todo)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
        dialect = parsed.get_backend_name()
    except (ArgumentError, ValueError, AttributeError) as error:
        raise UserError(
            "the URL of the tuning store cannot be read",
            where=f"store.url={url}",
            why=str(error),
            todo="Write it as sqlite:///<file> or postgresql://user@host/name",
        ) from None
    if dialect not in _DIALECTS:
        raise UserError(
            f"{dialect} cannot hold a tuning store",
            where=f"store.url={parsed.render_as_string(hide_password=True)}",
            todo=f"Use one of {', '.join(_DIALECTS)}",
        )
    return parsed


def _prepare_folder(url: URL, where: str, create: bool) -> None:
    path = Path(str(url.database))
    if not create and not path.is_file():
        raise UserError("there is no tuning store", where=where, why=f"{path} is not a file", todo="Check --url")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            "cannot make the folder of the tuning store",
            where=where,
            why=f"{path.parent}: {error.strerror}",
            todo="Make that place writable, or set store.url to another file",
        ) from None


def _another_writer(error: DatabaseError) -> bool:
    """Whether trying again can help: SQLite is busy, or two processes of PostgreSQL met."""
    message = str(error.orig).lower()
    if isinstance(error, OperationalError) and ("locked" in message or "deadlock" in message or "serialize" in message):
        return True
    return "already exists" in message or "pg_type_typname" in message  # two processes made the tables at once


def _tune_sqlite(engine: Engine) -> None:
    """Write-ahead log, so that readers and a writer do not wait for each other, and transactions that are ours."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions late and only for some statements
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
        with contextlib.suppress(Exception):  # a read-only file keeps its mode; the first write tells the user
            cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("muschedule_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
