"""The JSON text of immutable metadata parts, remembered for as long as the part itself lives.

A commit writes every snapshot of the table again. Thousands of them, serialized each time, would
make the two-thousandth commit several times slower than the twentieth; their text never changes, so
it is made once. The memory is by object identity and weak: it holds nothing alive, and a changed
copy is another object.

It also carries text that a model cannot: a schema or ref read from a file keeps the fields that
PyIceberg drops, as long as the object itself is passed along.
"""

from __future__ import annotations

import weakref
from typing import Any

from pyiceberg.typedef import IcebergBaseModel

_texts: dict[int, tuple[weakref.ref[Any], bytes]] = {}


def remember_text(part: IcebergBaseModel, text: bytes) -> None:
    """Use `text` as the JSON of `part` from here on."""
    key = id(part)

    def forget(reference: weakref.ref[Any]) -> None:
        # A new object may already live at the same address: remove only one's own entry.
        entry = _texts.get(key)
        if entry is not None and entry[0] is reference:
            _texts.pop(key, None)

    _texts[key] = (weakref.ref(part, forget), text)


def text_of(part: IcebergBaseModel) -> bytes:
    """The JSON of an immutable part, UTF-8."""
    entry = _texts.get(id(part))
    if entry is not None and entry[0]() is part:
        return entry[1]
    # TableMetadataV3 and its like override `model_dump_json`; parts do not, and None is omitted.
    text = part.model_dump_json().encode()
    remember_text(part, text)
    return text
