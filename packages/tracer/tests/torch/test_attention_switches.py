"""Which kernels attention may take: contexts that say so, and changes between calls."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

SDP = torch.backends.cuda
MATH, FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION


def allowed():
    return SDP.math_sdp_enabled(), SDP.flash_sdp_enabled(), torch._C._get_sdp_priority_order()


@pytest.fixture(autouse=True)
def switches():
    before = allowed()
    yield
    assert allowed() == before


def heads(grad=True):
    return torch.randn(1, 2, 4, 8, requires_grad=grad)


@sdpa_kernel(MATH)
def decorated(x):
    return F.scaled_dot_product_attention(x, x, x), allowed()


def inside(x, kernels, **more):
    with sdpa_kernel(kernels, **more):
        return F.scaled_dot_product_attention(x, x, x), allowed()


ONE_GRAPH = {
    "one": lambda x: (inside(x, MATH), allowed()),
    "several": lambda x: (inside(x, [MATH, FLASH]), allowed()),
    "in this order": lambda x: inside(x, [FLASH, MATH], set_priority=True),
    "nested": lambda x: (inside(inside(x, FLASH)[0], MATH), allowed()),
    "decorator": decorated,
    "checkpointed": lambda x: checkpoint(lambda y: inside(y, MATH)[0], x, use_reentrant=False),
}


@pytest.mark.parametrize("fn", ONE_GRAPH.values(), ids=ONE_GRAPH)
def test_contexts_are_in_the_graph(program, capture, fn):
    def body(C):
        run, seen = C(fn), []
        for _ in range(3):
            x = heads()
            found = run(x)
            torch.autograd.backward(
                [t for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, torch.Tensor)],
                [torch.ones_like(x)],
            )
            seen.append((found, x.grad, allowed()))
        return seen

    program(body)
    assert capture.n == 1


def test_kernels_that_vary(program):
    def body(C):
        run = C(lambda x, k: inside(x, k) if k != FLASH else (inside(x, k), k.name))
        return [run(heads(), k) for k in (MATH, FLASH, MATH, [MATH])]

    assert program(body) == 3


@pytest.mark.parametrize("grad", [False, True])
def test_a_change_between_calls_is_seen(program, grad):
    def body(C):
        run, seen = C(lambda x: F.scaled_dot_product_attention(x, x, x)), []
        for kernels in (MATH, FLASH, MATH):
            with sdpa_kernel(kernels):
                seen.append(run(heads(grad)))
        return seen

    assert program(body) == 2


def test_switches_that_are_left(program):
    def body(C):
        def left(x):
            SDP.enable_math_sdp(False)
            y = x * 2
            SDP.enable_flash_sdp(False)
            SDP.enable_math_sdp(True)
            return y

        run, seen = C(left), []
        with sdpa_kernel([MATH, FLASH]):
            for _ in range(3):
                seen += [run(heads()), allowed()]
                SDP.enable_flash_sdp(len(seen) == 2)
        return seen

    assert program(body) == 2


def test_breaks_and_errors_inside(program):
    def broken(x, i):
        with sdpa_kernel(MATH):
            y = F.scaled_dot_product_attention(x, x, x)
            print(end="", flush=True)
            return y[i] * 2, allowed()

    def raising(x, i):
        with sdpa_kernel(MATH):
            if x.shape:
                raise ValueError("no")

    def failing(x, i):
        with sdpa_kernel(MATH):
            return x[i] + 1

    def refused(x, i):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(x, x, x)

    def body(C):
        seen = []
        for fn in (broken, raising, failing, refused):
            run = C(fn)
            for at in (0, 7, 0):
                try:
                    seen.append(run(heads(), torch.tensor([at])))
                except (IndexError, ValueError, RuntimeError) as e:
                    seen.append(str(e)[:40])
                seen.append(allowed())
        return seen

    program(body, broken=True)


def test_torchs_own_change_of_the_order_is_no_recompile():
    """It makes one at its first attention on a recent GPU, while a program is compiled or after."""
    built_in, cudnn_first, other = [1, 2, 0, 3, 4], [3, 1, 2, 0, 4], [0, 1, 2, 3, 4]
    before = torch._C._get_sdp_priority_order()
    compiles = []

    def backend(gm, inputs):
        if not compiles:
            torch._C._set_sdp_priority_order(cudnn_first)
        compiles.append(gm)
        return gm.forward

    def attend(x):
        return F.scaled_dot_product_attention(x, x, x)

    compiled = torchsmith_tracer.compile(attend, backend=backend)
    x = heads(grad=False)
    try:
        torch._C._set_sdp_priority_order(built_in)
        torch.testing.assert_close(compiled(x), attend(x))
        assert torch._C._get_sdp_priority_order() == cudnn_first
        for order, count in ((cudnn_first, 1), (built_in, 1), (other, 2)):
            torch._C._set_sdp_priority_order(order)
            torch.testing.assert_close(compiled(x), attend(x))
            assert len(compiles) == count
    finally:
        torch._C._set_sdp_priority_order(before)
