"""Parquet tables with an explicit schema: one function writes them, one reads them.

A schema maps column names to "string", "bool", "int32", "float64", a list of one kind, a mapping of names to kinds, or (columns
only) "json": free-form data, stored as JSON text. Hugging Face's `datasets` writes, so `load_dataset("parquet", ...)` finds the
schema in the file. Reading goes through pyarrow: `datasets` takes seconds to import, and would first copy the file into a cache
of its own elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlcore.errors import ConfigError

Schema = dict[str, Any]


def write_table(path: str | Path, rows: Iterable[dict[str, Any]], schema: Schema) -> None:
    """Write the rows; the file appears whole or not at all. Equal rows give equal files."""
    import datasets

    datasets.disable_progress_bars()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    stored = [{name: _stored(row[name], kind) for name, kind in schema.items()} for row in rows]
    features = datasets.Features.from_arrow_schema(_arrow_schema(schema))
    datasets.Dataset.from_list(stored, features=features).to_parquet(str(temporary))
    os.replace(temporary, path)


def read_table(path: str | Path, schema: Schema) -> list[dict[str, Any]]:
    """The rows of a file. Raises ConfigError naming file and column when it is no such table."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is not a parquet file that can be read: {error}") from error
    for field in _arrow_schema(schema):
        if field.name not in table.schema.names:
            raise ConfigError(f"{path} lacks the column {field.name}; was it written by an earlier version?")
        if not table.schema.field(field.name).type.equals(field.type):
            raise ConfigError(f"{path}: column {field.name} is {table.schema.field(field.name).type}, not {field.type}")
    rows = table.select(list(schema)).to_pylist()
    for name in (name for name, kind in schema.items() if kind == "json"):
        for number, row in enumerate(rows):
            try:
                row[name] = json.loads(row[name])
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{path}: row {number}: {name} is not JSON: {error}") from error
    return rows


def _stored(value: Any, kind: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if kind == "json" else value


def _arrow_schema(schema: Schema) -> Any:
    import pyarrow

    return pyarrow.schema([(name, _arrow_type(kind)) for name, kind in schema.items()])


def _arrow_type(kind: Any) -> Any:
    import pyarrow

    if isinstance(kind, list):
        return pyarrow.list_(_arrow_type(kind[0]))
    if isinstance(kind, dict):
        return pyarrow.struct([(name, _arrow_type(inner)) for name, inner in kind.items()])
    return getattr(pyarrow, {"json": "string", "bool": "bool_"}.get(kind, kind))()
