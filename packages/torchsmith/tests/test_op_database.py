"""A few operators of each kind of the database; all of them in ``python op_database.py``."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import op_database
import pytest
import torch

NAMES = (
    "add cumsum ldexp pow sum index_add nn.functional.batch_norm nn.functional.gelu where "
    "masked_fill conj"
).split()
CASES = [
    (index, name)
    for index, name in op_database.jobs()
    if op_database.op_db[index].name in NAMES and op_database.op_db[index].variant_test_name == ""
]


def test_the_names_exist():
    assert {op_database.op_db[index].name for index, _ in CASES} == set(NAMES)


@pytest.mark.parametrize(
    "index, dtype", CASES, ids=[f"{op_database.op_db[i].name}-{d}" for i, d in CASES]
)
def test_operator_as_in_eager(index, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert op_database.check(op_database.op_db[index], getattr(torch, dtype), 1) == ""
