"""What may change between two calls: of the model, of arguments, of the process."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import random
from collections.abc import Callable
from typing import Any

import torch
import torchsmith
from calls import arguments
from calls.blocks import Checkpointed, Gain, block, choose
from calls.side import Side
from torch import nn
from torch.nn.utils import parametrizations, parametrize

Change = Callable[[Side, random.Random], object]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    """File a change under the name of its function."""
    assert function.__name__ not in CHANGES
    CHANGES[function.__name__] = function
    return function


def _parameter(side: Side, rng: random.Random) -> nn.Parameter | None:
    found = list(side.net.parameters())
    return rng.choice(found) if found else None


def _owner(side: Side, rng: random.Random) -> tuple[nn.Module, str] | None:
    """A module with a parameter of its own, and that parameter's name."""
    found = [
        (m, name)
        for m in side.net.modules()
        for name, p in m._parameters.items()
        if p is not None and not isinstance(m, parametrize.ParametrizationList)
    ]
    return rng.choice(found) if found else None


def _module(side: Side, rng: random.Random) -> nn.Module:
    return rng.choice(list(side.net.modules()))


# Arguments


@change
def size(side: Side, rng: random.Random) -> None:
    side.facts.size = rng.choice(arguments.SIZES)


@change
def layout(side: Side, rng: random.Random) -> None:
    side.facts.layout = rng.choice(arguments.LAYOUTS)


@change
def history(side: Side, rng: random.Random) -> None:
    side.facts.history = rng.choice(arguments.HISTORIES)


@change
def second(side: Side, rng: random.Random) -> None:
    side.facts.second = rng.choice(arguments.SECONDS)


@change
def number(side: Side, rng: random.Random) -> None:
    side.facts.number = rng.choice(arguments.NUMBERS)
    side.facts.keyword = rng.random() < 0.3


@change
def again(side: Side, rng: random.Random) -> None:
    side.facts.again = rng.random() < 0.6


@change
def argument_type(side: Side, rng: random.Random) -> None:
    side.facts.dtype = rng.choice(arguments.DTYPES)


@change
def type_of_all(side: Side, rng: random.Random) -> None:
    side.calls.clear()  # a backward pass would find parameters of another type
    dtype = rng.choice(arguments.DTYPES)
    side.facts.dtype = dtype
    side.net.to(side.of(dtype))


@change
def argument_written(side: Side, rng: random.Random) -> None:
    if side.calls:
        found = side.calls[-1].given.tensors() + side.calls[-1].results
        _write(rng.choice(found), rng)


@change
def result_written(side: Side, rng: random.Random) -> None:
    if side.calls and side.calls[-1].results:
        _write(rng.choice(side.calls[-1].results), rng)


def _write(victim: torch.Tensor, rng: random.Random) -> None:
    match rng.choice(("whole", "part", "history", "data", "detached", "wanted", "moved")):
        case "history":
            victim.mul_(2)
        case "detached":
            victim.detach_()
        case "wanted":
            victim.requires_grad_(not victim.requires_grad)
        case "moved":
            victim.data = victim.data * 0.5
        case "data":
            victim.data.add_(1)
        case "part":
            with torch.no_grad():
                victim[..., :1].add_(1)
        case _:
            with torch.no_grad():
                victim.add_(1)


# Parameters


@change
def training(side: Side, rng: random.Random) -> None:
    module = side.net if rng.random() < 0.6 else _module(side, rng)
    module.train(rng.random() < 0.5)


@change
def frozen(side: Side, rng: random.Random) -> None:
    if rng.random() < 0.3:
        side.net.requires_grad_(rng.random() < 0.6)
    elif (p := _parameter(side, rng)) is not None:
        p.requires_grad_(not p.requires_grad)


@change
def parameter_written(side: Side, rng: random.Random) -> None:
    p = _parameter(side, rng)
    if p is None:
        return
    way = rng.choice(("data", "data of its own", "in place", "turned", "detached", "half"))
    if way not in ("in place", "detached") and any(isinstance(m, Gain) for m in side.net.modules()):
        side.calls.clear()  # values may be computed again, from what no version tells of
    match way:
        case "data":
            p.data = arguments.numbers(tuple(p.shape), rng, p.dtype)
        case "data of its own":
            p.data.mul_(0.5)
        case "in place":
            with torch.no_grad():
                p.add_(0.25)
        case "turned" if p.dim() > 1:
            p.data = p.data.transpose(0, 1).contiguous().transpose(0, 1)
        case "detached":
            p.detach().mul_(0.5)
        case "half":
            side.calls.clear()  # eager's kernels have checks of types of their own for backward
            p.data = p.data.to(side.of(torch.bfloat16))


