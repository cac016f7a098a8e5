"""A part of the random programs of ``fuzz_mutation.py``, whose facts change between two calls."""

import importlib.util
import re
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "fuzz_mutation.py"
spec = importlib.util.spec_from_file_location("fuzz_mutation", PATH)
fuzz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzz)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_compiled_equals_eager_when_facts_change_between_calls(first):
    found = [text for seed in range(first, first + 20) if (text := fuzz.run(seed)) is not None]
    assert found == []


def test_every_kind_of_fact_can_be_read_and_changed():
    for number, one in enumerate(fuzz.FACTS):
        own = f"_{number}"
        space = {"x": fuzz.argument("")}
        exec(f"{fuzz.PRELUDE}\n{one.setup}".replace("$", own), space)
        eval(one.read.replace("$", own), space)
        for do, undo in one.changes:
            deleted = re.fullmatch(r"del ([\w.$]+)\.(\w+)", undo)
            if deleted is not None and "$" not in deleted[1]:
                owner = eval(deleted[1], space)  # of all programs: it must be left as it was
                assert deleted[2].replace("$", own) not in getattr(owner, "__dict__", ()), undo
            exec(do.replace("$", own), space)
            exec(undo.replace("$", own), space)
