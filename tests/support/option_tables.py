"""Option models as the tables that the documentation has."""

from __future__ import annotations

from tableformat.spec.options import Options


def markdown(model: type[Options]) -> str:
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for name, values, default, text in model.described():
        shown = "**required**" if default == "required" else _code(default)
        escaped = values.replace("|", r"\|")
        lines.append(f"| `{name}` | {_code(escaped)} | {shown} | {text} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
