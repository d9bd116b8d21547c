"""The JSON text of immutable metadata parts, remembered for as long as the part itself lives.

Schemas, specs and the like are written by every commit, and their text never changes, so it is made
once. The memory is by object identity and weak: it holds nothing alive, and a changed copy is
another object. Snapshots are too many for it: `list_texts`.

It also carries text that a model cannot: a schema or ref read from a file keeps the fields that
PyIceberg drops, as long as the object itself is passed along.
"""

from __future__ import annotations

from pydantic_core import PydanticSerializationError
from pyiceberg.typedef import IcebergBaseModel

from tableformat.errors import InvalidInputError
from tableformat.object_memory import ObjectMemory

_texts: ObjectMemory[IcebergBaseModel, bytes] = ObjectMemory()


def remember_text(part: IcebergBaseModel, text: bytes) -> None:
    """Use `text` as the JSON of `part` from here on."""
    _texts.put(part, text)


def text_of(part: IcebergBaseModel) -> bytes:
    """The JSON of an immutable part, UTF-8."""
    known = _texts.get(part)
    if known is not None:
        return known
    text = model_json(part)
    remember_text(part, text)
    return text


def text_once(part: IcebergBaseModel) -> bytes:
    """The same, not remembered where it is not."""
    known = _texts.get(part)
    return model_json(part) if known is None else known


def model_json(part: IcebergBaseModel) -> bytes:
    """The JSON of a model, UTF-8.

    Raises:
        InvalidInputError: A text in it holds half a character, as Python has the bytes of a
            command line that were no UTF-8.
        KeyboardInterrupt: Ctrl-C.
    """
    # TableMetadataV3 and its like override `model_dump_json`; parts do not, and None is omitted.
    try:
        return part.model_dump_json().encode()
    except PydanticSerializationError as error:
        told = str(error)
        if "KeyboardInterrupt" in told:  # wrapped, as all that is raised while a model is written
            raise KeyboardInterrupt from error
        if "UnicodeEncodeError" in told:
            raise InvalidInputError(f"a text cannot be stored as UTF-8: {error}") from error
        raise
