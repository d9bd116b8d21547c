"""Long lists are written as their parts are, whatever became of the list before."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from tableformat.spec import list_texts
from tableformat.spec.json_texts import model_json
from tableformat.spec.kept_text import plain
from tableformat.spec.list_texts import ListTexts, texts_of
from tableformat.spec.metadata_json import COMPRESSION_CODEC, encode_metadata
from tests.support.table_metadata import metadata_of

SNAPSHOTS = metadata_of(30).snapshots
lists = st.lists(st.sampled_from(SNAPSHOTS), max_size=30)
grown = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda at: SNAPSHOTS[slice(*at)])


@given(versions=st.lists(lists | grown, max_size=6), zipped=st.lists(st.booleans(), min_size=6))
def test_text_is_that_of_the_parts(versions, zipped) -> None:
    list_texts.KEPT_BYTES_MIN, former = 900, list_texts.KEPT_BYTES_MIN
    try:
        texts = ListTexts()
        for parts, is_zipped in zip(versions, zipped, strict=False):
            texts = texts_of(parts, texts, is_zipped=is_zipped)
            assert b"".join(map(plain, texts.joined())) == b",".join(map(model_json, parts))
    finally:
        list_texts.KEPT_BYTES_MIN = former


def test_compressed_tables_keep_no_plain_text() -> None:
    metadata = metadata_of(2_000, properties={COMPRESSION_CODEC: "gzip"})
    data = encode_metadata(metadata)
    kept = metadata.__dict__["_list_texts"]["snapshots"].chunks
    sizes = [getattr(each.text, "kept_bytes", 0) or len(each.text) for each in kept]
    assert sum(sizes) < len(data) / 4
    assert len(pickle.dumps(metadata)) < len(pickle.dumps(metadata_of(2_000))) * 1.01
