"""Every optimizer of ``torch.optim`` and whole training steps, on eager's trajectory."""

import copy

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torch import nn

O = torch.optim
S = O.lr_scheduler
OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    "Adam": {"weight_decay": 0.1},
    "AdamW": {"amsgrad": True, "maximize": True},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Adagrad": {"lr_decay": 0.1},
    "Adadelta": {},
    "ASGD": {"lambd": 0.01, "t0": 2},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "Adafactor": {"weight_decay": 0.1, "maximize": True},
}
MORE = {
    "fused Adam": lambda ps: O.Adam(ps, fused=True),
    "fused SGD": lambda ps: O.SGD(ps, fused=True),
    "lr is a tensor": lambda ps: O.SGD(ps, lr=torch.tensor(0.1)),
    "lr of Rprop is a tensor": lambda ps: O.Rprop(ps, lr=torch.tensor(0.1)),
    "lr of Adafactor is a tensor": lambda ps: O.Adafactor(ps, lr=torch.tensor([0.1])),
    "groups": lambda ps: O.Adam([{"params": ps[:1], "lr": 0.1}, {"params": ps[1:], "eps": 1e-3}]),
    "Muon": lambda ps: O.Muon(ps[:1]) if hasattr(O, "Muon") else O.SGD(ps[:1]),
}
MORE |= {
    f"{name} {'foreach' if foreach else 'for loop'}": (
        lambda ps, n=name, k=kwargs, f=foreach: getattr(O, n)(ps, foreach=f, **k)
    )
    for name, kwargs in OPTIMIZERS.items()
    for foreach in (False, True)
}


@pytest.mark.parametrize("make", MORE.values(), ids=MORE)
def test_each_optimizer_steps_in_one_graph(program, make):
    def body(C):
        params = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
        optimizer = make(params)
        step = C(lambda: optimizer.step())
        seen = []
        for i in range(10):
            for p in params:
                p.grad = torch.randn_like(p)
            if i % 2:
                for group in optimizer.param_groups:
                    group["lr"] = group["lr"] * 0.9
            step()
            seen.append([p.detach().clone() for p in params])
        return seen, [dict(optimizer.state[p]) for p in params]

    assert program(body) <= 3  # without state, with it, with another learning rate


def train(C, make, *, schedule=None, rounds=10):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = make(model.parameters())
    scheduler = None if schedule is None else schedule(optimizer)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach(), norm

    step = C(step)
    seen = []
    for _ in range(rounds):
        seen.append(step(torch.randn(5, 4), torch.randn(5, 2)))
        if scheduler is not None:
            scheduler.step()
    return seen, [p.grad for p in model.parameters()], dict(model.state_dict())


TRAINING = {
    "AdamW": {"make": lambda ps: O.AdamW(ps)},
    "AdamW for loop": {"make": lambda ps: O.AdamW(ps, foreach=False)},
    "SGD": {"make": lambda ps: O.SGD(ps, lr=0.1, momentum=0.9)},
    "exponential": {"make": lambda ps: O.AdamW(ps), "schedule": lambda o: S.ExponentialLR(o, 0.8)},
    "cosine": {
        "make": lambda ps: O.SGD(ps, lr=0.1),
        "schedule": lambda o: S.CosineAnnealingLR(o, 10),
    },
    "one cycle": {
        "make": lambda ps: O.Adam(ps),
        "schedule": lambda o: S.OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=False),
    },
    "lr is a tensor": {
        "make": lambda ps: O.SGD(ps, lr=torch.tensor(0.1)),
        "schedule": lambda o: S.ExponentialLR(o, 0.8),
    },
}


@pytest.mark.parametrize("case", TRAINING.values(), ids=TRAINING)
def test_a_whole_training_step_is_one_graph(program, case):
    assert program(lambda C: train(C, **case)) <= 3


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad(program, to_none):
    def body(C):
        m = nn.Linear(3, 2)
        optimizer = O.SGD(m.parameters())
        zero = C(lambda: optimizer.zero_grad(set_to_none=to_none))
        seen = []
        for _ in range(2):
            m(torch.ones(1, 3)).sum().backward()
            grad = m.weight.grad
            zero()
            seen.append((m.weight.grad, grad, m.weight.grad is grad))
        return seen

    program(body)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("foreach", [False, True])
