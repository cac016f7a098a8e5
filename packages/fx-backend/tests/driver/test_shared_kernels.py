"""Equal steps over the parts of a tensor run one kernel, with pointers to where each starts."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import compile_graph
from torchsmith_fx_backend._src.settings import current

TIMES = 9


def recurrent(x, w):
    h = x[:, 0]
    for time in range(1, TIMES):
        h = torch.logsumexp(h[:, :, None] + w, 1) + x[:, time]
    return h


def gated(x, w):
    h, parts = x[:, 0], []
    for time in range(TIMES):
        first, second = (x[:, time] @ w).chunk(2, -1)
        h = torch.sigmoid(first) * torch.tanh(second) + h.mean(-1, keepdim=True)
        parts.append(h.sum(-1))
        h = torch.cat([h, h], -1)
    return torch.stack(parts, 1)


def backwards(x, w):
    total = x[:, -1].flip(0)
    for time in reversed(range(TIMES)):
        total = (total * x[:, time].flip(1)).cumsum(-1)
    return total


def written(x, w):
    x = x + 1
    for time in range(1, TIMES):
        x[:, time].copy_((x[:, time - 1] * w[time]).sin())
    return x


def of_the_caller(x, w):
    for time in range(1, TIMES):
        x[:, time].mul_(w[time]).add_(x[:, time - 1])
    return x.sum()


def looked_up(x, w):
    places = (x[:, :, 0] * 3).long().abs() % TIMES
    return torch.stack([x[:, time][:, places[0]] * 2 for time in range(TIMES)])


PROGRAMS = {
    "recurrent": (recurrent, 3),
    "gated": (gated, 5),
    "backwards": (backwards, 4),
    "written": (written, None),
    "of the caller": (of_the_caller, None),
    "looked up": (looked_up, None),
}


def given(offset=0):
    torch.manual_seed(0)
    memory = torch.randn(offset + 4 * TIMES * 12)
    return [memory[offset:].view(4, TIMES, 12), torch.randn(12, 12)]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_values_are_those_of_eager(name, check):
    program, most = PROGRAMS[name]
    ours, eagers = given(), given()
    gm = fx.symbolic_trace(program)
    with torch.no_grad():
        compiled = compile_graph(gm, ours, current().with_options(verify=check, graph_cache=False))
        for _ in range(2):
            torch.testing.assert_close(compiled(*ours), program(*eagers))
            torch.testing.assert_close(ours, eagers)
    assert check or most is None or len(compiled.kernels) <= most


def test_tensors_that_start_inside_their_storage():
    ours, eagers = given(5), given(5)
    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(recurrent), given())
        torch.testing.assert_close(compiled(*ours), recurrent(*eagers))


def test_steps_of_unlike_shape_stay_apart():
    def growing(x, w):
        return [x[:, : time + 1].sum(1).exp() for time in range(4)]

    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(growing), given())
        torch.testing.assert_close(compiled(*given()), growing(*given()))
    assert len(compiled.kernels) == 4
