"""Avro schemas of what we write, as JSON values, from PyIceberg's Iceberg schemas."""

from __future__ import annotations

from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion


def avro_schema_json(schema: Schema, name: str) -> Any:
    """The Avro schema of an Iceberg schema, with every type name defined once.

    Avro forbids to define a name twice, but PyIceberg names `fixed`, `decimal` and `uuid` types by
    their size only, so two such partition fields clash (fastavro and Java then refuse the file). A
    second definition gets the field id appended, rather than a reference, which PyIceberg cannot
    read.
    """
    converted = AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name)
    _rename_duplicates(converted, seen=set(), field_id=0)
    return converted


def _rename_duplicates(node: Any, *, seen: set[str], field_id: int) -> None:
    if isinstance(node, list):
        for each in node:
            _rename_duplicates(each, seen=seen, field_id=field_id)
    elif isinstance(node, dict):
        field_id = node.get("field-id", field_id)
        if node.get("type") in ("fixed", "record") and "name" in node:
            if node["name"] in seen:
                node["name"] = f"{node['name']}_{field_id}"
            seen.add(node["name"])
        for key in ("type", "fields", "items", "values"):
            if key in node:
                _rename_duplicates(node[key], seen=seen, field_id=field_id)
