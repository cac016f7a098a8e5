"""Small programs with their inputs: every effect that a functional graph must keep."""

import operator

import torch
import torch.nn.functional as F


def t(*size, dtype=torch.float32):
    torch.manual_seed(sum(size) + len(size))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*size, dtype=dtype)
    if dtype is torch.bool:
        return torch.randn(*size) > 0
    return torch.randint(-5, 6, size, dtype=dtype)


def put(x, index, value):
    x[index] = value
    return x


def then(*values):
    """The last value; the others are evaluated first."""
    return values[-1]


CASES = {
    # pointwise, types and shapes
    "sin_plus": (lambda a: a.sin() + 1, t(3, 4)),
    "int_plus_float": (lambda a: a + 1.5, t(3, dtype=torch.int64)),
    "int_div": (lambda a: a / 2, t(3, dtype=torch.int64)),
    "bool_plus_bool": (lambda a: a + a, t(5, dtype=torch.bool)),
    "bool_int": (lambda a, b: a * b, t(5, dtype=torch.bool), t(5, dtype=torch.int32)),
    "half_float": (lambda a, b: a * b, t(5).half(), t(5)),
    "bf16_scalar": (lambda a: (a * 2.5 + 1).exp(), t(5).bfloat16()),
    "zero_dim_promotes": (lambda a, b: a + b, t(3, dtype=torch.int32), torch.tensor(1.5)),
    "zero_dim_double": (lambda a, b: a + b, t(3), torch.tensor(1.5, dtype=torch.float64)),
    "zero_dim_int64": (lambda a, b: a + b, t(3, dtype=torch.int32), torch.tensor(7)),
    "broadcast": (lambda a, b: a * b + b, t(3, 1, 4), t(2, 1)),
    "broadcast_columns": (lambda a, b: a - b, t(4, 1), t(1, 5)),
    "compare": (lambda a, b: (a > b, a <= 0, a == b), t(4), t(4)),
    "logical": (
        lambda a, b: (a & b, a | ~b, a ^ b),
        t(6, dtype=torch.bool),
        t(6, 1, dtype=torch.bool),
    ),
    "bitwise": (lambda a: (a & 3, a << 1, ~a), t(6, dtype=torch.int64)),
    "floor_div_mod": (lambda a: (a // 2, a % 3, a.fmod(3)), t(9)),
    "floor_div_int": (lambda a: (a // 2, a % 3), t(9, dtype=torch.int64)),
    "rsub": (lambda a: (1 - a, 1 / a, 2**a), t(9)),
    "pow": (lambda a: (a**2, a**3, a**0.5, a**-1, a**2.5), t(9).abs()),
    "pow_int": (lambda a: a**2, t(9, dtype=torch.int64)),
    "where": (lambda a, b: torch.where(a > 0, a, b), t(3, 4), t(4)),
    "where_scalar": (lambda a: torch.where(a > 0, a, 0.0), t(3, 4)),
    "clamp": (lambda a: (a.clamp(-1, 1), a.clamp(min=0), a.clamp(max=0.5)), t(3, 4)),
    "clamp_int_float": (lambda a: a.clamp(0.5, 2.5), t(5, dtype=torch.int64)),
    "clamp_tensor": (lambda a, b: a.clamp(b, b + 1), t(5), t(5)),
    "maximum": (lambda a, b: torch.maximum(a, b) - torch.minimum(a, b), t(5), t(5)),
    "empty_tensor": (lambda a: (a + 1, a.sum(), a * a), torch.empty(0, 4)),
    "empty_view": (lambda a: a.view(4, 0) + 1, torch.empty(0, 4)),
    "zero_dim": (lambda a: (a * 2, a.sin(), a.view(1)), torch.tensor(2.0)),
    "addcmul": (lambda a, b: torch.addcmul(a, a, b, value=0.5), t(4), t(4)),
    "addcdiv": (lambda a, b: torch.addcdiv(a, a, b.abs() + 1), t(4), t(4)),
    "lerp": (lambda a, b: (torch.lerp(a, b, 0.25), torch.lerp(a, b, 0.75)), t(4), t(4)),
    "complex": (lambda a: (a * a).real, t(4, dtype=torch.complex64)),
    "nan_kept": (
        lambda a: (a.clamp(0, 1), a.relu(), torch.maximum(a, -a)),
        torch.tensor([float("nan"), 1.0]),
    ),
    "isnan": (
        lambda a: (a.isnan(), a.isinf(), torch.isfinite(a)),
        torch.tensor([float("nan"), 1.0, float("inf")]),
    ),
    "sign_round": (lambda a: (a.sign(), a.round(), a.floor(), a.ceil(), a.trunc()), t(9) * 3),
    "atan2": (lambda a, b: torch.atan2(a, b), t(4), t(4)),
    "to_double": (lambda a: a.to(torch.float64), t(4)),
    "to_same": (lambda a: a.to(torch.float32), t(4)),
    "to_bool": (lambda a: a.bool(), t(4, dtype=torch.int64)),
    "float_half": (lambda a: a.half().float(), t(4)),
    "type_as": (lambda a, b: a.type_as(b), t(4), t(4).double()),
    # activations
    "gelu": (lambda a: (F.gelu(a), F.gelu(a, approximate="tanh")), t(50)),
    "gelu_bf16": (F.gelu, t(50).bfloat16()),
    "silu": (lambda a: (F.silu(a), F.mish(a)), t(50) * 5),
    "hard": (lambda a: (F.hardswish(a), F.hardsigmoid(a), F.hardtanh(a), F.relu6(a)), t(50) * 5),
    "elu": (lambda a: (F.elu(a), F.selu(a), F.celu(a, 0.5)), t(50)),
    "leaky": (lambda a: (F.leaky_relu(a, 0.1), F.threshold(a, 0.1, 5.0), F.softshrink(a)), t(50)),
    "softplus": (lambda a: (F.softplus(a), F.softplus(a, 2.0, 3.0), F.logsigmoid(a)), t(50) * 9),
    "prelu": (F.prelu, t(2, 3, 4), t(3)),
    "glu": (F.glu, t(3, 8)),
    "dropout_eval": (lambda a: F.dropout(a, 0.5, False), t(4)),
    # reductions
    "sum": (lambda a: (a.sum(), a.sum(0), a.sum(-1, keepdim=True), a.sum((0, 1))), t(3, 4)),
    "sum_int": (lambda a: (a.sum(), a.sum(0)), t(3, 4, dtype=torch.int32)),
    "sum_dtype": (lambda a: a.sum(0, dtype=torch.float64), t(3, 4)),
    "mean": (lambda a: (a.mean(), a.mean(0), a.mean((0, 2), keepdim=True)), t(3, 4, 5)),
    "mean_bf16": (lambda a: a.mean(-1), t(3, 64).bfloat16()),
    "var": (
        lambda a: (a.var(), a.var(0), a.std(-1, keepdim=True), a.var(1, correction=0)),
        t(3, 4),
    ),
    "var_mean": (lambda a: torch.var_mean(a, (1, 2)), t(3, 4, 5)),
    "var_one": (lambda a: a.var(0), t(1, 4)),
    "amax": (lambda a: (a.amax(0), a.amin((0, 1)), a.max(), a.min()), t(3, 4)),
    "max_dim": (lambda a: (*a.max(1), *a.min(0, keepdim=True)), t(3, 4)),
    "argmax": (lambda a: (a.argmax(), a.argmax(1), a.argmin(0, keepdim=True)), t(3, 4)),
    "any_all": (lambda a: (a.any(), a.all(0), a.any(1)), t(3, 4, dtype=torch.bool)),
    "prod": (lambda a: (a.prod(), a.prod(1)), t(3, 4)),
    "norm": (
        lambda a: (a.norm(), a.norm(dim=1), a.norm(p=1, dim=0), F.normalize(a, dim=1)),
        t(3, 4),
    ),
    "cumsum": (lambda a: a.cumsum(1), t(3, 4)),
    "logsumexp": (lambda a: (a.logsumexp(1), a.logsumexp(0, keepdim=True)), t(3, 4)),
    "logsumexp_inf": (lambda a: a.logsumexp(0), torch.full((3,), float("-inf"))),
    "sum_transposed": (lambda a: (a.t().sum(0), a.t().mean(1)), t(3, 4)),
    "softmax": (lambda a: (F.softmax(a, -1), F.softmax(a, 0), F.log_softmax(a, 1)), t(3, 4)),
    "softmax_dtype": (lambda a: F.softmax(a, -1, dtype=torch.float32), t(3, 4).half()),
    "softmax_bf16": (lambda a: F.softmax(a, -1), t(3, 4).bfloat16()),
    "softmax_masked_row": (
        lambda a: F.softmax(a, -1),
        torch.tensor([[float("-inf")] * 3, [1.0, 2.0, 3.0]]),
    ),
    # norms
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (8,), w, b), t(3, 8), t(8), t(8, 1)[:, 0]),
    "layer_norm_2d": (lambda a: F.layer_norm(a, (3, 8)), t(2, 3, 8)),
    "layer_norm_bf16": (
        lambda a, w, b: F.layer_norm(a, (8,), w, b),
        t(3, 8).bfloat16(),
        t(8).bfloat16(),
        t(8).bfloat16(),
    ),
    "rms_norm": (lambda a, w: (F.rms_norm(a, (8,), w, 1e-6), F.rms_norm(a, (8,))), t(3, 8), t(8)),
    "group_norm": (lambda a, w, b: F.group_norm(a, 2, w, b), t(2, 4, 3, 3), t(4), t(4)),
    "batch_norm_eval": (
        lambda a, m, v, w, b: F.batch_norm(a, m, v, w, b),
        t(2, 4, 3, 3),
        t(4),
        t(4).abs(),
        t(4),
        t(4),
    ),
    "batch_norm_2d": (lambda a, m, v: F.batch_norm(a, m, v), t(5, 4), t(4), t(4).abs()),
    "batch_norm_train": (
        lambda a, m, v, w, b: F.batch_norm(a, m, v, w, b, True, 0.1),
        t(2, 4, 3, 3),
        t(4),
        t(4).abs(),
        t(4),
        t(4),
    ),
    "instance_norm": (lambda a: F.instance_norm(a), t(2, 4, 3, 3)),
    # matrix products, convolution, attention
    "linear": (F.linear, t(2, 3, 4), t(5, 4), t(5)),
    "linear_no_bias": (F.linear, t(3, 4), t(5, 4)),
    "matmul": (lambda a, b: (a @ b, a @ b[0]), t(2, 3, 4), t(2, 4, 5)),
    "matmul_transposed": (lambda a: a @ a.transpose(-1, -2), t(2, 3, 4, 5)),
    "matmul_vector": (lambda a, b: (a @ b, b @ b), t(3, 4), t(4)),
    "addmm": (torch.addmm, t(5), t(3, 4), t(4, 5)),
    "bmm": (torch.bmm, t(2, 3, 4), t(2, 4, 5)),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), t(2, 3, 4), t(2, 4, 5)),
    "conv2d": (lambda a, w, b: F.conv2d(a, w, b, padding=1), t(2, 3, 8, 8), t(4, 3, 3, 3), t(4)),
    "conv1d": (lambda a, w: F.conv1d(a, w), t(2, 3, 8), t(4, 3, 3)),
    "sdpa": (lambda q: F.scaled_dot_product_attention(q, q, q), t(2, 3, 5, 8)),
    "sdpa_causal": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        t(2, 3, 5, 8),
    ),
    "sdpa_mask": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        t(2, 3, 5, 8),
        t(5, 5),
    ),
    "embedding": (lambda i, w: F.embedding(i, w), t(2, 3, dtype=torch.int64).abs(), t(10, 4)),
    "max_pool": (lambda a: F.max_pool2d(a, 2), t(2, 3, 8, 8)),
    "avg_pool": (lambda a: (F.avg_pool2d(a, 2), F.adaptive_avg_pool2d(a, 1)), t(2, 3, 8, 8)),
    "interpolate": (lambda a: F.interpolate(a, scale_factor=2), t(2, 3, 4, 4)),
    "cross_entropy": (F.cross_entropy, t(4, 6), torch.tensor([0, 2, 5, 1])),
    "mse": (F.mse_loss, t(4, 6), t(4, 6) * 2),
    "mse_each": (lambda a, b: F.mse_loss(a, b, reduction="none"), t(4, 6), t(4, 6) * 2),
    "mse_of_nothing": (F.mse_loss, t(0, 6), t(0, 6)),
    "smooth_l1": (lambda a, b: F.smooth_l1_loss(a, b, beta=0.7), t(4, 6), t(4, 6) * 2),
    "smooth_l1_sharp": (lambda a, b: F.smooth_l1_loss(a, b, beta=0.0), t(4, 6), t(4, 6) * 2),
    "huber": (lambda a, b: F.huber_loss(a, b, "sum", 0.3), t(4, 6), t(4, 6) * 2),
    "huber_bf16": (F.huber_loss, t(4, 6).bfloat16(), t(4, 6).bfloat16() * 2),
    "pad": (lambda a: F.pad(a, (1, 2)), t(3, 4)),
    # channels last and other strides
    "channels_last": (
        lambda a: (a + 1).relu() * a,
        t(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    ),
    "channels_last_bn": (
        lambda a, m, v: F.batch_norm(a, m, v),
        t(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        t(3),
        t(3).abs(),
    ),
    "channels_last_conv": (
        lambda a, w: F.conv2d(a, w),
        t(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),
        t(4, 3, 3, 3),
    ),
    "to_channels_last": (
        lambda a: a.contiguous(memory_format=torch.channels_last) * 2,
        t(2, 3, 4, 5),
    ),
    "mixed_layouts": (lambda a, b: a + b, t(3, 4), t(4, 3).t()),
    "both_transposed": (lambda a: a.t() + a.t().exp(), t(3, 4)),
    "gaps": (lambda a: a[:, ::2] * 2, t(3, 8)),
    "expanded_input": (lambda a: a + 1, t(3, 1).expand(3, 4)),
    "softmax_transposed": (lambda a: F.softmax(a.t(), -1), t(3, 4)),
    "clone_gaps": (lambda a: a[:, ::2].clone(), t(3, 8)),
    "permuted_layer_norm": (lambda a: F.layer_norm(a.permute(0, 2, 1), (3,)), t(2, 3, 4)),
    # views as outputs
    "identity": (lambda a: a, t(3)),
    "identity_twice": (lambda a: (a, a), t(3)),
    "transpose_out": (lambda a: a.t(), t(3, 4)),
    "view_out": (lambda a: a.view(-1), t(3, 4)),
    "slice_out": (lambda a: (a[1:], a[:, 1], a[..., None]), t(3, 4)),
    "detach_out": (lambda a: a.detach(), t(3)),
    "expand_out": (lambda a: a.expand(3, 4), t(3, 1)),
    "views_of_result": (lambda a: (lambda b: (b, b.t(), b[0], b.view(-1)))(a + 1), t(3, 4)),
    "view_of_view": (lambda a: a.t()[1:].unsqueeze(0), t(3, 4)),
    "reshape_copy": (lambda a: a.t().reshape(-1), t(3, 4)),
    "reshape_view": (lambda a: a.reshape(2, -1), t(3, 4)),
    "contiguous_same": (lambda a: a.contiguous(), t(3, 4)),
    "contiguous_copy": (lambda a: a.t().contiguous(), t(3, 4)),
    "clone_out": (lambda a: (a.clone(), a.clone()), t(3, 4)),
    "equal_outputs": (lambda a: (a + 1, a + 1), t(3, 4)),
    "split": (lambda a: a.split(2, 1), t(3, 5)),
    "split_sizes": (lambda a: a.split([1, 3, 1], -1), t(3, 5)),
    "chunk": (lambda a: [c * 2 for c in a.chunk(2, 1)], t(3, 5)),
    "unbind": (lambda a: a.unbind(0), t(3, 5)),
    "squeeze": (lambda a: (a.squeeze(), a.squeeze(1), a.unsqueeze(-1)), t(3, 1, 4)),
    "flatten": (lambda a: (a.flatten(1), a.flatten(), a.unflatten(0, (1, 3))), t(3, 2, 2)),
    "movedim": (lambda a: (a.movedim(0, -1), a.permute(2, 0, 1), a.mT), t(3, 2, 4)),
    "as_strided": (lambda a: a.as_strided((2, 2), (4, 1), 1), t(3, 4)),
    "diagonal": (lambda a: (a.diagonal(), a.diagonal(1) + 1), t(3, 4)),
    "unfold": (lambda a: a.unfold(0, 2, 1), t(5)),
    "view_dtype": (lambda a: a.view(torch.int32), t(4)),
    "view_as_complex": (lambda a: torch.view_as_real(torch.view_as_complex(a) * 1j), t(4, 2)),
    "none_and_numbers": (lambda a: (None, 3, a + 1, True, 2.5), t(3)),
    "nested": (lambda a: {"x": a + 1, "y": [a, (a * 2,)]}, t(3)),
    "cat": (lambda a, b: torch.cat([a, b, a], 1), t(3, 2), t(3, 1)),
    "stack": (lambda a, b: torch.stack([a, b], -1), t(3, 2), t(3, 2) * 2),
    "repeat": (lambda a: (a.repeat(2, 3), a.repeat_interleave(2, 0)), t(2, 3)),
    "roll_flip": (lambda a: (a.roll(1, 0), a.flip(0)), t(3, 2)),
    "index": (lambda a, i: (a[i], a[:, i], a[i, i]), t(4, 4), torch.tensor([0, 2, 3])),
    "gather": (lambda a, i: a.gather(1, i), t(3, 4), t(3, 2, dtype=torch.int64).abs() % 4),
    "index_select": (lambda a, i: a.index_select(0, i), t(4, 4), torch.tensor([0, 2])),
    "tril": (lambda a: (a.tril(), a.triu(1), torch.ones(3, 3, dtype=torch.bool).tril()), t(3, 4)),
    "masked_fill": (lambda a: a.masked_fill(a > 0, float("-inf")), t(3, 4)),
    "masked_fill_rows": (lambda a, m: a.masked_fill(m, 0), t(3, 4), t(3, 1, dtype=torch.bool)),
    "sort_topk": (lambda a: (*a.sort(1), *a.topk(2, 1)), t(3, 4)),
    "one_hot": (lambda i: F.one_hot(i, 4), torch.tensor([0, 3, 1])),
    # factories
    "arange": (
        lambda a: (a + torch.arange(4), torch.arange(1, 9, 2), torch.arange(0, 1, 0.25)),
        t(3, 4),
    ),
    "zeros": (
        lambda a: (torch.zeros(3) + a, torch.ones_like(a), torch.full_like(a, 2.0), a.new_zeros(2)),
        t(3),
    ),
    "full_int": (lambda a: torch.full((2, 2), 7), t(1)),
    "zeros_like_transposed": (lambda a: torch.zeros_like(a.t()), t(3, 4)),
    "scalar_literal": (lambda a: a * torch.tensor(3.0), t(3)),
    "vector_literal": (lambda a: a * torch.tensor([1.0, 2.0, 3.0]), t(3)),
    "literal_written": (lambda a: a * torch.tensor(3.0).add_(2), t(3)),
    "linspace": (lambda a: torch.linspace(0, 1, 5), t(1)),
    "eye": (lambda a: torch.eye(3) @ a, t(3, 2)),
    # writes to inputs
    "add_": (lambda a: a.add_(1), t(3)),
    "add_then_read": (lambda a: then(a.add_(1), a * 2), t(3)),
    "write_returns_nothing": (lambda a: then(a.mul_(2), None), t(3)),
    "write_twice": (lambda a: then(a.add_(1), a.mul_(a), a.clone()), t(3)),
    "copy_": (lambda a, b: then(a.copy_(b), a + b), t(3), t(3) * 2),
    "copy_broadcast": (lambda a, b: a.copy_(b), t(3, 4), t(4)),
    "copy_casts": (lambda a, b: a.copy_(b), t(3, dtype=torch.int64), t(3)),
    "swap": (
        lambda a, b: (lambda c: then(a.copy_(b), b.copy_(c), None))(a.clone()),
        t(3),
        t(3) * 2,
    ),
    "zero_fill": (lambda a, b: then(a.zero_(), b.fill_(3), a + b), t(3), t(3) * 2),
    "relu_": (lambda a: F.relu(a, inplace=True) + 1, t(3)),
    "int_add_": (lambda a: a.add_(1), t(3, dtype=torch.int64)),
    "half_add_float": (lambda a, b: a.add_(b), t(3).half(), t(3)),
    "compare_": (lambda a: a.gt_(0), t(4)),
    "masked_fill_": (lambda a: a.masked_fill_(a > 0, 1.0), t(3, 4)),
    "index_put_": (lambda a, i: put(a, i, 0.0), t(4, 3), torch.tensor([0, 2])),
    "setitem_mask": (lambda a: put(a, a > 0, 0.0), t(4, 3)),
    "scatter_": (lambda a, i: a.scatter_(1, i, 1.0), t(3, 4), t(3, 1, dtype=torch.int64).abs() % 4),
    "index_add_": (lambda a, i: a.index_add_(0, i, a[:2] * 2), t(4, 3), torch.tensor([1, 3])),
    "addmm_": (lambda a, b: a.addmm_(b, b), t(3, 3), t(3, 3) * 2),
    "iadd": (lambda a, b: operator.iadd(a, b), t(3), t(3)),
    "out": (lambda a, b: torch.add(a, a, out=b), t(3), torch.empty(3)),
    "out_two": (
        lambda a, v, i: torch.max(a, 1, out=(v, i)),
        t(3, 4),
        torch.empty(3),
        torch.empty(3, dtype=torch.int64),
    ),
    "foreach_": (lambda a, b: then(torch._foreach_add_([a, b], 1), a * b), t(3), t(4, 3)),
    "same_input_twice": (lambda a, b: then(a.add_(1), a * b), *(lambda x: (x, x))(t(3))),
    "write_transposed": (lambda a: a.add_(a), t(4, 3).t()),
    "write_gaps": (lambda a: then(a.mul_(2), a + 1), t(3, 8)[:, ::2]),
    "write_channels_last": (
        lambda a: then(a.mul_(2), a + 1),
        t(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    ),
    # writes through views
    "write_view": (lambda a: then(a.view(-1).add_(1), a), t(3, 4)),
    "write_slice": (lambda a: then(a[1:].mul_(2), a.sum()), t(3, 4)),
    "write_row": (lambda a: put(a, 0, 1.0), t(3, 4)),
    "write_column": (lambda a, b: put(a, (slice(None), 1), b), t(3, 4), t(3)),
    "write_step": (lambda a: put(a, (slice(None), slice(None, None, 2)), 0.0), t(3, 4)),
    "write_transpose": (lambda a: then(a.t().add_(1), a), t(3, 4)),
    "write_nested_view": (lambda a: then(a.t()[1].view(1, -1).mul_(3), a), t(3, 4)),
    "write_diagonal": (lambda a: then(a.diagonal().zero_(), a), t(3, 3)),
    "fill_diagonal": (lambda a: a.fill_diagonal_(1.0), t(3, 3)),
    "write_unsqueezed": (lambda a: then(a.unsqueeze(0).add_(1), a), t(3)),
    "write_squeezed": (lambda a: then(a.squeeze(0).add_(1), a), t(1, 3)),
    "write_piece": (lambda a: then(a.split(2)[1].add_(1), a), t(5)),
    "write_unbound": (lambda a: then(a.unbind(0)[1].add_(1), a), t(3, 2)),
    "write_permuted": (lambda a: then(a.permute(2, 0, 1)[0].add_(1), a), t(2, 3, 4)),
    "write_detached": (lambda a: then(a.detach().add_(1), a), t(3)),
    "write_as_strided": (lambda a: then(a.as_strided((2, 2), (4, 1)).add_(1), a), t(3, 4)),
    "write_dtype_view": (lambda a: then(a.view(torch.int32).zero_(), a), t(4)),
    "view_before_write": (lambda a: (lambda v: then(a.add_(1), v * 2))(a.view(-1)), t(3, 4)),
    "two_views": (
        lambda a: (lambda v, w: then(v.add_(1), w.mul_(2), (v, w)))(a[0], a[:, 0]),
        t(3, 4),
    ),
    "view_out_after_write": (lambda a: (lambda v: then(a.add_(1), (v, a.t())))(a[1:]), t(3, 4)),
    "kv_cache": (
        lambda c, k: (put(c, (slice(None), slice(2, 4)), k), c.sum(1))[1],
        t(2, 8, 4),
        t(2, 2, 4),
    ),
    "index_copy_": (
        lambda c, i, k: then(c.index_copy_(1, i, k), c * 2),
        t(2, 8, 4),
        torch.tensor([2, 3]),
        t(2, 2, 4),
    ),
    "copy_from_view": (lambda a: then(a[0].copy_(a[1]), a), t(3, 4)),
    # writes to intermediates
    "fresh_add_": (lambda a: (a + 1).add_(1), t(3)),
    "fresh_view_write": (lambda a: (lambda b: then(b[0].add_(5), b))(a * 2), t(3, 4)),
    "fresh_base_write": (
        lambda a: (lambda b: (lambda v: then(b.add_(5), v))(b.t()))(a * 2),
        t(3, 4),
    ),
    "fresh_both_out": (
        lambda a: (lambda b: (lambda v: then(v.mul_(3), (b, v)))(b.t()[1:]))(a * 2),
        t(3, 4),
    ),
    "fresh_transposed_write": (
        lambda a: (lambda b: then(b.add_(1), b + b))(a.t().clone()),
        t(3, 4),
    ),
    "gap_view_write": (
        lambda a: (lambda b: (lambda v: then(v.add_(1), v.view(3, 2, 2) * 2))(b[:, ::2]))(a * 2),
        t(3, 8),
    ),
    "clone_write": (lambda a: then(a.clone().add_(1), a * 1), t(3)),
    "empty_fill": (lambda a: torch.empty_like(a).fill_(2) + a, t(3)),
    "empty_copy": (lambda a: then((e := torch.empty(3, 4)).copy_(a), e[1:], e.t())[0:], t(4)),
    "zeros_setitem": (lambda a: put(torch.zeros(4, 4), (slice(1, 3), slice(1, 3)), a), t(2, 2)),
    "metadata_t_": (lambda a: (lambda b: then(b.t_(), b * 2))(a + 1), t(3, 4)),
    "metadata_transpose_": (lambda a: (lambda b: then(b.transpose_(0, 1), b * 2))(a + 1), t(3, 4)),
    "metadata_unsqueeze_": (
        lambda a: (lambda b: then(b.unsqueeze_(0), b.add_(1), b))(a + 1),
        t(3, 4),
    ),
    "metadata_t_then_write": (
        lambda a: (lambda b: (b.t_(), b[0].mul_(2), b, b.t())[2:])(a + 1),
        t(3, 4),
    ),
    "metadata_with_a_view": (
        lambda a: (lambda b, v: (b.t_(), v.mul_(2), b, v)[2:])(*(lambda b: (b, b[0]))(a + 1)),
        t(3, 4),
    ),
    "metadata_of_a_view": (
        lambda a: (lambda b, v: (v.t_(), v[0].add_(1), b, v)[2:])(*(lambda b: (b, b[1:]))(a + 1)),
        t(3, 4),
    ),
    "metadata_in_a_pool": (
        lambda a: F.adaptive_avg_pool2d(a.contiguous(memory_format=torch.channels_last), 1),
        t(2, 3, 8, 8),
    ),
    "metadata_squeeze_out": (lambda a: (a + 1).squeeze_(), t(3, 1)),
    "accumulate_loop": (
        lambda a: (lambda s: then([s.add_(a[i]) for i in range(3)], s))(torch.zeros(4)),
        t(3, 4),
    ),
    "write_then_matmul": (lambda a: (lambda b: then(b.mul_(2), b @ b.t()))(a + 0), t(3, 4)),
    "setitem_bf16": (lambda a: put(a * 2, (0,), 1.5), t(3, 4).bfloat16()),
}


def tolerance(inputs):
    """Low precision is rounded once per operator in eager and less often by decompositions."""
    low = (torch.bfloat16, torch.float16)
    if any(isinstance(x, torch.Tensor) and x.dtype in low for x in inputs):
        return {"rtol": 2e-2, "atol": 2e-2}
    return {"rtol": 2e-5, "atol": 2e-5}
