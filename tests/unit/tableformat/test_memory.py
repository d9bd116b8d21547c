import os
import subprocess
import sys

import pytest

CHILD = """
import ctypes, threading
from tableformat.memory import share_heaps

share_heaps()
libc = ctypes.CDLL(None)
done = threading.Barrier(33, timeout=60)

def allocate():
    libc.malloc(5000)
    done.wait()

for _ in range(32):
    threading.Thread(target=allocate).start()
done.wait()
libc.malloc_stats()  # a paragraph per heap, on stderr
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no heap per thread")
def test_threads_share_heaps():
    printed = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)

    assert printed.returncode == 0
    assert printed.stderr.count("Arena ") <= (os.cpu_count() or 1) + 1
