"""What is found out about many tensors at once is what each of them says."""

import time
from array import array

import pytest
import torch
from torch import nn
from torchsmith_fx_backend._src.runtime import addresses
from torchsmith_guards import native_library


@pytest.fixture(params=[False, True], ids=["tensor by tensor", "natively"])
def way(request, monkeypatch):
    end = time.monotonic() + 60
    while request.param and native_library() is None and time.monotonic() < end:
        time.sleep(0.05)
    if not request.param:
        monkeypatch.setattr(addresses, "native_library", lambda: None)


class Marked(torch.Tensor):
    """A class of its own."""


def tensors():
    base = torch.zeros(6, 6)
    odd = (base[2:, 1:], torch.zeros(0), torch.zeros(4).as_subclass(Marked))
    return (base, nn.Parameter(torch.zeros(3)), *odd)


def test_where_tensors_begin(way):
    for given in (tensors(), tensors()[:-1]):
        assert list(addresses.addresses(given)) == [t.data_ptr() for t in given]


def test_what_tensors_are(way):
    with torch.inference_mode():
        inference = torch.zeros(2)
    for own in (tensors(), tensors()[:-1]):
        own[0].add_(1)
        given = (*own, inference, own[0])
        count, found = len(given), addresses.looks(given)
        versions = [0 if t.is_inference() else t._version for t in given]
        assert list(array("q", found[8 * count : 16 * count])) == versions
        said = [[bool(flags >> bit & 1) for bit in range(4)] for flags in found[16 * count :]]
        facts = [[t.requires_grad, t._is_view(), t.is_leaf, t.is_inference()] for t in given]
        assert said == facts
    assert addresses.looks(()) == b""


def test_what_lies_in_memory_as_it_is(way):
    x = torch.randn(3, 4)
    lazy = (torch._neg_view(x), x.to(torch.cfloat).conj(), torch._efficientzerotensor(3))
    others = (x.to_sparse(), x.as_subclass(Marked), None)
    assert not any(addresses.in_memory((x, odd)) for odd in (*lazy, *others))
    plain = (x, x.t(), x[0].expand(5, 4), x.to(torch.cfloat), nn.Parameter(x))
    assert addresses.in_memory(plain) is (addresses.native_library() is not None)
    seen = []
    batched = torch.func.vmap(lambda row: seen.append(addresses.in_memory((row,))) or row)
    batched(x)
    assert seen == [False]


def test_writes_are_counted_as_often_as_a_tensor_is_named(way):
    for given in (tensors(), tensors()[:-1]):
        apart = given[1:2] + given[3:]
        before = [t._version for t in apart]
        addresses.count_writes((*apart, apart[0]))
        assert [t._version - n for t, n in zip(apart, before)] == [2, *[1] * (len(apart) - 1)]


def test_writes_to_inference_tensors_are_not_counted_and_those_to_others_are(way):
    with torch.inference_mode():
        given = torch.zeros(2)
    fine = torch.zeros(2)
    addresses.count_writes((given, fine))
    assert fine._version == 1


def test_rows_are_words_moved_by_bytes(way):
    words = array("Q", [0x1000, 0x2008, 7])
    number = -(1 << 63)
    rows = addresses.Rows((0, 1 + (24 << 32), number + 2, 1, 0, number + 2))
    table, bits = rows(words)
    assert list(table) == [0x1000, 0x2008 + 24, 7, 0x2008, 0x1000, 7]
    assert bits & 15 == 8, "the number is no address"


@pytest.mark.parametrize(
    ("ranges", "meet"),
    [
        ([(0, 8, 1), (8, 8, 1), (16, 8, 0)], False),
        ([(0, 9, 1), (8, 8, 0)], True),
        ([(8, 8, 1), (0, 9, 0)], True),
        ([(0, 9, 0), (8, 8, 0), (20, 4, 1)], False),
        ([(0, 100, 0), (8, 8, 0), (50, 4, 1)], True),
        ([(0, 8, 1), (4, 0, 1)], False),
        ([(0, 8, 1), (0, 8, 0)], True),
    ],
)
def test_ranges_that_meet(way, ranges, meet):
    starts, extents, written = zip(*ranges)
    order = array("q", range(len(ranges)))
    given = array("Q", starts), array("q", extents), bytes(written), order
    assert addresses.overlap(*given) is meet
    assert addresses.overlap(*given) is meet, "in the order of the first time"
    assert [starts[i] for i in order] == sorted(starts)
