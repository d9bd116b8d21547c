import pickle

import pytest

from tableformat import errors
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    TableError,
    error_context,
    refusing_deep_nesting,
)

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, TableError) and value is not TableError
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_error_survives_pickling_with_its_context(cls):
    error = cls("it failed: because", action="do this", location="s3://b/x")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error) == "it failed: because; location=s3://b/x; do this"
    assert copy.context == {"location": "s3://b/x"}


def test_conflicts_survive_pickling():
    error = CommitConflictError("lost", conflicts=["snapshot 1"])
    assert pickle.loads(pickle.dumps(error)).conflicts == ("snapshot 1",)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_docstring_tree_names_every_class(cls):
    assert cls.__name__ in errors.__doc__


def test_only_definite_failures_allow_clean_up():
    assert CommitConflictError("x").files_safe_to_delete
    assert not CommitUnknownError("x").files_safe_to_delete


def test_error_text_is_one_line():
    assert "\n" not in str(InvalidInputError("a\nb", action="c\nd", key="e\nf"))


def test_builtin_bases_let_plain_handlers_catch_them():
    assert issubclass(InvalidInputError, ValueError)
    assert issubclass(NotFoundError, LookupError)


def test_error_context_adds_what_the_outer_layer_knows():
    with pytest.raises(NotFoundError) as caught, error_context(table="a.b", location="outer"):
        raise NotFoundError("gone", location="inner")
    assert caught.value.context == {"location": "inner", "table": "a.b"}


def test_kinds_are_append_only():
    assert [kind.value for kind in ErrorKind][:10] == [
        "conflict",
        "unknown",
        "fenced",
        "unavailable",
        "invalid-input",
        "not-found",
        "already-exists",
        "unsupported",
        "corrupt-data",
        "internal",
    ]


@pytest.mark.parametrize("part", ["a\rb", "a\u2028b", "a\x1b[31mb", "a\x00b", "a\ud800b", "a\x85b"])
def test_error_text_can_be_printed_whatever_a_file_or_a_user_named(part):
    text = str(CorruptDataError(part, action=part, location=part))
    assert text.isprintable()
    assert text.encode()


def test_error_text_quotes_a_long_name_in_part_and_keeps_it_in_the_context():
    error = CorruptDataError("x" * 100_000, action="y" * 100_000, location="z" * 100_000)
    assert len(str(error)) < 4_000
    assert str(error).endswith("y...")
    assert error.context["location"] == "z" * 100_000


def test_text_that_fits_is_not_changed():
    assert str(InvalidInputError("größer als 5", column="naïve")) == "größer als 5; column=naïve"


def test_deep_nesting_is_a_wrong_input():
    def deeper():
        deeper()

    refused = pytest.raises(InvalidInputError, match="cannot read the filter: it is nested too")
    with refused, refusing_deep_nesting("filter"):
        deeper()
