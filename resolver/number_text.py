"""Numbers as people read them, the same everywhere."""

from __future__ import annotations

_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def span_text(span_ms: float) -> str:
    """A duration: `850 ms`, `1.5 s`, `2.0 h`."""
    for size_ms, unit in _SPANS:
        if span_ms >= size_ms:
            return f"{span_ms / size_ms:,.1f} {unit}"
    return f"{span_ms:,.0f} ms"


def bytes_text(size_bytes: float) -> str:
    """A size in powers of ten: `1.5 MB`."""
    for size, unit in _BYTES:
        if size_bytes >= size:
            return f"{size_bytes / size:,.1f} {unit}"
    return f"{size_bytes:,.0f} B"


def count_text(count: float) -> str:
    """A count with thousands separated."""
    return f"{count:,.0f}"


def plural(count: int, noun: str, several: str | None = None) -> str:
    """`1 file`, `2,000 files`; `several` where an s does not make the plural."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"
