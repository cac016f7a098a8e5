"""Programs of two processes give what they give eagerly, on each rank: gradients that are averaged
while a compiled backward pass runs, sharded parameters, distributed tensors, collectives."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import two_processes


def run(how, folder):
    """What the two ranks see."""

    def rank(number):
        given = (two_processes.__file__, how, str(number), str(folder / how))
        done = subprocess.run([sys.executable, *given], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(rank, range(2))]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = Path(tmp_path_factory.mktemp("store"))
    return {how: run(how, folder) for how in ("eager", "compiled")}


def numbers(nest):
    """The floats of a nest, and the rest of it."""
    floats, rest = [], []
    for item in nest:
        if isinstance(item, list):
            inner, others = numbers(item)
            floats += inner
            rest += [len(item), *others]
        else:
            (floats if isinstance(item, float) else rest).append(item)
    return floats, rest


@pytest.mark.parametrize("name", two_processes.PROGRAMS)
def test_programs_of_two_processes(name, found):
    for ours, theirs in zip(found["compiled"], found["eager"], strict=True):
        (floats, rest), (wanted, others) = numbers(ours[name]), numbers(theirs[name])
        assert rest == others
        assert floats == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_a_wrapped_module_is_compiled_either_way_round(found):
    for rank in found["compiled"]:
        assert rank["graphs"]["data parallel"] >= 2 and rank["graphs"]["compiled inside"] >= 2
