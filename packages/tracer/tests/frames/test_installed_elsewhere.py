"""A library counts as one wherever it is installed: packages of a system's Python, of a user, on a
path of the environment's."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from torchsmith_tracer._src.frames import library

_PROGRAM = """
import numpy, numpy.random, torch, torchsmith_tracer
from torchsmith_tracer._src.frames.library import is_library_module
assert numpy.__file__.startswith({folder!r})
assert is_library_module("numpy") and is_library_module("numpy.random")

def drawn(size):
    first = numpy.random.rand(1).item()
    return first + numpy.random.rand(size).sum()

compiled = torchsmith_tracer.compile(lambda x: x * drawn(len(x)), backend="eager")
compiled(torch.ones(3))
print([b.name for b in compiled._torchsmith_region.log.breaks])
"""


def test_numpy_on_another_path(tmp_path):
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            os.symlink(site / name, tmp_path / name)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", _PROGRAM.format(folder=str(tmp_path))]
    run = subprocess.run(command, capture_output=True, text=True, env=env)
    assert run.stdout.strip() == "['host-function']", run.stdout + run.stderr


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_packages_beside_the_standard_library_are_none_of_it(name):
    """As an environment with ``--system-site-packages`` has them."""
    standard = Path(sysconfig.get_paths()["stdlib"])
    found = compile("pass", str(standard / name / "models" / "layers.py"), "exec")
    assert not library.is_library(found)
    assert library.is_library(compile("pass", str(standard / "json" / "decoder.py"), "exec"))
