"""docs/schema-registry.md: its options are those of the command."""

import re
from pathlib import Path

from maintenance.cli.ingest import ingest
from maintenance.cli.registry_options import NAMES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "schema-registry.md").read_text()


def test_options_named_are_those_of_the_command():
    known = {name for param in ingest.params for name in param.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named <= known
    assert {name for name in known if "registry" in name} <= named
    assert len(NAMES) == sum("registry" in name for name in known)
    variables = {param.envvar for param in ingest.params} - {None}
    assert all(name in PAGE for name in variables)


def test_snippet_makes_a_decoder_that_hides_its_options():
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(snippet, "docs/schema-registry.md", "exec"), names)
    assert "ca.pem" not in repr(names["decoder"])
