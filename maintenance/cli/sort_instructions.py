"""NumPy's sorts on AMD's Zen 4, where those with AVX-512 take five times as long as with AVX2.

100,000 integers take 3.7 ms and 0.7 ms. A cycle of a million upserts, much of which is sorts, takes
a fifth of its processor time less (`docs/scale.md`). NumPy chooses when it is imported, by a
variable of the environment; so this comes before that, and only in processes of our own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
CHOICES = ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES")  # NumPy takes one of them
ZEN_4_FAMILY = "25"  # Zen 3 is of it, too, and has no AVX-512


def choose_sort_instructions(cpu_info: Path = CPU_INFO) -> None:
    """Have NumPy do without AVX-512 where it sorts faster so, unless the user has chosen.

    Args:
        cpu_info: Linux's description of the processor; without one nothing is chosen.

    Effects: sets a variable of the environment, for this process and those that it starts.
    """
    if any(name in os.environ for name in CHOICES):
        return
    with suppress(OSError, PackageNotFoundError, ValueError):
        if _is_zen_4(cpu_info):
            major, minor = map(int, version("numpy").split(".")[:2])
            names = "X86_V4" if (major, minor) >= (2, 4) else "AVX512F"
            os.environ["NPY_DISABLE_CPU_FEATURES"] = names


def _is_zen_4(cpu_info: Path) -> bool:
    first, _, _ = cpu_info.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    lines = (line.partition(":") for line in first.splitlines())
    told = {name.strip(): value.strip() for name, _, value in lines}
    return (
        told.get("vendor_id") == "AuthenticAMD"
        and told.get("cpu family") == ZEN_4_FAMILY
        and "avx512f" in told.get("flags", "").split()
    )
