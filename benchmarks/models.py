"""The models that tests, demo and benchmarks share: name -> module and example inputs.

All come with random weights from configurations, small enough for two CPU cores; ``scale="gpu"``
gives the sizes that are measured on a GPU. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
Maker = Callable[[str], tuple[nn.Module, Inputs]]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))


def _text_sizes(scale: str) -> tuple[dict[str, int], tuple[int, int]]:
    """Transformer sizes and (batch, time)."""
    if scale == "gpu":
        return _sizes(1024, 2816, 8, 16), (8, 512)
    return _sizes(256, 704, 4, 8), (2, 128)


def _sizes(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _ids(shape: tuple[int, int], vocab: int = 1024) -> torch.Tensor:
    return torch.randint(3, vocab, shape, generator=torch.Generator().manual_seed(0))


def _image(scale: str) -> torch.Tensor:
    batch, size = (16, 224) if scale == "gpu" else (2, 112)
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


def _causal(config_name: str, model_name: str) -> Maker:
    def make(scale: str) -> tuple[nn.Module, Inputs]:
        import transformers

        sizes, shape = _text_sizes(scale)
        extra = {"num_key_value_heads": 4} if config_name != "GPT2Config" else {}
        if config_name == "Qwen3Config":
            extra["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
        config = getattr(transformers, config_name)(
            vocab_size=1024, max_position_embeddings=1024, use_cache=False, **sizes, **extra
        )
        return getattr(transformers, model_name)(config), {"input_ids": _ids(shape)}

    return make


def _gpt2(scale: str) -> tuple[nn.Module, Inputs]:
    import transformers

    sizes, shape = _text_sizes(scale)
    config = transformers.GPT2Config(
        vocab_size=1024,
        n_positions=1024,
        n_embd=sizes["hidden_size"],
        n_layer=sizes["num_hidden_layers"],
        n_head=sizes["num_attention_heads"],
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": _ids(shape)}


def _encoder(config_name: str, model_name: str) -> Maker:
    def make(scale: str) -> tuple[nn.Module, Inputs]:
        import transformers

        sizes, shape = _text_sizes(scale)
        config = getattr(transformers, config_name)(
            vocab_size=1024, max_position_embeddings=1026, **sizes
        )
        inputs = {"input_ids": _ids(shape), "attention_mask": torch.ones(shape, dtype=torch.long)}
        return getattr(transformers, model_name)(config), inputs

    return make


def _vit(scale: str) -> tuple[nn.Module, Inputs]:
    import transformers

    sizes, _ = _text_sizes(scale)
    image = _image(scale)
    config = transformers.ViTConfig(image_size=image.shape[-1], patch_size=16, **sizes)
    return transformers.ViTModel(config), {"pixel_values": image}


def _resnet(scale: str) -> tuple[nn.Module, Inputs]:
    import transformers

    config = transformers.ResNetConfig()
    if scale != "gpu":
        config = transformers.ResNetConfig(
            embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2]
        )
    return transformers.ResNetModel(config), {"pixel_values": _image(scale)}


def _convnext(scale: str) -> tuple[nn.Module, Inputs]:
    import transformers

    config = transformers.ConvNextConfig()
    if scale != "gpu":
        config = transformers.ConvNextConfig(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2])
    return transformers.ConvNextModel(config), {"pixel_values": _image(scale)}


def _swin(scale: str) -> tuple[nn.Module, Inputs]:
    import transformers

    image = _image(scale)
    config = transformers.SwinConfig(
        image_size=image.shape[-1],
        window_size=7,
        embed_dim=96 if scale == "gpu" else 48,
        depths=[2, 2, 6, 2] if scale == "gpu" else [2, 2],
        num_heads=[3, 6, 12, 24] if scale == "gpu" else [3, 6],
    )
    return transformers.SwinModel(config), {"pixel_values": image}


def _clip(scale: str) -> tuple[nn.Module, Inputs]:
    import transformers

    sizes, shape = _text_sizes(scale)
    image = _image(scale)
    text = dict(
        vocab_size=1024, max_position_embeddings=128, bos_token_id=0, eos_token_id=2, **sizes
    )
    vision = dict(image_size=image.shape[-1], patch_size=16, **sizes)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=128)
    inputs = {"input_ids": _ids((shape[0], 64)), "pixel_values": image[: shape[0]]}
    return transformers.CLIPModel(config), inputs


def _our_gpt(scale: str) -> tuple[nn.Module, Inputs]:
    from gpt import GPT, Config

    if scale == "gpu":
        return GPT(Config(context=1024, layers=8, heads=16, width=1024)), {"ids": _ids((8, 512))}
    return GPT(Config()), {"ids": _ids((2, 128))}


MODELS: dict[str, Maker] = {
    "gpt": _our_gpt,
    "llama": _causal("LlamaConfig", "LlamaForCausalLM"),
    "qwen3": _causal("Qwen3Config", "Qwen3ForCausalLM"),
    "mistral": _causal("MistralConfig", "MistralForCausalLM"),
    "gpt2": _gpt2,
    "bert": _encoder("BertConfig", "BertModel"),
    "roberta": _encoder("RobertaConfig", "RobertaModel"),
    "vit": _vit,
    "resnet": _resnet,
    "convnext": _convnext,
    "swin": _swin,
    "clip": _clip,
}


def make(name: str, scale: str = "cpu") -> tuple[nn.Module, Inputs]:
    """The model in eval mode and its keyword inputs; same weights in every process."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](scale)
    return model.eval(), inputs


def tensors(result: object) -> list[torch.Tensor]:
    """All tensors of a model's output, in a fixed order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [t for v in result.values() for t in tensors(v)]
    if isinstance(result, (list, tuple)):
        return [t for v in result for t in tensors(v)]
    return []
