"""No load or store leaves its buffer: proved, looked at, or decided at the call."""

import pytest
import torch
from loop_reference import evaluate
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.accesses import (
    IllegalKernelError,
    check_accesses,
    check_assumptions,
)
from torchsmith_fx_backend._src.loops.ir import (
    BufferArg,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Op,
    Store,
)

F, B, I = torch.float32, torch.bool, torch.int64
c, i, s = ix.const, ix.var(0), ix.Sym("s0", 2)
k = ix.Sym("k", None, None)


def copy(index, size, mask=()):
    """``out[i] = in[index]``, under the mask that the nodes ``mask`` compute last."""
    body = [*mask, Load(0, index, F, len(mask) - 1 if mask else None)]
    body.append(Store(1, i, len(body) - 1))
    names = tuple(sorted(ix.symbols(index) | ix.symbols(size)))
    buffers = BufferArg(F, True, False), BufferArg(F, False, True)
    return Kernel((size,), 1, tuple(body), buffers, names)


def test_a_load_in_its_buffer_is_proved():
    for size in (c(6), s):
        flipped = ix.sub(ix.sub(size, c(1)), i)
        assert check_accesses(copy(flipped, size), [size, size]) == []


def test_a_static_load_outside_raises():
    with pytest.raises(IllegalKernelError, match="reaches -1 to 4 in a buffer of 6"):
        check_accesses(copy(ix.sub(i, c(1)), c(6)), [c(6), c(6)])
    with pytest.raises(IllegalKernelError, match="reaches 1 to 6"):
        check_accesses(copy(ix.add(i, c(1)), c(6)), [c(6), c(6)])


def test_a_store_outside_raises():
    with pytest.raises(IllegalKernelError, match="in a buffer of 5"):
        check_accesses(copy(i, c(6)), [c(6), c(5)])


def test_a_mask_keeps_a_load_inside():
    below = [IndexValue(i, I), Literal(4, I), Compute(Op.LT, (0, 1), B)]
    assert check_accesses(copy(i, c(6), below), [c(4), c(6)]) == []
    above = [*below, Compute(Op.NOT, (2,), B)]
    assert check_accesses(copy(ix.sub(i, c(4)), c(6), above), [c(2), c(6)]) == []
    with pytest.raises(IllegalKernelError):
        check_accesses(copy(i, c(6), below), [c(3), c(6)])


def test_what_only_a_call_decides_is_decided_then():
    kernel = copy(ix.add(i, k), s)
    assert check_accesses(kernel, [s, s]) == [0]
    check_assumptions(kernel, [s, s], {"s0": 5, "k": 0})
    with pytest.raises(IllegalKernelError, match="reaches 2 to 6"):
        check_assumptions(kernel, [s, s], {"s0": 5, "k": 2})


def test_a_divisor_that_may_be_zero_is_assumed():
    kernel = copy(ix.Mod(i, k), s)
    assert check_accesses(kernel, [s, s]) == [0]
    with pytest.raises(IllegalKernelError, match="divisor"):
        check_assumptions(kernel, [s, s], {"s0": 5, "k": 0})


@pytest.mark.parametrize("index", [ix.sub(i, c(1)), ix.add(i, c(1))], ids=["before", "behind"])
def test_the_reference_evaluator_raises_outside_of_a_tensor(index):
    memory = torch.arange(8.0)
    with pytest.raises(IllegalKernelError, match="leaves argument 0"):
        evaluate(copy(index, c(4)), [memory[2:6], torch.zeros(4)])
