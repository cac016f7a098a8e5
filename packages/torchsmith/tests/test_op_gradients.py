"""Gradients of a few operators of each kind; of all of them in ``python op_gradients.py``."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import op_gradients
import pytest
import torch
from op_database import op_db

NAMES = (
    "mul cumprod logsumexp var index_add gather scatter_reduce nn.functional.layer_norm "
    "nn.functional.softplus nn.functional.max_pool2d nn.functional.cross_entropy matmul where"
).split()
CASES = [
    i for i in op_gradients.jobs() if op_db[i].name in NAMES and not op_db[i].variant_test_name
]


def test_what_is_listed_exists_and_has_a_reason():
    labels = {op_gradients.label_of(op) for op in op_db}
    for name, reason in op_gradients.LISTED.items():
        assert name in labels and len(reason) > 10


@pytest.mark.parametrize("index", CASES, ids=[op_db[i].name for i in CASES])
def test_gradients_as_in_eager(index):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert op_gradients.check(op_db[index], torch.float32, 2) == ""
