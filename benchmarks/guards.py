"""What deciding "may the compiled code run?" costs, ours and torch.compile's, in one run.

Three programs with a backend that does nothing, so that a call is guards and argument passing:

* ``blocks``: 64 blocks of Linear, LayerNorm and a float attribute (256 parameters),
* ``llama``: ``LlamaForCausalLM`` of transformers, 16 narrow layers, with a static cache,
* ``trivial``: ``x + 1``, whole call over eager.

Prints microseconds inside the checker and of the whole call, and our share of torch.compile's.
Run ``python benchmarks/guards.py [blocks] [llama] [trivial]``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from overhead import measure_overhead
from torch import nn

Calls = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.linear(x)) * self.scale


class Blocks(nn.Module):
    def __init__(self, depth: int = 64, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def blocks() -> Calls:
    return Blocks(), (torch.randn(2, 8),), {}


def llama() -> Calls:
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        num_hidden_layers=16,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    cache = StaticCache(config=config, max_cache_len=32)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    model(tokens, past_key_values=cache)  # allocates the cache's tensors
    token = torch.zeros(1, 1, dtype=torch.long)
    positions = torch.tensor([[4]])
    keywords = {"past_key_values": cache, "position_ids": positions, "use_cache": True}
    return model, (token,), keywords


def null_backend(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """Computes once, then gives the same tensors again."""
    results: list[Any] = []

    def run(*args: Any) -> Any:
        if not results:
            results.append(gm.forward(*args))
        return results[0]

    return run


def microseconds(call: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int = 31) -> dict[str, float]:
    """Median microseconds of each candidate; rounds of one follow rounds of the other."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        microseconds(call, 200)
    for _ in range(rounds):
        for name, call in candidates.items():
            times[name].append(microseconds(call, 100))
    return {name: statistics.median(found) for name, found in times.items()}


def checks_of_ours(compiled: Any, model: Any, args: Any, kwargs: Any) -> Callable[[], bool]:
    """The newest checker of the entry frame, bound to the arguments that the dispatcher passes."""
    records = compiled._torchsmith_region._records.values()
    (entry,) = (r.entries[0] for r in records if r.entries)
    check = entry.checker.check
    assert check(model, args, kwargs)
    return lambda: check(model, args, kwargs)


def checks_of_stock(model: Any, args: Any, kwargs: Any) -> Callable[[], bool]:
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    (entry,) = _debug_get_cache_entry_list(type(model).forward.__code__)
    # The frame's locals are the arguments bound to the signature of what was compiled.
    import inspect

    function = type(model).forward
    signature = inspect.signature(function, follow_wrapped=False)
    bound = signature.bind(model, *args, **kwargs)
    bound.apply_defaults()
    guards = entry.guard_manager
    names = dict(bound.arguments)
    closure = function.__closure__ or ()
    names.update(zip(function.__code__.co_freevars, (c.cell_contents for c in closure)))
    assert guards.check(names)
    return lambda: guards.check(names)


def measure_program(made: Calls, *, grad: bool) -> dict[str, float]:
    """Microseconds: checks and whole calls, ours and torch.compile's, and first calls in s."""
    import torchsmith_tracer

    model, args, kwargs = made
    results: dict[str, float] = {}
    # With its first module torch.compile replaces nn.Module.__init__ for good, which is a fact that
    # compiled code of ours may have read: let that happen first.
    torch.compile(nn.Linear(1, 1), backend=null_backend)(torch.zeros(1, 1))
    with torch.set_grad_enabled(grad):
        ours = torchsmith_tracer.compile(model, backend=null_backend)
        torch._dynamo.reset()
        stock = torch.compile(model, backend=null_backend)
        for name, compiled in (("ours", ours), ("torch.compile", stock)):
            begin = time.perf_counter()
            compiled(*args, **kwargs)
            results[f"first call of {name}, s"] = time.perf_counter() - begin
            for _ in range(50):
                compiled(*args, **kwargs)
            time.sleep(0.5)  # what is compiled in the background
            compiled(*args, **kwargs)
        candidates: dict[str, Callable[[], object]] = {
            "call, ours": lambda: ours(*args, **kwargs),
            "call, torch.compile": lambda: stock(*args, **kwargs),
            "check, ours": checks_of_ours(ours, model, args, kwargs),
        }
        try:
            candidates["check, torch.compile"] = checks_of_stock(model, args, kwargs)
        except Exception as error:
            print(f"torch.compile's checker cannot be reached: {error}", file=sys.stderr)
        results |= interleaved(candidates)
    for kind in ("call", "check"):
        other = results.get(f"{kind}, torch.compile")
        if other:
            results[f"{kind}, ratio"] = results[f"{kind}, ours"] / other
    return results


def main(names: list[str]) -> None:
    chosen = names or ["blocks", "llama", "trivial"]
    for name, make in (("blocks", blocks), ("llama", llama)):
        if name in chosen:
            for grad in (False, True):
                title = f"{name}, {'grad' if grad else 'no grad'}"
                print(json.dumps({title: round_all(measure_program(make(), grad=grad))}, indent=1))
    if "trivial" in chosen:
        print(json.dumps({"trivial, us over eager": round_all(measure_overhead())}, indent=1))


def round_all(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