@change
def parameter_replaced(side: Side, rng: random.Random) -> None:
    owner = _owner(side, rng)
    if owner is None:
        return
    module, name = owner
    p = getattr(module, name)
    match rng.choice(("new", "none", "tensor", "frozen", "deleted", "shared")):
        case "new":
            setattr(module, name, nn.Parameter(p.detach() * 2))
        case "frozen":
            setattr(module, name, nn.Parameter(p.detach().clone(), requires_grad=False))
        case "none" if name == "bias":
            module.register_parameter(name, None)
        case "tensor":
            delattr(module, name)
            setattr(module, name, p * 2)  # has a history
        case "deleted":
            delattr(module, name)
        case "shared":
            same = [q for q in side.net.parameters() if q.shape == p.shape]
            setattr(module, name, rng.choice(same))


@change
def bias_made(side: Side, rng: random.Random) -> None:
    for module in side.net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module._parameters.get("bias", 0) is None:
            module.bias = nn.Parameter(module.weight.detach().new_ones(module.weight.shape[0]))
            return


@change
def gradients_cleared(side: Side, rng: random.Random) -> None:
    side.net.zero_grad(set_to_none=rng.random() < 0.5)


@change
def gradient_given(side: Side, rng: random.Random) -> None:
    p = _parameter(side, rng)
    if p is not None:
        g = torch.ones_like(p)
        p.grad = g.t().contiguous().t() if p.dim() == 2 and rng.random() < 0.5 else g


@change
def optimizer_step(side: Side, rng: random.Random) -> None:
    kind = rng.choice(("SGD", "momentum", "Adam", "AdamW", "same"))
    if side.optimizer is None or kind != "same":
        found = list({id(p): p for p in side.net.parameters()}.values())
        if not found:
            return
        make: dict[str, Callable[[], Any]] = {
            "SGD": lambda: torch.optim.SGD(found, 0.1),
            "momentum": lambda: torch.optim.SGD(found, 0.1, momentum=0.9, weight_decay=0.1),
            "Adam": lambda: torch.optim.Adam(found, 0.01),
        }
        side.optimizer = make.get(kind, lambda: torch.optim.AdamW(found, 0.01))()
        whole = rng.random() < 0.5
        side.step = side.compile(side.optimizer.step) if whole else side.optimizer.step
    assert side.step is not None
    side.step()
    if rng.random() < 0.6:
        side.optimizer.zero_grad(set_to_none=rng.random() < 0.7)


@change
def state_loaded(side: Side, rng: random.Random) -> None:
    state = {k: v.detach() * 0.5 for k, v in side.net.state_dict().items()}
    for key, value in side.net.state_dict().items():
        state[key] = state[key].to(value.dtype)
    side.net.load_state_dict(state, assign=rng.random() < 0.5)


@change
def parametrized(side: Side, rng: random.Random) -> None:
    found = [m for m in side.net.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    if not found:
        return
    module = rng.choice(found)
    if parametrize.is_parametrized(module):
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=rng.random() < 0.5)
    elif rng.random() < 0.5:
        parametrizations.weight_norm(module)
    else:
        parametrizations.spectral_norm(module)


# Modules


@change
def buffer_replaced(side: Side, rng: random.Random) -> None:
    found = [(m, n) for m in side.net.modules() for n, b in m._buffers.items() if b is not None]
    module, name = rng.choice(found)
    b = getattr(module, name)
    match rng.choice(("new", "written", "inference", "leaf", "strided")):
        case "new":
            setattr(module, name, torch.ones_like(b))
        case "written":
            b.add_(1)
        case "inference":
            with torch.inference_mode():
                setattr(module, name, torch.ones_like(b))
        case "leaf" if b.dtype.is_floating_point:
            setattr(module, name, torch.ones_like(b).requires_grad_())
        case "strided" if b.dim():
            setattr(module, name, torch.stack([b, b], -1)[..., 0])


