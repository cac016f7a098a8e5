"""Real models in training: losses, gradients against float64, trajectories, sizes, front doors."""

from __future__ import annotations

import copy
import logging
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchsmith
from torch import nn
from torchsmith_fx_backend._src import driver

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from models import make, tensors
from zoo_models import MODELS


@pytest.fixture(autouse=True)
def fresh():
    torchsmith.reset()
    torch.manual_seed(0)


def loss_of(result: object) -> torch.Tensor:
    parts = [t for t in tensors(result) if t.is_floating_point() and t.requires_grad]
    return torch.stack([t.double().square().mean() for t in parts]).sum()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b).norm() / b.norm().clamp_min(1e-12))


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "resnet"])
def test_loss_and_gradients(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, inputs = make(name)
    model.train().requires_grad_(True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for label, child in module.named_children():
            if isinstance(
                child, nn.ReLU
            ):  # within rounding of its kink gradients jump, eager's too
                setattr(module, label, nn.SiLU())
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    wide = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }
    losses = []
    with caplog.at_level(logging.WARNING, "torchsmith.backend"):
        for run, given in ((torchsmith.compile(model), inputs), (eager, inputs), (exact, wide)):
            loss = loss_of(run(**given))
            loss.backward()
            losses.append(loss.detach())
    assert not caplog.records
    assert distance(losses[0], losses[2]) <= 3 * distance(losses[1], losses[2]) + 1e-6
    for (label, mine), theirs, true in zip(
        model.named_parameters(), eager.parameters(), exact.parameters(), strict=True
    ):
        assert (mine.grad is None) == (theirs.grad is None), label
        if mine.grad is None or theirs.grad is None or true.grad is None:
            continue
        assert mine.grad.stride() == theirs.grad.stride(), label
        limit = 3 * distance(theirs.grad, true.grad) + 2e-5
        assert distance(mine.grad, true.grad) <= limit, label
    for mine, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


class Block(nn.Module):
    """Attention and a gated unit with dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.gate = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).movedim(2, 0).transpose(2, 3)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        a, b = self.gate(x).chunk(2, -1)
        return x + F.dropout(self.out(F.silu(a) * b), 0.1, self.training)


class Language(nn.Module):
    """A tiny language model with its loss."""

    def __init__(self, vocabulary: int = 101) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(32, vocabulary)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.blocks(self.embed(ids)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()), logits


@pytest.mark.parametrize("door", ["torchsmith", "torch.compile"])
def test_ten_steps_stay_on_eagers_trajectory(door: str) -> None:
    models = [Language()]
    models.append(copy.deepcopy(models[0]))
    compiled = (
        torchsmith.compile(models[0], options={"rng": "eager"})
        if door == "torchsmith"
        else torch.compile(models[0], backend="smith", options={"rng": "eager"})
    )
    histories = []
    for run, model in ((compiled, models[0]), (models[1], models[1])):
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        torch.manual_seed(1)
        ids = torch.randint(0, 101, (4, 16))
        history = []
        for _ in range(10):
            loss, _ = run(ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        histories.append(history)
    assert histories[0] == pytest.approx(histories[1], rel=1e-3)
    assert histories[0][-1] < histories[0][0]


def test_five_lengths_in_two_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    compiles = []
    real = driver.compile_training
    monkeypatch.setattr(
        driver, "compile_training", lambda *a, **k: compiles.append(a) or real(*a, **k)
    )
    model = Language().eval()  # without dropout
    eager = copy.deepcopy(model)
    compiled = torchsmith.compile(model)
    for length in (8, 12, 20, 9, 31):
        ids = torch.randint(0, 101, (2, length))
        for run in (compiled, eager):
            loss, _ = run(ids)
            loss.backward()
        for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert len(compiles) <= 2


def test_autocast() -> None:
    model = Language().eval()
    eager = copy.deepcopy(model)
    ids = torch.randint(0, 101, (2, 8))
    for run in (torchsmith.compile(model), eager):
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = run(ids)
        loss.backward()
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.grad.dtype is theirs.grad.dtype
        assert distance(mine.grad, theirs.grad.double()) < 3e-2


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_checkpoints_of_transformers(name: str, reentrant: bool) -> None:
    """With dropout, whose masks a recomputation draws again."""
    model, inputs = MODELS[name](False)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train().requires_grad_(True)
    eager = copy.deepcopy(model)
    compiled = torchsmith.compile(model, options={"rng": "eager"})
    for seed in range(2):
        for run in (compiled, eager):
            torch.manual_seed(seed)
            loss_of(run(**inputs)).backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "adam of lists": lambda p: torch.optim.Adam(p, 1e-2, foreach=True, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step_is_compiled(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Forward, backward, clipping, step and zero_grad inside one compiled function."""
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    net = nn.Sequential(nn.Linear(16, 24, False), nn.BatchNorm1d(24), nn.GELU(), nn.Linear(24, 4))
    sides = []
    with caplog.at_level(logging.WARNING, "torchsmith.backend"):
        for compiled in (True, False):
            model = copy.deepcopy(net)
            optimizer = OPTIMIZERS[name](model.parameters())
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

            def step(model=model, optimizer=optimizer):
                optimizer.zero_grad(set_to_none=name != "sgd")
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                return loss, norm

            run = torchsmith.compile(step) if compiled else step
            history = []
            for _ in range(6):
                loss, norm = run()
                history.append((loss.item(), norm.item()))
                scheduler.step()
            assert loss.requires_grad
            with pytest.raises(RuntimeError, match="a second time"):
                loss.backward()
            sides.append((history, [p.detach() for p in model.state_dict().values()], model))
    assert not caplog.records
    torch.testing.assert_close(*(torch.tensor(s[0]) for s in sides), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(sides[0][1], sides[1][1], rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(sides[0][2].parameters(), sides[1][2].parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-2, atol=1e-4)


class HookedAtFirst(nn.Module):
    """Registers a hook on one of its parts when it is called for the first time."""

    def __init__(self):
        super().__init__()
        self.part, self.hooked = nn.Linear(4, 4), False

    def forward(self, x):
        if not self.hooked:
            self.hooked = True
            self.part.register_forward_hook(lambda module, args, out: out * 2)
        return self.part(x).sum()


def test_hooks_that_a_first_call_registers(monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "1")
    torch.manual_seed(0)
    model = HookedAtFirst()
    twin = copy.deepcopy(model)
    compiled = torchsmith.compile(model)
    for step in range(3):
        x = torch.randn(2 + step, 4)
        found, wanted = compiled(x), twin(x)
        torch.testing.assert_close(found, wanted)
        found.backward()
        wanted.backward()
        torch.testing.assert_close(model.part.weight.grad, twin.part.weight.grad)
    assert len(model.part._forward_hooks) == 1
