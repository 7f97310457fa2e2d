"""Worker processes: what they are started with."""

import os
import platform
import subprocess
import sys

import pytest

from plait.cluster.local import worker_env

HEAPS = """
import ctypes, threading
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.fopen.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = (ctypes.c_void_p,)
meet = threading.Barrier(4)
def take():
    meet.wait()
    libc.malloc(ctypes.c_size_t(4096))
    meet.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
out = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has heaps by thread")
def test_threads_of_a_worker_share_one_heap() -> None:
    def n_heaps(env: dict[str, str]) -> int:
        told = subprocess.run(
            [sys.executable, "-c", HEAPS], env=env, capture_output=True, text=True, check=True
        )
        return told.stdout.count("<heap nr=")

    plain = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"}
    assert n_heaps({**plain, **worker_env(2)}) == 1
    assert n_heaps(plain) > 1