@change
def attribute(side: Side, rng: random.Random) -> None:
    new: dict[str, tuple[Any, ...]] = {
        "scale": (1.5, 2.0, 3, True, -0.5),
        "shift": (1, 0, 2, 0.5, 1.0),
        "flag": (True, False, None, 3),
        "name": ("relu", "tanh", "abs"),
        "fail": ("", "", "value", "shape"),
        "eps": (1e-5, 1e-3),
        "momentum": (0.1, 0.5),
        "p": (0.5, 0.0, 0.3, 1.0),
        "inplace": (True, False),
        "steepness": (2.0, 0.5),
        "approximate": ("none", "tanh"),
    }
    found = [
        (m, name, values)
        for m in side.net.modules()
        for name, values in new.items()
        if hasattr(m, name) and not isinstance(m, parametrize.ParametrizationList)
    ]
    if found:
        module, name, values = rng.choice(found)
        setattr(module, name, rng.choice(values))


@change
def returned(side: Side, rng: random.Random) -> None:
    from calls.blocks import JOINS, RETURNS

    side.net.returns, side.net.join = rng.choice(RETURNS), rng.choice(JOINS)


@change
def blocks(side: Side, rng: random.Random) -> None:
    row = side.net.blocks
    place = rng.randrange(len(row) + 1)
    name = choose(side.kind, rng)
    state = torch.get_rng_state()
    new = block(name, side.kind)
    torch.set_rng_state(state)
    like = next(side.net.parameters(), torch.zeros(())).dtype
    new.to(side.of(like))
    match rng.choice(("insert", "delete", "replace", "turn", "twice")):
        case "insert":
            row.insert(place, new)
        case "delete" if len(row) > 1:
            del row[place % len(row)]
        case "replace" if len(row):
            row[place % len(row)] = new
        case "turn":
            side.net.blocks = nn.ModuleList(reversed(list(row)))
        case "twice" if len(row):
            row.append(row[0])


@change
def layout_of_model(side: Side, rng: random.Random) -> None:
    if side.kind == "images":
        form = rng.choice((torch.channels_last, torch.contiguous_format))
        side.net.to(memory_format=form)


@change
def copied_model(side: Side, rng: random.Random) -> None:
    if side.entry != "method":
        side.net = copy.deepcopy(side.net)
        if side.entry == "module":
            side.run = side.net


@change
def pickled_model(side: Side, rng: random.Random) -> None:
    if side.entry == "function":
        side.net = pickle.loads(pickle.dumps(side.net))
    elif side.entry == "module":
        buffer = io.BytesIO()
        torch.save(side.net, buffer)
        buffer.seek(0)
        side.net = side.run = torch.load(buffer, weights_only=False)


@change
def compiled_again(side: Side, rng: random.Random) -> None:
    side.dynamic = rng.choice((True, False, None))
    if side.entry != "module":
        side.enter()


@change
def forgotten(side: Side, rng: random.Random) -> None:
    torchsmith.reset()


# Hooks


@change
def module_hook(side: Side, rng: random.Random) -> None:
    module = _module(side, rng)
    name = f"hook {len(side.handles)} of {type(module).__name__}"
    tell = lambda *given: side.note(name, True)  # noqa: E731
    match rng.choice(("forward", "before", "backward", "backward before", "doubling", "always")):
        case "forward":
            handle = module.register_forward_hook(lambda m, a, o: tell())
        case "doubling":
            handle = module.register_forward_pre_hook(
                lambda m, a: (a[0] * 2, *a[1:]) if a and isinstance(a[0], torch.Tensor) else None
            )
        case "before":
            handle = module.register_forward_pre_hook(lambda m, a, k: tell(), with_kwargs=True)
        case "always":
            handle = module.register_forward_hook(lambda m, a, o: tell(), always_call=True)
        case "backward":
            handle = module.register_full_backward_hook(lambda m, i, o: tell())
        case _:
            handle = module.register_full_backward_pre_hook(lambda m, o: tell())
    side.handles.append(handle)


