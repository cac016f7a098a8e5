"""Models for ``zoo.py``: name -> module and inputs, in full size for a GPU and tiny for a CPU.

Random weights from configurations; nothing is downloaded. Those of ``timm`` are there if it is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, dict[str, Any]]
Maker = Callable[[bool], Made]  # whether in full size


def tokens(batch: int, length: int, vocab: int = 500) -> torch.Tensor:
    """Random token numbers."""
    return torch.randint(5, vocab, (batch, length))


def language(kind: str, full: dict[str, Any], tiny: dict[str, Any], **inputs: Any) -> Maker:
    """A transformers model ``kind`` by class name, whose config is ``kind``'s."""

    def make(big: bool) -> Made:
        import transformers

        cls = getattr(transformers, kind)
        config = cls.config_class(**(full if big else tiny))
        config.use_cache = False
        batch, length = (8, 512) if big else (2, 24)
        given = {"input_ids": tokens(batch, length)}
        given |= {name: make(batch, length) for name, make in inputs.items()}
        return cls(config), given

    return make


def _padded(batch: int, length: int) -> torch.Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1:, length * 3 // 4 :] = 0
    return mask


def image(kind: str, full: dict[str, Any], tiny: dict[str, Any], size: int = 64) -> Maker:
    """A transformers model over images."""

    def make(big: bool) -> Made:
        import transformers

        cls = getattr(transformers, kind)
        pixels = torch.randn(32, 3, 224, 224) if big else torch.randn(2, 3, size, size)
        return cls(cls.config_class(**(full if big else tiny))), {"pixel_values": pixels}

    return make


def timm_model(name: str, tiny: str | None = None) -> Maker:
    """A model of ``timm``; on a CPU a smaller relative of it."""

    def make(big: bool) -> Made:
        import timm

        x = torch.randn(64, 3, 224, 224) if big else torch.randn(1, 3, 224, 224)
        return timm.create_model(name if big else tiny or name), {"x": x}

    return make


def whisper(big: bool) -> Made:
    """Speech to text: an encoder over a spectrogram, a decoder that looks at it."""
    import transformers

    sizes = {} if big else {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2}
    sizes |= {} if big else {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    heads = 8 if big else 4
    config = transformers.WhisperConfig(
        encoder_attention_heads=heads, decoder_attention_heads=heads, use_cache=False, **sizes
    )
    batch = 8 if big else 1
    inputs = {"input_features": torch.randn(batch, 80, 3000)}
    return transformers.WhisperModel(config), {
        **inputs,
        "decoder_input_ids": tokens(batch, 128 if big else 8),
    }


def wav2vec2(big: bool) -> Made:
    """Sound, by convolutions and a transformer."""
    import transformers

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 128, "num_conv_pos_embeddings": 16}
    config = transformers.Wav2Vec2Config(**({} if big else sizes))
    return transformers.Wav2Vec2Model(config), {
        "input_values": torch.randn(8 if big else 1, 160_000 if big else 8_000)
    }


class TokenStep(nn.Module):
    """One token of a Llama, batch 1, with a static key-value cache."""

    def __init__(self, big: bool) -> None:
        import transformers

        super().__init__()
        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
        small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
        self.config = transformers.LlamaConfig(**(sizes if big else small))
        self.model = transformers.LlamaForCausalLM(self.config)
        self.cache: Any = None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token; the cache advances."""
        import transformers

        if self.cache is None:
            self.cache = transformers.StaticCache(config=self.config, max_cache_len=1024)
        return self.model(input_ids=ids, past_key_values=self.cache, use_cache=True).logits


class Recurrent(nn.Module):
    """A language model of LSTM layers."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits at each position."""
        return self.head(self.layers(self.embed(ids))[0])


