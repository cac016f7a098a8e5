"""``same``: every kind of leaf and container, the options, and the arbitration by float64."""

import collections
import dataclasses
import enum
import logging
import re

import numpy as np
import pytest
import torch
from torchsmith.errors import ComparisonError, StructureError
from torchsmith.testing import rmse, same

NAN = float("nan")
ONE = torch.ones(3)
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    cache: object = None


class QuestionAnsweringModelOutput:
    def __init__(self, loss, logits):
        self.loss, self.logits = loss, logits


class OtherOutput:
    def __init__(self, x):
        self.x = x


def quiet(*args):
    pass


COO = torch.eye(3).to_sparse()
# reference, result, options, part of the text of the difference (None: they are the same)
CASES = [
    (ONE, ONE + 1e-5, {}, None),
    (ONE, ONE + 0.5, {}, r"result: 3 of 3 elements differ, first at \[0\]: 1.5, not 1"),
    (ONE, ONE + 0.5, {"tol": 1.0}, None),
    (ONE, ONE.double(), {}, "dtype torch.float64, not torch.float32"),
    (ONE, ONE.double(), {"exact_dtype": False}, None),
    (ONE, torch.ones(1), {}, r"shape \[1\], not \[3\]"),
    (torch.ones(2, 3), torch.ones(3, 2).t(), {}, None),
    (torch.ones(2, 3), torch.ones(3, 2).t(), {"exact_stride": True}, "strides"),
    (torch.ones(1, 3), torch.ones(3, 1).t(), {"exact_stride": True}, None),
    (torch.empty(0, 3), torch.empty(0, 3), {}, None),
    (ONE, ONE.to("meta"), {}, "device"),
    (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), {}, "nan"),
    (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), {"equal_nan": True}, None),
    (torch.tensor([True]), torch.tensor([False]), {}, "differ"),
    (torch.tensor([True]), torch.tensor([False]), {"ignore_non_fp": True}, None),
    (torch.tensor([1]), torch.tensor([2]), {}, "differ"),
    (torch.tensor([1]), torch.tensor([2]), {"ignore_non_fp": True}, None),
    (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]).conj().conj(), {}, None),
    (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]).conj(), {}, "differ"),
    (ONE.to(torch.float8_e4m3fn), ONE.to(torch.float8_e4m3fn), {}, None),
    (COO, COO.clone(), {}, None),
    (COO, COO * 2, {}, "differ"),
    (COO, torch.eye(3), {}, "layout torch.strided, not torch.sparse_coo"),
    (ONE, ONE * 5, {"cos_similarity": True}, None),
    (ONE, torch.tensor([1.0, -1.0, 1.0]), {"cos_similarity": True}, "cosine similarity 0.333"),
    (torch.zeros(3), torch.zeros(3), {"cos_similarity": True}, None),
    (1.0, 1.000001, {}, None),
    (1.0, 1.1, {}, "differ"),
    (1.0, "1.0", {}, "a str, not a float"),
    (NAN, NAN, {"equal_nan": True}, None),
    (1, 2, {}, "result: 2, not 1"),
    (1, 2, {"ignore_non_fp": True}, None),
    (1, True, {}, "True, not 1"),
    ("a", "b", {}, "'b', not 'a'"),
    (None, None, {}, None),
    (None, ONE, {}, "not None"),
    (torch.device("cpu"), torch.device("meta"), {}, "meta"),
    (torch.float32, torch.float64, {}, "float64"),
    ({1, 2}, {2, 1}, {}, None),
    ({1, 2}, {1}, {}, "not"),
    ([ONE, 2], (ONE, 2), {}, None),
    ([ONE, [ONE]], [ONE, [ONE + 1]], {}, r"result\[1\]\[0\]"),
    ([ONE], [ONE, ONE], {}, "2 items, not 1"),
    (torch.Size([2]), (2,), {}, None),
    (torch.nn.ParameterList([ONE]), [ONE.clone()], {}, None),
    (Point(ONE, 1), Point(ONE, 2), {}, r"result\[1\]"),
    ({"b": 1, "a": ONE}, {"a": ONE, "b": 1}, {}, None),
    ({"a": {"b": ONE}}, {"a": {"b": ONE * 2}}, {}, r"result\['a'\]\['b'\]"),
    ({1: ONE, "1": ONE}, {1: ONE, "1": ONE}, {}, None),
    (Output(ONE, [1]), Output(ONE, [1]), {}, None),
    (Output(ONE, [1]), Output(ONE + 1, [2]), {}, r"result.logits: (.|\n)*result.cache\[0\]: 2"),
    (Output(ONE), OtherOutput(ONE), {}, "a OtherOutput, not a Output"),
    (OtherOutput(ONE), OtherOutput(ONE + 1), {}, "result.x"),
    (torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.0, 2.0), {}, "scale"),
    (QuestionAnsweringModelOutput(ONE, 1), QuestionAnsweringModelOutput(ONE, 2), {}, None),
    (np.ones(3), np.ones(3), {}, None),
    (np.ones(3), np.zeros(3), {}, "differ"),
    (np.ones(3), ONE.double(), {}, "a Tensor, not a ndarray"),
    (np.ones(3), ONE.double(), {"relax_numpy_equality": True}, None),
    (np.float32(1), np.float32(1), {}, None),
    (np.float32(1), np.float64(1), {}, "not"),
    (np.float32(1), 1.0, {}, "not"),
    (np.float32(1), 1.0, {"relax_numpy_equality": True}, None),
    (np.int64(1), np.int64(2), {"ignore_non_fp": True}, None),
]  # fmt: skip


