"""Fake modes in threads: what torch keeps for the process must outlive the thread that made it."""

import subprocess
import sys

PROGRAM = """
import threading
import torch
import torchsmith_guards as guards


def trace():
    mode = guards.FakeMode(guards.ShapeEnv())
    x = mode.fakeify(torch.ones(3), guards.LocalSource("x"), {0})
    with mode.mode:
        assert (x + 1).shape == x.shape


def fill():
    threads = [threading.Thread(target=lambda: [bytearray(99) for _ in range(999)]) for _ in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


for _ in range(2):
    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    fill()
trace()
torch.ones(3, requires_grad=True).sum().backward()
print("done")
"""


def test_a_first_mode_in_a_thread_that_ends():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
