"""What calls leave behind, up to the end of the interpreter, is what eager leaves."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "left_behind.py"
NAMES = re.findall(r"^@program\ndef (\w+)", PROGRAMS.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def left():
    """What both sides of each program have left; one process imports torch and forks them."""
    done = subprocess.run([sys.executable, PROGRAMS], capture_output=True, text=True, check=True)
    return {name: sides for name, *sides in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_compiled_programs_leave_what_eager_leaves(left, name):
    eager, compiled = left[name]
    assert compiled == eager
    assert eager[1], "it prints what it sees"


def test_a_difference_would_be_seen():
    source = PROGRAMS.read_text().replace("torchsmith.compile if", "(lambda fn: None) if")
    command = [sys.executable, "-c", source, "callback_of_a_reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ((_, eager, other),) = map(json.loads, done.stdout.splitlines())
    assert eager[0] == 0 and other[0] != 0