@pytest.mark.parametrize("ref, res, options, text", CASES)
def test_same(ref, res, options, text):
    verdict = same(ref, res, **options, log_error=quiet)
    assert bool(verdict) is (text is None), str(verdict)
    if text is None:
        assert str(verdict).startswith("same in all of")
    else:
        assert re.search(text, str(verdict)), str(verdict)


def test_what_has_another_structure_or_none():
    for ref, res in (([1], 1), ({"a": 1}, [1]), ({"a": 1}, {"b": 1})):
        with pytest.raises(StructureError, match="TS-S001"):
            same(ref, res)
        assert issubclass(StructureError, AssertionError)
    with pytest.raises(ComparisonError, match="result.cache: a builtins.object"):
        same(Output(ONE, object()), Output(ONE, object()))
    assert issubclass(ComparisonError, RuntimeError)
    assert enum.Enum  # an enum is no result either
    with pytest.raises(ComparisonError):
        same(enum.Enum("Kind", "A").A, 1)


def test_each_difference_is_logged_once(caplog):
    with caplog.at_level(logging.ERROR, "torchsmith.repro"):
        same([ONE, ONE, 1], [ONE + 1, ONE, 2])
    assert len(caplog.records) == 2
    said = []
    same(ONE, ONE + 1, log_error=lambda text, *args: said.append(text % args))
    assert len(said) == 1 and "largest difference 1" in said[0]


def _off(exact, error):
    """``exact`` in float32 with a root mean square error of ``error``."""
    signs = torch.where(torch.arange(exact.numel()) % 2 == 0, 1.0, -1.0)
    return (exact + error * signs.reshape(exact.shape)).float()


@pytest.mark.parametrize(
    "shape, own, allowed, options, right",
    [
        ((40, 50), 0.005, 0.005, {}, True),
        ((40, 50), 0.009, 0.005, {}, True),
        ((40, 50), 0.011, 0.005, {}, False),  # more than twice
        ((40, 50), 25.0, 0.005, {}, False),
        ((40, 10), 0.014, 0.005, {}, True),  # small: three times
        ((40, 10), 0.016, 0.005, {}, False),
        ((40, 50, 1, 1), 0.014, 0.005, {}, True),  # as a 1x1 convolution gives
        ((40, 50), 0.14, 0.05, {"tol": 0.02}, True),  # a loose tolerance, and its tenth
        ((40, 50), 0.16, 0.05, {"tol": 0.02}, False),
        ((2, 5), 0.04, 0.005, {}, False),
        ((2, 5), 0.04, 0.005, {"use_larger_multiplier_for_smaller_tensor": True}, True),
        ((40, 50), 0.001, 0.0, {}, False),  # an exact reference allows a tenth of the tolerance
    ],
)
def test_float64_decides(shape, own, allowed, options, right):
    exact = torch.linspace(0.01, 0.02, torch.Size(shape).numel(), dtype=torch.float64)
    exact = exact.reshape(shape)
    # opposite signs, so that result and reference are never close to each other
    ref, res = _off(exact, -allowed), _off(exact, own)
    said = []
    verdict = same(
        ref, res, exact, **options, log_error=lambda text, *args: said.append(text % args)
    )
    assert bool(verdict) is right
    own_rms, allowed_rms = verdict.leaves[0].rms
    assert own_rms == pytest.approx(own, rel=1e-3, abs=1e-6)
    assert allowed_rms == pytest.approx(allowed, rel=1e-3, abs=1e-6)
    assert right or ("RMS error" in said[0] and "torch.float32" in said[0] and "factor" in said[0])


def test_referees_in_containers_and_useless_ones():
    exact = torch.full((2000,), 1.0, dtype=torch.float64)
    ref, res = _off(exact, -0.01), _off(exact, 0.01)
    assert same([{"a": ref}], ({"a": res},), [{"a": exact}])
    assert same(Output(ref), Output(res), Output(exact))
    assert not same(ref, res, exact.float(), log_error=quiet)  # not float64: nothing to ask
    assert not same([ref], [res], [], log_error=quiet)
    overflowed = torch.full((2000,), NAN)
    assert same(overflowed, exact.float(), exact)  # better than the reference
    assert not same(exact.float(), overflowed, exact, log_error=quiet)
    assert not same(overflowed, overflowed, exact, log_error=quiet)
    assert same(overflowed, overflowed, exact, equal_nan=True)


def test_rmse():
    assert rmse(torch.zeros(4), torch.full((4,), 3.0)) == 3.0
    assert rmse(torch.zeros(2), torch.tensor([3.0, 4.0])) == pytest.approx(12.5**0.5)
