"""``torchsmith_kernels.patch`` on real Hugging Face models: same results, all of it reversible."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import transformers
from torchsmith_kernels import PatchError, patch
from torchsmith_kernels.patch import OPS

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attn_implementation": "sdpa",
}
FAMILIES = ["Llama", "Qwen2", "Qwen3", "Mistral"]


def build(family: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def inputs(padded: bool = False) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 96, (2, 17), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def step(model: Any, **more: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    output = model(**{**inputs(), **more})
    output.loss.backward()
    return output, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_results_and_gradients_are_the_models_own(family: str) -> None:
    model = build(family)
    want, want_grads = step(model)
    padded = {"attention_mask": inputs(padded=True)["attention_mask"]}
    want_padded = model(**{**inputs(), **padded}).logits
    before = {name: type(m).forward for name, m in model.named_modules()}
    with patch(model) as changed:
        used = {op for change in changed.changes for op in change.ops}
        assert used == {"rms_norm", "swiglu", "apply_rotary", "flash_attention"}
        got, grads = step(model)
        torch.testing.assert_close(got.loss, want.loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
        for name, grad in want_grads.items():
            torch.testing.assert_close(grads[name], grad, rtol=1e-3, atol=1e-5)
        found = model(**{**inputs(), **padded}).logits
        real = padded["attention_mask"].bool()
        torch.testing.assert_close(found[real], want_padded[real], rtol=1e-4, atol=1e-5)
    assert not any("forward" in m.__dict__ for m in model.modules())
    assert before == {name: type(m).forward for name, m in model.named_modules()}
    assert torch.equal(model(**inputs()).logits, want.logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fused_loss_makes_no_logits(family: str) -> None:
    model = build(family)
    want, want_grads = step(model)
    patch(model, OPS)
    got, grads = step(model)
    assert got.logits is None
    torch.testing.assert_close(got.loss, want.loss, rtol=1e-5, atol=1e-6)
    for name, grad in want_grads.items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-3, atol=1e-5)
    counted = model(**inputs(), num_items_in_batch=7).loss
    torch.testing.assert_close(counted, want.loss * (2 * 16) / 7, rtol=1e-5, atol=1e-6)
    plain = model(input_ids=inputs()["input_ids"])
    torch.testing.assert_close(plain.logits, want.logits, rtol=1e-4, atol=1e-5)


def test_generation_is_the_same() -> None:
    model = build("Llama").eval()
    ids = inputs()["input_ids"]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    want = model.generate(ids, **options)
    with patch(model):
        assert torch.equal(model.generate(ids, **options), want)


def test_the_list_of_changes_is_readable() -> None:
    model = build("Llama")
    with patch(model, ["rms_norm", "swiglu"]) as changed:
        lines = str(changed).splitlines()
        assert "model.layers.0.mlp (LlamaMLP): swiglu" in lines
        assert "model.norm (LlamaRMSNorm): rms_norm" in lines
        assert len(lines) == 2 * 3 + 1
        with pytest.raises(PatchError, match=r"TS-K007.*patched already; undo that first"):
            patch(model)


def test_other_models_are_untouched() -> None:
    one, other = build("Llama"), build("Llama")
    with patch(one):
        assert not any("forward" in m.__dict__ for m in other.modules())
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50)
    with pytest.raises(PatchError, match="GPT2Model has no module that"):
        patch(transformers.GPT2Model(config))


def test_a_loss_of_the_models_own_is_kept() -> None:
    model = build("Llama")
    model.loss_function = lambda logits, labels, vocab_size, **_: 0 * logits.sum() + 7
    with patch(model, OPS):
        assert model(**inputs()).loss == 7


def test_a_head_that_is_more_than_a_weight_is_called() -> None:
    class Adapted(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    model = build("Llama")
    model.lm_head.register_forward_hook(lambda module, args, output: 3 * output)
    want = model(**inputs()).loss
    with patch(model, OPS):
        torch.testing.assert_close(model(**inputs()).loss, want, rtol=1e-5, atol=1e-6)
    model.lm_head = Adapted(64, 96, bias=False)
    want = model(**inputs()).loss
    with patch(model, OPS) as changed:
        assert "fused_linear_cross_entropy" not in str(changed)
        torch.testing.assert_close(model(**inputs()).loss, want, rtol=1e-5, atol=1e-6)


def test_a_norm_with_a_wider_weight_keeps_its_dtype() -> None:
    norm = build("Llama").model.norm
    x = torch.randn(3, 64).bfloat16()
    want = norm(x)
    with patch(norm):
        assert norm(x).dtype is want.dtype is torch.float32


def test_patched_models_can_be_copied_and_saved() -> None:
    model = build("Llama")
    patch(model, OPS)
    ids = inputs()["input_ids"]
    want = model(ids).logits
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    for other in (loaded, copied):
        assert torch.equal(other(ids).logits, want)
        assert all(m.forward.__self__ is m for m in other.modules() if "forward" in m.__dict__)
        with pytest.raises(PatchError, match="patched already"):
            patch(other)


def attend(name: str, **more: Any) -> tuple[Any, Any]:
    """What a patched layer's attention function gives, and the library's own."""
    module = build("Llama").model.layers[0].self_attn
    patch(module)
    registry = module.forward.__func__.__globals__["ALL_ATTENTION_FUNCTIONS"]
    tensors = [torch.randn(1, heads, 5, 16) for heads in (4, 2, 2)]
    functions = (registry[name], registry.registry[name])
    return tuple(f(module, *tensors, None, scaling=0.3, **more)[0] for f in functions)


def test_attention_functions_are_found_as_in_transformers_4() -> None:
    got, want = attend("sdpa")
    torch.testing.assert_close(got, want)
    got, want = attend("sdpa", position_bias=torch.randn(1, 4, 5, 5))  # none of ours
    assert torch.equal(got, want)


def test_a_mask_may_be_longer_than_the_keys() -> None:
    model = build("Llama").eval()
    layer = model.model.layers[0].self_attn
    with patch(layer):
        attention = layer.forward.__func__.__globals__["ALL_ATTENTION_FUNCTIONS"]["sdpa"]
        tensors = [torch.randn(1, heads, 5, 16) for heads in (4, 2, 2)]
        mask = torch.ones(1, 1, 5, 8, dtype=torch.bool).tril()
        got = attention(layer, *tensors, mask)[0]
        torch.testing.assert_close(got, attention(layer, *tensors, mask[..., :5])[0])


def test_a_patched_model_compiles() -> None:
    model = build("Llama").eval()
    ids = inputs()["input_ids"]
    with torch.no_grad():
        want = model(ids).logits
        with patch(model):
            compiled = torch.compile(model, backend="aot_eager")
            torch.testing.assert_close(compiled(ids).logits, want, rtol=1e-4, atol=1e-5)