def test_adafactor_of_several_types_and_ranks(program, foreach, order):
    def body(C):
        shapes = [(3, 4), (), (5,), (2, 3, 4), (4, 1)]
        types = [torch.float32, torch.float32, torch.float64, torch.float32, torch.float64]
        params = [nn.Parameter(torch.randn(s, dtype=t)) for s, t in zip(shapes, types)][::order]
        optimizer = O.Adafactor(params, foreach=foreach)
        step = C(lambda: optimizer.step())
        for i in range(6):
            for p in params:
                p.grad = torch.randn_like(p) * (0 if i == 1 else 1e-9 * 100**i)
            if i == 4:
                params[0].grad.fill_(torch.nan)
            optimizer.param_groups[0].update(lr=0.3 / (i + 1), d=1.0 + i // 3, eps=(None, 1e-3))
            step()
        return params, [dict(optimizer.state[p]) for p in params]

    program(body)


DIFFERENTIABLE = [n for n in OPTIMIZERS if n not in ("Adafactor", "Adamax")]  # eager cannot, either


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_updates_are_differentiated(program, name):
    def body(C):
        leaf = torch.randn(3, 2, requires_grad=True)
        p = leaf * 1.0
        optimizer = getattr(O, name)([p], **(OPTIMIZERS[name] | {"differentiable": True}))
        step = C(lambda: optimizer.step())
        for i in range(3):
            p.grad = (leaf**2 * (i + 1)).detach().requires_grad_()
            step()
        p.sum().backward()
        return p, leaf.grad

    program(body, broken=name == "ASGD")  # which branches on numbers that it keeps in tensors


@pytest.mark.parametrize("as_keyword", [False, True])
def test_tensors_filled_with_the_number_in_a_tensor(check, as_keyword):
    def f(x, t):
        like = torch.full_like(x, fill_value=t) if as_keyword else torch.full_like(x, t)
        full = torch.full((2,), t, dtype=torch.float64), torch.full(size=(3,), fill_value=t)
        return like, full, x.new_full((2,), t), x.new_full((2,), t, dtype=torch.float16)

    for value in (torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)):
        check(f, torch.ones(3, 2, dtype=torch.bfloat16), value)


LBFGS = {
    "fixed step": {"max_iter": 3, "history_size": 2},
    "line search": {"line_search_fn": "strong_wolfe", "max_iter": 4},
}


