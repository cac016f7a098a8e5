"""Model classes of transformers at tiny sizes: what ``zoo.json`` names, built with random weights.

Each entry names a class, the kind of its inputs and what its configuration needs beyond ``TINY``.
``python tests/integration/zoo.py [NAME ...]`` compiles them with the tracer alone and prints a
table; ``--train`` with gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ENTRIES = json.loads((Path(__file__).parent / "zoo.json").read_text())
# Sizes that most configurations share; an attribute that a configuration lacks is left out.
TINY: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "embed_dim": 32, "embedding_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "d_kv": 8, "intermediate_size": 48, "d_ff": 48, "ffn_dim": 48, "n_inner": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "moe_intermediate_size": 24, "dim": 32,
    "hidden_dim": 48, "vocab_size": 97, "max_position_embeddings": 64, "n_positions": 64,
    "image_size": 32, "patch_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
INPUTS: dict[str, Callable[[Any], dict[str, torch.Tensor]]] = {
    "text": lambda c: {"input_ids": _ids(2, 12)},
    "masked": lambda c: {"input_ids": _ids(2, 12), "attention_mask": _mask(2, 12)},
    "pair": lambda c: {"input_ids": _ids(2, 12), "decoder_input_ids": _ids(2, 7)},
    "masked pair": lambda c: {
        "input_ids": _ids(2, 12),
        "attention_mask": _mask(2, 12),
        "decoder_input_ids": _ids(2, 7),
        "decoder_attention_mask": _mask(2, 7),
    },
    "image": lambda c: {"pixel_values": torch.randn(2, 3, 32, 32)},
    "image64": lambda c: {"pixel_values": torch.randn(2, 3, 64, 64)},
    "clip": lambda c: {"input_ids": _ids(2, 12), "pixel_values": torch.randn(2, 3, 32, 32)},
    "image tokens": lambda c: {
        "input_ids": torch.cat([torch.full((1, 16), c.image_token_id), _ids(1, 8).clamp(6)], 1),
        "pixel_values": torch.randn(1, 3, 32, 32),
    },
    "wave": lambda c: {"input_values": torch.randn(2, 1600)},
    "spectrogram": lambda c: {
        "input_features": torch.randn(2, 16, 60),
        "decoder_input_ids": _ids(2, 7),
    },
    "features": lambda c: {"input_features": torch.randn(2, 40, c.feature_projection_input_dim)},
    "video": lambda c: {"pixel_values": torch.randn(1, 4, 3, 32, 32)},
    "latent": lambda c: {"inputs": torch.randn(2, 12, c.d_model)},
    "boxes": lambda c: {
        "input_ids": _ids(2, 8),
        "visual_feats": torch.randn(2, 5, c.visual_feat_dim),
        "visual_pos": torch.rand(2, 5, 4),
    },
    "series": lambda c: {"past_values": torch.randn(2, c.context_length, c.num_input_channels)},
    "dated series": lambda c: _dated(c.context_length + max(c.lags_sequence), c),
}


def _ids(batch: int, time: int) -> torch.Tensor:
    return torch.randint(3, 97, (batch, time))


def _mask(batch: int, time: int) -> torch.Tensor:
    mask = torch.ones(batch, time, dtype=torch.long)
    mask[1, time - 3 :] = 0
    return mask


def _dated(past: int, config: Any) -> dict[str, torch.Tensor]:
    future = config.prediction_length
    return {
        "past_values": torch.randn(2, past),
        "past_time_features": torch.randn(2, past, config.num_time_features),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, future),
        "future_time_features": torch.randn(2, future, config.num_time_features),
    }


def tiny(config_class: Any, overrides: dict[str, Any]) -> Any:
    """A configuration of the class at tiny sizes; nested configurations are shrunk as well."""
    wanted = {}
    plain = config_class()
    for name, value in TINY.items():
        if isinstance(getattr(config_class, name, None), property):
            continue
        if isinstance(getattr(plain, name, None), (int, type(None))) and hasattr(plain, name):
            wanted[name] = value
    for name in getattr(config_class, "sub_configs", {}):
        inner = getattr(plain, name, None)
        if inner is not None:
            wanted[name] = tiny(type(inner), overrides.get(name, {})).to_dict()
    wanted |= {k: v for k, v in overrides.items() if not isinstance(v, dict) or k not in wanted}
    return config_class(**wanted)


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model of an entry in evaluation mode and its inputs, the same at every call."""
    import transformers

    entry = ENTRIES[name]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(tiny(cls.config_class, entry.get("config", {}))).eval()
    return model, INPUTS[entry["inputs"]](model.config)


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise ``TimeoutError`` in the block after so many seconds."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{seconds} s")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def flat(result: object) -> list[torch.Tensor]:
    """The tensors of a model's output, in order, caches included."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [t for value in result.values() for t in flat(value)]
    if isinstance(result, (list, tuple)):
        return [t for value in result for t in flat(value)]
    if dataclasses.is_dataclass(result) or hasattr(result, "layers"):
        return [t for value in vars(result).values() for t in flat(value)]
    return []


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """How a model compiled.

    Attributes:
        equal: outputs and, in training, gradients equal eager's, at both calls.
        graphs: graphs of the first call.
        compiles: frames compiled in all calls.
        breaks: reasons of the graph breaks.
        error: what was raised, or empty.
        seconds: first call, eager and compiled.
    """

    equal: bool
    graphs: int
    compiles: int
    breaks: tuple[str, ...]
    error: str
    seconds: tuple[float, float]


def check(name: str, train: bool) -> Verdict:
    """Compile one model with the tracer alone and compare it with eager, twice."""
    import torchsmith_tracer as tracer

    tracer.reset()
    model, inputs = build(name)
    model.requires_grad_(train)
    graphs = 0

    def backend(gm: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        nonlocal graphs
        graphs += 1
        return gm.forward

    def run(module: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(train):
            found = flat(module(**inputs))
            if train:
                loss = sum(t.float().pow(2).mean() for t in found if t.requires_grad)
                loss.backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [t.detach().clone() for t in found] + grads

    began = time.perf_counter()
    want = run(model)
    middle = time.perf_counter()
    compiled = tracer.compile(model, backend=backend)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with limit(120):
                results = [run(compiled) for _ in range(2)]
    except Exception as error:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        return Verdict(False, graphs, 0, (), text, (middle - began, 0.0))
    ended = time.perf_counter()
    frames = compiled._torchsmith_region.log.frames
    breaks = tuple(str(f.break_).split("\n")[0] for f in frames if f.break_ is not None)
    ours = [str(w.message) for w in seen if "TS-T9" in str(w.message)]
    equal = all(
        len(got) == len(want)
        and all(
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
            for a, b in zip(got, want)
        )
        for got in results
    )
    error = ours[0][:300] if ours else ""
    return Verdict(equal, graphs, len(frames), breaks, error, (middle - began, ended - middle))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--train", action="store_true")
    args = parser.parse_args()
    chosen = args.names or list(ENTRIES)
    whole = wrong = 0
    for name in chosen:
        try:
            model, inputs = build(name)
            model(**inputs)
        except Exception as error:
            print(f"BUILD {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        verdict = check(name, args.train)
        one = verdict.equal and verdict.graphs == 1 and not verdict.breaks
        whole += one
        wrong += not verdict.equal and not verdict.error
        if one:
            state = "ok   "
        elif verdict.error:
            state = "ERROR"
        else:
            state = "split" if verdict.equal else "WRONG"
        print(
            f"{state} {name:40s} graphs {verdict.graphs:3d} frames {verdict.compiles:3d} "
            f"{verdict.seconds[1]:5.1f} s {verdict.error[:300]}",
            flush=True,
        )
        for reason in verdict.breaks[:3]:
            print(f"        {reason[:200]}", flush=True)
    print(f"{whole} of {len(chosen)} in one graph, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