class Radiance(nn.Module):
    """Density and color at points of space, from sines and cosines of their coordinates."""

    def __init__(self, width: int, octaves: int = 10) -> None:
        super().__init__()
        self.register_buffer("scales", 2.0 ** torch.arange(octaves))
        inner = [m for _ in range(6) for m in (nn.Linear(width, width), nn.ReLU())]
        self.body = nn.Sequential(nn.Linear(6 * octaves, width), nn.ReLU(), *inner)
        self.head = nn.Linear(width, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Red, green, blue, opacity, composed along each ray."""
        angles = (points.unsqueeze(-1) * self.scales).flatten(-2)
        found = self.head(self.body(torch.cat([angles.sin(), angles.cos()], dim=-1)))
        opacity = 1 - torch.exp(-torch.relu(found[..., 3]))
        passed = torch.cumprod(1 - opacity + 1e-6, dim=-1)
        return (found[..., :3].sigmoid() * (opacity * passed).unsqueeze(-1)).sum(-2)


class Residual(nn.Module):
    """Group norm, SiLU, convolution, twice, around a shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """An image of the same size."""
        return self.shortcut(x) + self.second(self.first(x))


class UNet(nn.Module):
    """Down, across, up, with pixels of each size joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width), Residual(width, 2 * width)])
        self.middle = Residual(2 * width, 2 * width)
        self.up = nn.ModuleList([Residual(4 * width, width), Residual(2 * width, width)])
        self.head = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """An image of the same size."""
        x, kept = self.stem(x), []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1))
        return self.head(x)


class GraphAttention(nn.Module):
    """Attention over the edges of a graph, by gathers and scatters."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.score = nn.ParameterList([nn.Parameter(torch.randn(heads, 2)) for _ in range(3)])

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """New features of each node."""
        for project, score in zip(self.project, self.score, strict=True):
            h = project(x).view(len(x), self.heads, -1)
            part = h.mean(-1)
            edge = functional.leaky_relu(part[source] * score[:, 0] + part[target] * score[:, 1])
            weight = (edge - edge.max()).exp()
            total = torch.zeros_like(part).index_add(0, target, weight)
            sent = h[source] * (weight / total[target])[..., None]
            x = functional.elu(torch.zeros_like(h).index_add(0, target, sent).flatten(1))
        return x


class Mixer(nn.Module):
    """Linear layers over positions and over channels in turn."""

    def __init__(self, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers)])
        self.over = nn.ModuleList([nn.Linear(length, length) for _ in range(layers)])
        self.along = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of the same size."""
        for i, (over, along) in enumerate(zip(self.over, self.along, strict=True)):
            y = functional.gelu(over(self.norms[2 * i](x).transpose(1, 2)))
            x = x + y.transpose(1, 2)
            x = x + functional.gelu(along(self.norms[2 * i + 1](x)))
        return x


class Recommender(nn.Module):
    """Embedding tables, their pairwise products, and a tower of linear layers."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        pairs = tables * tables
        self.tower = nn.Sequential(
            nn.Linear(pairs, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """One score a row."""
        found = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        return torch.sigmoid(self.head(self.tower((found @ found.transpose(1, 2)).flatten(1))))


def _graph(big: bool) -> Made:
    nodes, edges = (100_000, 1_000_000) if big else (200, 1_000)
    ends = torch.randint(nodes, (2, edges))
    width = 64 if big else 16
    return GraphAttention(width, 4), {
        "x": torch.randn(nodes, width),
        "source": ends[0],
        "target": ends[1],
    }


def _tiny(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 512,
        **more,
    }


_LLAMA = _tiny(hidden_size=2048, intermediate_size=5632, num_hidden_layers=12)
_LLAMA |= {"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32_001}
_T5 = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
_BASE |= {"num_attention_heads": 12, "embedding_size": 768}
_BART = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 512}
_BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
_BART |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
_BLOOM = {"hidden_size": 1024, "n_layer": 12, "n_head": 16, "vocab_size": 50_304}
_MAMBA = {"hidden_size": 1024, "num_hidden_layers": 4, "num_heads": 32, "head_dim": 64}
_MAMBA |= {"state_size": 64, "n_groups": 1, "vocab_size": 32_000, "chunk_size": 128}
_OPT = {"ffn_dim": 3072, "word_embed_proj_dim": 768}

MODELS: dict[str, Maker] = {
    "llama": language("LlamaForCausalLM", _LLAMA, _tiny(num_key_value_heads=2)),
    "gpt2": language("GPT2LMHeadModel", {}, {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "bert": language("BertModel", {}, _tiny(), attention_mask=_padded),
    "roberta": language(
        "RobertaModel", {"max_position_embeddings": 514}, _tiny(max_position_embeddings=64)
    ),
    "deberta": language("DebertaV2Model", {}, _tiny(pos_att_type=["p2c", "c2p"])),
    "t5": language(
        "T5Model",
        _T5,
        {"d_model": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4},
        decoder_input_ids=tokens,
    ),
    "opt": language("OPTModel", _OPT, _tiny(ffn_dim=128, word_embed_proj_dim=64)),
    "qwen3": language(
        "Qwen3ForCausalLM", _LLAMA | {"head_dim": 128}, _tiny(num_key_value_heads=2, head_dim=16)
    ),
    "albert": language("AlbertModel", {}, _tiny(embedding_size=32)),
    "distilbert": language("DistilBertModel", {}, {"dim": 64, "n_layers": 2, "n_heads": 4}),
    "whisper": whisper,
    "wav2vec2": wav2vec2,
    "vit": image("ViTModel", {}, _tiny(image_size=64)),
    "convnext": image("ConvNextModel", {}, {"hidden_sizes": [16, 32, 64, 128]}),
    "swin": image(
        "SwinModel",
        {},
        {
            "image_size": 64,
            "embed_dim": 24,
            "depths": [1, 1],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "segformer": image("SegformerModel", {}, {"hidden_sizes": [16, 32, 64, 64]}),
    "resnet": image("ResNetModel", {}, {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64]}),
    "token": lambda big: (TokenStep(big), {"ids": tokens(1, 1)}),
    "unet": lambda big: (UNet(256 if big else 16), {"x": torch.randn(8 if big else 1, 4, 64, 64)}),
    "graph": _graph,
    "mixer": lambda big: (
        Mixer(768, 196, 12) if big else Mixer(32, 16, 2),
        {"x": torch.randn(64, 196, 768) if big else torch.randn(2, 16, 32)},
    ),
    "recommender": lambda big: (
        Recommender(26, 100_000 if big else 100, 64),
        {"ids": torch.randint(100, (8192 if big else 16, 26))},
    ),
    "bart": language("BartModel", {}, _BART, decoder_input_ids=tokens),
    "bloom": language("BloomForCausalLM", _BLOOM, {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "gemma2": language(
        "Gemma2ForCausalLM",
        _LLAMA | {"head_dim": 128, "num_hidden_layers": 8},
        _tiny(num_key_value_heads=2, head_dim=16),
    ),
    "mixtral": language(
        "MixtralForCausalLM",
        _LLAMA | {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 6},
        _tiny(num_key_value_heads=2),
    ),
    "mamba2": language(
        "Mamba2ForCausalLM",
        _MAMBA,
        _MAMBA
        | {
            "hidden_size": 32,
            "num_heads": 4,
            "head_dim": 16,
            "num_hidden_layers": 2,
            "chunk_size": 8,
        },
    ),
    "dinov2": image("Dinov2Model", {}, _tiny(image_size=64)),
    "electra": language("ElectraModel", _BASE, _tiny(embedding_size=32), attention_mask=_padded),
    "lstm": lambda big: (
        Recurrent(10_000 if big else 100, 1024 if big else 32),
        {"ids": tokens(32, 128) if big else tokens(2, 12, 100)},
    ),
    "radiance": lambda big: (
        Radiance(256 if big else 32),
        {"points": torch.rand(4096 if big else 16, 64 if big else 8, 3)},
    ),
}
if importlib.util.find_spec("timm") is not None:
    MODELS |= {
        "vgg16": timm_model("vgg16", "vgg11"),
        "efficientnet": timm_model("efficientnet_b0"),
        "densenet": timm_model("densenet121"),
        "regnet": timm_model("regnety_032", "regnety_002"),
        "mobilenet": timm_model("mobilenetv3_large_100", "mobilenetv3_small_050"),
        "deit": timm_model("deit_small_patch16_224", "deit_tiny_patch16_224"),
    }
