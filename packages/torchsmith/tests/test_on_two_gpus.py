"""Programs over two GPUs: what is current, what moves between calls, what lies on both."""

import threading

import pytest
import torch
import torch.nn.functional as F
import torchsmith
from torch import nn

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="runs on two GPUs")
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(autouse=True)
def fresh():
    torchsmith.reset()
    with torch.cuda.device(0):
        yield


def data(device, seed=0):
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)).to(device)


def network(width=64):
    torch.manual_seed(0)
    wide = 2 * width
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.LayerNorm(wide), nn.Linear(wide, 64))


class OnBoth(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = network().to(FIRST), network().to(SECOND)

    def forward(self, x):
        y = self.first(x)
        return y + self.second(F.relu(y.to(SECOND)) * 2).to(FIRST)


def same(got, want):
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4, check_device=True)


def made(x):
    with torch.device("cuda"):
        here = torch.zeros(2)
    return torch.ones(3, device="cuda") + 1, here, x.cuda() * 2, x.to("cuda").sum()


def test_the_current_gpu_is_a_fact():
    compiled = torchsmith.compile(made)
    for current, device in [
        (0, FIRST),
        (1, FIRST),
        (1, SECOND),
        (0, SECOND),
        (0, "cpu"),
        (1, "cpu"),
    ]:
        with torch.cuda.device(current):
            same(compiled(data(device)), made(data(device)))


def test_a_program_without_inputs():
    def program():
        return torch.zeros(8, device="cuda") + 1

    compiled = torchsmith.compile(program)
    for current in (0, 1, 0, 1):
        with torch.cuda.device(current):
            same(compiled(), program())


def test_asked_for_the_current_gpu():
    def program(x):
        return x * torch.cuda.current_device()

    compiled = torchsmith.compile(program)
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            same(compiled(data(FIRST)), program(data(FIRST)))


@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}], ids=["plain", "recorded"])
def test_a_module_that_moves(options):
    module = network().eval()
    compiled = torchsmith.compile(module, **options)
    with torch.no_grad():
        for seed, device in enumerate([FIRST, SECOND, FIRST, SECOND, SECOND, SECOND, SECOND]):
            module.to(device)
            same(compiled(data(device, seed)).clone(), module(data(device, seed)))


def trained(called, module):
    optimizer, losses = torch.optim.SGD(module.parameters(), 0.1), []
    for seed in range(4):
        loss = called(data(FIRST, seed)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *map(torch.Tensor.detach, module.parameters())]


def test_layers_on_both():
    mine, theirs = OnBoth(), OnBoth()
    same(trained(torchsmith.compile(mine), mine), trained(theirs, theirs))


@pytest.mark.parametrize("inside", [True, False])
def test_replicas(inside):
    mine, theirs = network().to(FIRST), network().to(FIRST)
    compile = torchsmith.compile
    called = nn.DataParallel(compile(mine)) if inside else compile(nn.DataParallel(mine))
    same(trained(called, mine), trained(nn.DataParallel(theirs), theirs))


def test_a_thread_for_each():
    def program(x):
        return (x.sin() @ x.t()).relu().sum(0)

    compiled, found = torchsmith.compile(program), {}

    def work(place, device):
        for seed in range(20):
            found[place, seed] = compiled(data(device, seed)), program(data(device, seed))

    threads = [threading.Thread(target=work, args=p) for p in enumerate((FIRST, SECOND) * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for got, want in found.values():
        same(got, want)


def test_a_stream_of_the_other():
    module, stream, x = network(512).to(SECOND), torch.cuda.Stream(SECOND), torch.ones(2048, 512)
    compiled, x = torchsmith.compile(module), x.to(SECOND)
    with torch.no_grad():
        for _ in range(3):
            with torch.cuda.stream(stream):
                late = torch.zeros_like(x)
                torch.cuda._sleep(20_000_000)
                late += x
                got = compiled(late)
            torch.cuda.current_stream(SECOND).wait_stream(stream)
            same(got, module(x))