@change
def tensor_hook(side: Side, rng: random.Random) -> None:
    p = _parameter(side, rng)
    if p is None:
        return
    note = side.hook(f"tensor hook {len(side.handles)}")
    if rng.random() < 0.5:
        side.handles.append(p.register_hook(note))
    else:
        side.handles.append(
            p.register_post_accumulate_grad_hook(lambda x: note(x.grad) and None)  # type: ignore
        )


@change
def hook_removed(side: Side, rng: random.Random) -> None:
    if side.handles:
        rng.choice(side.handles).remove()


# Modes around the calls


@change
def autocast(side: Side, rng: random.Random) -> None:
    ways: list[dict[str, Any] | None] = [
        None,
        {"dtype": torch.bfloat16},
        {"dtype": torch.float16},
        {"dtype": torch.bfloat16, "cache_enabled": False},
        {"enabled": False},
        {"device_type": "cuda", "dtype": torch.bfloat16, "enabled": torch.cuda.is_available()},
    ]
    way = rng.choice(ways)
    if side.wide or way is None:
        side.modes["autocast"] = lambda: None
    else:
        side.modes["autocast"] = lambda: torch.autocast(**{"device_type": "cpu", **way})


@change
def gradients(side: Side, rng: random.Random) -> None:
    way = rng.choice((None, None, torch.no_grad, torch.inference_mode, torch.enable_grad))
    side.modes["gradients"] = way or (lambda: None)


@change
def saved_tensors(side: Side, rng: random.Random) -> None:
    way = rng.choice(("none", "none", "copied", "disabled", "as is"))
    if any(isinstance(m, Checkpointed) for m in side.net.modules()) and way == "disabled":
        return  # which is made of such hooks
    hooks = torch.autograd.graph.saved_tensors_hooks
    side.modes["saved"] = {
        "none": lambda: None,
        "copied": lambda: hooks(lambda x: x.clone(), lambda x: x),
        "as is": lambda: hooks(lambda x: (x,), lambda pair: pair[0]),
        "disabled": lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
    }[way]


class Halved(torch.overrides.TorchFunctionMode):
    """Functions are other ones."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in (torch.tanh, torch.Tensor.tanh, torch.nn.functional.linear, torch.relu):
            return result * 0.5
        return result


class Negated(torch.utils._python_dispatch.TorchDispatchMode):
    """Operators are other ones."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * -1 if function in (torch.ops.aten.tanh.default,) else result


@change
def torch_modes(side: Side, rng: random.Random) -> None:
    side.modes["functions"] = rng.choice((lambda: None, lambda: None, Halved))
    side.modes["operators"] = rng.choice((lambda: None, lambda: None, Negated))


# The process


def _process(side: Side, name: str, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
    if name not in side.undo:
        before = get()
        side.undo[name] = lambda: put(before)


@change
def default_type(side: Side, rng: random.Random) -> None:
    _process(side, "type", torch.get_default_dtype, torch.set_default_dtype)
    torch.set_default_dtype(rng.choice((torch.float32, torch.float64)))


@change
def deterministic(side: Side, rng: random.Random) -> None:
    _process(
        side,
        "deterministic",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    )
    torch.use_deterministic_algorithms(rng.random() < 0.5)


@change
def threads(side: Side, rng: random.Random) -> None:
    _process(side, "threads", torch.get_num_threads, torch.set_num_threads)
    torch.set_num_threads(rng.choice((1, 2)))


@change
def precision(side: Side, rng: random.Random) -> None:
    _process(
        side,
        "precision",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    )
    torch.set_float32_matmul_precision(rng.choice(("highest", "high")))


@change
def anomaly(side: Side, rng: random.Random) -> None:
    _process(side, "anomaly", torch.is_anomaly_enabled, torch.set_anomaly_enabled)
    torch.set_anomaly_enabled(rng.random() < 0.5, check_nan=False)


@change
def seeded(side: Side, rng: random.Random) -> None:
    torch.manual_seed(rng.randrange(100))


@change
def forked(side: Side, rng: random.Random) -> None:
    with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
        torch.manual_seed(3)
        side.call(rng)


@change
def drop(side: Side, rng: random.Random) -> None:
    side.drop()


# What a session is mostly made of; the rest are changes, each as often as another.
COMMON: dict[str, Change] = {
    "call": lambda side, rng: side.call(rng),
    "backward": lambda side, rng: side.backward(rng),
}
EVERYTHING = {**CHANGES, **COMMON}
