"""The tables of a store, and the version of their layout."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 1

METADATA = MetaData()

LAYOUT = Table(
    "muschedule_layout",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
)

RECORDS = Table(
    "muschedule_records",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("candidate_key", String(64), nullable=False),
    Column("task_key", String(64), nullable=False),
    Column("task_name", Text, nullable=False),
    Column("sketch", Text, nullable=False),
    Column("values", JSON, nullable=False),
    Column("target", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("predicted", Boolean, nullable=False),
    Column("status", String(8), nullable=False),
    Column("reason", Text, nullable=False),
    Column("samples", JSON, nullable=False),
    Column("inner", Integer, nullable=False),
    Column("latency_ns", Float(53)),
    Column("max_error", Float(53)),
    Column("tolerance", Float(53)),
    Column("seed", BigInteger, nullable=False),
    Column("created", DateTime, nullable=False),  # UTC, without a zone: SQLite keeps none
    UniqueConstraint("candidate_key", "target", "version", "predicted", name="muschedule_once"),
    Index("muschedule_by_task", "task_key", "target", "version", "predicted", "status", "latency_ns"),
)

# Added to the layout later: a store without it is given it.
NOTES = Table(
    "muschedule_notes",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("text", Text, nullable=False),
    Column("created", DateTime, nullable=False),  # UTC, as above
)