def train_by_closure(C, make, rounds=4):
    """Whole steps with a closure that the step calls as often as it likes."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = make(model.parameters())
    calls = [0]

    def step(x, y):
        x = x * 2

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            calls[0] += 1
            return loss

        return optimizer.step(closure) * 2

    step = C(step)
    seen = []
    for i in range(rounds):
        optimizer.param_groups[0]["lr"] = 0.5 + 0.1 * i
        seen.append(step(torch.randn(6, 3), torch.randn(6, 1)).detach())
    kept = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return seen, dict(model.state_dict()), calls, kept.get("n_iter"), kept.get("func_evals")


@pytest.mark.parametrize("name", LBFGS)
def test_lbfgs_runs_natively_with_a_compiled_closure(program, capture, name):
    program(lambda C: train_by_closure(C, lambda ps: O.LBFGS(ps, **LBFGS[name])), broken=True)
    assert [n for n in capture.targets(1) if n == F.mse_loss]
    assert capture.n <= 5  # before the step, the closure twice (with gradients and without), after


def test_closures_of_other_optimizers_are_in_the_graph(program):
    assert program(lambda C: train_by_closure(C, lambda ps: O.Adam(ps))) <= 4


def breaks_of(run, capture):
    """The breaks of what ``run`` compiles, once it has given what it gives eagerly."""
    logs = []

    def compiled(fn):
        out = torchsmith_tracer.compile(fn, backend=capture)
        logs.append(out._torchsmith_region.log)
        return out

    own, theirs = run(compiled), run(lambda fn: fn)
    torch.testing.assert_close(own, theirs)
    return logs[0].breaks


def test_what_is_around_a_native_step_is_compiled(capture):
    def run(C):
        table = nn.Embedding(5, 3, sparse=True)
        table.load_state_dict({"weight": torch.ones(5, 3)})
        optimizer = O.SparseAdam(table.parameters())

        def step(i, x):
            optimizer.step()
            return x.sin() * i.sum()

        step = C(step)
        seen = []
        for i in range(4):
            index = torch.tensor([i, 2])
            optimizer.zero_grad()
            (table(index) * (i + 1)).sum().backward()
            optimizer.param_groups[0]["lr"] *= 0.5
            seen.append(step(index, torch.ones(2)))
        return seen, table.weight, dict(optimizer.state[table.weight])

    assert [b.name for b in breaks_of(run, capture)] == ["native-optimizer"]
    assert capture.n == 1


def test_training_with_sparse_gradients(program):
    def body(C):
        table = nn.Embedding(5, 3, sparse=True)
        optimizer = O.SparseAdam(table.parameters())

        def step(i):
            optimizer.zero_grad()
            table(i).sum().backward()
            optimizer.step()

        step = C(step)
        for i in range(3):
            step(torch.tensor([i, 2]))
        return table.weight

    program(body, broken=True)


def test_a_user_subclass_steps_natively_with_its_closure_compiled(program, capture):
    class Mine(O.LBFGS):
        def step(self, closure):
            loss = super().step(closure)
            return loss + 1

    program(lambda C: train_by_closure(C, Mine), broken=True)
    assert capture.n >= 1


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
def test_a_schedule_by_losses_breaks_at_its_step_alone(capture, rate):
    def run(C):
        p = nn.Parameter(torch.ones(3))
        optimizer = O.SGD([p], lr=copy.deepcopy(rate))
        scheduler = S.ReduceLROnPlateau(optimizer, patience=1, cooldown=1)

        def step(x):
            optimizer.zero_grad()
            loss = (p * x).sum()
            loss.backward()
            optimizer.step()
            scheduler.step(loss.detach().abs())
            return loss.detach() * 2

        step = C(step)
        seen = []
        for i in range(8):
            seen.append(step(torch.full((3,), 1.0 + i)))
            seen.append(float(optimizer.param_groups[0]["lr"]))
        return seen, p, scheduler.best, scheduler.num_bad_epochs, scheduler.last_epoch

    assert {b.name for b in breaks_of(run, capture)} == {"item"}
    assert capture.n <= 4  # before it, and once more with another rate; after it


S = O.lr_scheduler
SCHEDULERS = {  # how many versions: without state, with it, with numbers that vary, by branch
    "exponential": (lambda o: S.ExponentialLR(o, 0.9), 2),
    "lambda": (lambda o: S.LambdaLR(o, lambda epoch: 0.9**epoch), 2),
    "cosine": (lambda o: S.CosineAnnealingLR(o, 20), 3),
    "one cycle": (lambda o: S.OneCycleLR(o, max_lr=0.2, total_steps=20), 3),
    "steps": (lambda o: S.MultiStepLR(o, [2, 15]), 4),
    "step": (lambda o: S.StepLR(o, 4), 5),
    "multiplicative": (lambda o: S.MultiplicativeLR(o, lambda epoch: 0.9), 2),
    "constant": (lambda o: S.ConstantLR(o, total_iters=3), 4),
    "polynomial": (lambda o: S.PolynomialLR(o, total_iters=6), 4),
    "chained": (lambda o: S.ChainedScheduler([S.ConstantLR(o), S.ExponentialLR(o, 0.9)]), 4),
    "averaging": (lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=3), 4),
    "linear": (lambda o: S.LinearLR(o, total_iters=20), 3),
    "cyclic": (lambda o: S.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False), 3),
    "restarts": (lambda o: S.CosineAnnealingWarmRestarts(o, 3), 3),
    "one after the other": (
        lambda o: S.SequentialLR(o, [S.ExponentialLR(o, g) for g in (0.5, 0.9)], [6]),
        5,
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_steps_inside_and_does_not_recompile_each_time(program, name):
    make, most = SCHEDULERS[name]

    def body(C):
        p = nn.Parameter(torch.ones(3))
        optimizer = O.SGD([p], lr=0.1)
        scheduler = make(optimizer)

        def step(x):
            optimizer.zero_grad()
            (p * x).sum().backward()
            optimizer.step()
            scheduler.step()

        step = C(step)
        rates = []
        for i in range(8):
            step(torch.full((3,), 1.0 + i))
            rates.append(optimizer.param_groups[0]["lr"])
        return p, rates, scheduler.get_last_lr(), scheduler.last_epoch

    assert program(body) <= most


def test_scaled_gradients(program):
    def body(C):
        p = nn.Parameter(torch.ones(3))
        optimizer = O.SGD([p], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def step(x):
            optimizer.zero_grad()
            scaler.scale((p * x).sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p], 1.0)
            scaler.step(optimizer)
            scaler.update()

        step = C(step)
        for i in range(3):
            step(torch.full((3,), float(i)))
        return p, scaler.get_scale()

    assert program(body, broken=True) > 1  # it asks whether all gradients are finite
