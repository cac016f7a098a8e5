"""Arguments for every operator that has a layout rule, in many memory layouts."""

import torch

aten = torch.ops.aten
F32, I64, BOOL = torch.float32, torch.int64, torch.bool


def make(size, order=None, dtype=F32, seed=0):
    """A tensor of this size; ``order`` lists the axes from outermost to innermost in memory."""
    generator = torch.Generator().manual_seed(seed)
    order = order or range(len(size))
    flat = torch.rand([size[i] for i in order], generator=generator) * 4 + 1
    back = [list(order).index(i) for i in range(len(size))]
    return flat.to(dtype).permute(back) if len(size) > 1 else flat.to(dtype)


LAYOUTS = {
    "row-major": lambda d=F32: make((4, 3, 6), None, d),
    "transposed": lambda d=F32: make((4, 3, 6), (1, 0, 2), d),
    "last axis outermost": lambda d=F32: make((4, 3, 6), (2, 0, 1), d),
    "sliced": lambda d=F32: make((4, 3, 12), None, d)[:, :, 3:9],
    "strided": lambda d=F32: make((4, 3, 12), None, d)[:, :, ::2],
    "expanded": lambda d=F32: make((4, 1, 6), None, d).expand(4, 3, 6),
    "axis of one": lambda d=F32: make((4, 1, 6), None, d),
    "axis of one, odd stride": lambda d=F32: make((4, 3, 6), None, d)[:, 1:2],
    "leading one, transposed": lambda d=F32: make((1, 3, 6), (0, 2, 1), d),
    "empty": lambda d=F32: make((4, 0, 6), None, d),
    "empty, transposed": lambda d=F32: make((4, 0, 6), (2, 1, 0), d),
    "no axis": lambda d=F32: make((), None, d),
    "one axis": lambda d=F32: make((6,), None, d),
    "matrix": lambda d=F32: make((3, 6), None, d),
    "matrix, transposed": lambda d=F32: make((3, 6), (1, 0), d),
    "overlapping": lambda d=F32: make((8,), None, d).unfold(0, 3, 1),
    "image": lambda d=F32: make((2, 4, 6, 5), None, d),
    "image, channels last": lambda d=F32: make((2, 4, 6, 5), (0, 2, 3, 1), d),
    "image, one channel": lambda d=F32: make((2, 1, 6, 5), None, d),
    "image, 1x1": lambda d=F32: make((2, 4, 1, 1), (0, 2, 3, 1), d),
    "image, 1x1 row-major": lambda d=F32: make((2, 4, 1, 1), None, d),
}

UNARY = """neg abs sign floor ceil round trunc relu gelu silu exp exp2 expm1 log log2 log10 log1p
    sqrt rsqrt sin cos tan atan sinh cosh tanh asinh erf erfc sigmoid reciprocal isnan isinf signbit
    logit sinc i0 celu hardshrink softshrink frac isposinf isneginf zero
    log_sigmoid_forward
    logical_not bitwise_not elu mish softplus hardswish hardsigmoid leaky_relu hardtanh
    clone empty_like zeros_like ones_like rand_like randn_like detach alias squeeze t sum mean prod
    amax amin max min argmax argmin any all""".split()


def overload(name):
    packet, _, rest = name.partition(".")
    return getattr(getattr(aten, packet), rest or "default")


# name -> list of functions of one tensor x that give (args, kwargs)
WITH_SETTINGS = {
    "clamp": [lambda x: ((x, 1, 3), {}), lambda x: ((x, 1.5, None), {})],
    "clamp_min": [lambda x: ((x, 2), {})],
    "threshold": [lambda x: ((x, 1, 2), {})],
    "add.Tensor": [
        lambda x: ((x, 2), {}),
        lambda x: ((x, 2.5), {}),
        lambda x: ((x, x), {}),
        lambda x: ((x, x.clone()), {"alpha": 2}),
        lambda x: ((x, x.contiguous()), {}),
        lambda x: ((x.contiguous(), x), {}),
        lambda x: ((x, make(x.shape[-1:])), {}),
        lambda x: ((make(x.shape[-1:]), x), {}),
        lambda x: ((x, make(())), {}),
        lambda x: ((make((5, *x.shape)), x), {}),
        lambda x: ((x, x[..., :1] if x.dim() else x), {}),
        lambda x: ((x, x[:1] if x.dim() else x), {}),
        lambda x: ((x, x.to(I64)), {}),
        lambda x: ((x, x.double()), {}),
    ],
    "slice_scatter": [
        lambda x: ((x, x[::2] * 2, 0, None, None, 2), {}),
        lambda x: ((x, x[..., :1] * 2, -1, 0, 1), {}),
    ],
    "select_scatter": [
        lambda x: ((x, x.select(-1, 0) * 2, -1, 0), {}),
        lambda x: ((x.new_empty(0, 1).expand(0, 2), x.new_empty(0), 1, 0), {}),
    ],
    "diagonal_scatter": [lambda x: ((x, x.diagonal() * 2), {})],
    "add.Scalar": [lambda x: ((x, 2), {})],
    "mul.Tensor": [lambda x: ((x, True), {}), lambda x: ((x > 2, x), {})],
    "mul.Scalar": [lambda x: ((x, 2.5), {})],
    "rsub.Scalar": [lambda x: ((x, 2), {})],
    "div.Tensor": [lambda x: ((x, 2), {}), lambda x: ((x, x), {})],
    "div.Tensor_mode": [
        lambda x: ((x, 2), {"rounding_mode": "floor"}),
        lambda x: ((x, 2), {"rounding_mode": None}),
    ],
    "pow.Tensor_Scalar": [lambda x: ((x, 2), {}), lambda x: ((x, 0.5), {})],
    "pow.Scalar": [lambda x: ((2, x), {})],
    "pow.Tensor_Tensor": [lambda x: ((x, x), {})],
    "remainder.Scalar": [lambda x: ((x, 2), {})],
    "fmod.Scalar": [lambda x: ((x, 2), {})],
    "floor_divide": [lambda x: ((x, x), {})],
    "maximum": [lambda x: ((x, make(x.shape)), {})],
    "atan2": [lambda x: ((x, x), {})],
    **{
        name: [lambda x: ((x, x), {}), lambda x: ((x, make(x.shape[-1:])), {})]
        for name in "hypot logaddexp logaddexp2 nextafter copysign.Tensor".split()
    },
    "xlogy.Scalar_Other": [lambda x: ((x, 2), {}), lambda x: ((x, 2.5), {})],
    "eq.Tensor": [lambda x: ((x, x), {}), lambda x: ((x, make(x.shape[-1:])), {})],
    "gt.Scalar": [lambda x: ((x, 2), {}), lambda x: ((x, 2.5), {})],
    "logical_and": [lambda x: ((x, x > 2), {})],
    "bitwise_and.Tensor": [lambda x: ((x > 1, x > 2), {})],
    "where.self": [
        lambda x: ((x > 2, x, make(())), {}),
        lambda x: ((make(x.shape[-1:]) > 2, x, x), {}),
        lambda x: ((x > 2, x, x.double()), {}),
    ],
    "where.ScalarSelf": [lambda x: ((x > 2, 1.0, x), {})],
    "where.ScalarOther": [lambda x: ((x > 2, x, 1), {})],
    "addcmul": [lambda x: ((x, x, x), {"value": 2})],
    "lerp.Scalar": [lambda x: ((x, x, 0.5), {})],
    "masked_fill.Scalar": [
        lambda x: ((x, x > 2, 1), {}),
        lambda x: ((x, make(x.shape[-1:]) > 2, 1.5), {}),
    ],
    "native_dropout": [lambda x: ((x, 0.5, True), {})],
    "fake_quantize_per_tensor_affine_cachemask": [lambda x: ((x, 0.1, 0, -8, 7), {})],
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": [
        lambda x: ((x, make([1]), make([1]).int(), make([1]).long(), -8, 7), {}),
    ],
    "fake_quantize_per_channel_affine_cachemask": [
        lambda x: ((x, make(x.shape[-1:]), make(x.shape[-1:]).int(), x.dim() - 1, -8, 7), {}),
    ],
    "bernoulli.p": [lambda x: ((x, 0.5), {}), lambda x: ((x, 1.5), {})],
    # copies
    "copy": [
        lambda x: ((x, x * 2), {}),
        lambda x: ((x, x[..., :1].double() if x.dim() else x), {}),
        lambda x: ((x.contiguous(), x), {}),
    ],
    "_to_copy": [
        lambda x: ((x,), {"dtype": torch.float64}),
        lambda x: ((x,), {"memory_format": torch.contiguous_format}),
        lambda x: ((x,), {"memory_format": torch.channels_last}),
    ],
    "full_like": [lambda x: ((x, 2), {}), lambda x: ((x, 2), {"dtype": I64})],
    "new_zeros": [lambda x: ((x, [2, 3]), {}), lambda x: ((x, []), {"dtype": I64})],
    "new_full": [lambda x: ((x, [2, 3], 1), {})],
    # reductions
    "sum.dim_IntList": [
        lambda x: ((x, [-1]), {}),
        lambda x: ((x, [0], True), {}),
        lambda x: ((x, None), {}),
        lambda x: ((x, [0, -1]), {"dtype": torch.float64}),
    ],
    "mean.dim": [
        lambda x: ((x, [-1], True), {}),
        lambda x: ((x, [0]), {}),
        lambda x: ((x, [0, -1]), {}),
    ],
    "var.correction": [
        lambda x: ((x, [-1]), {"correction": 0}),
        lambda x: ((x, [0]), {"correction": 1, "keepdim": True}),
    ],
    "std.correction": [lambda x: ((x, [-1]), {"correction": 0})],
    "var_mean.correction": [lambda x: ((x, [0]), {"correction": 0, "keepdim": True})],
    "prod.dim_int": [lambda x: ((x, -1), {})],
    "amax": [lambda x: ((x, [-1]), {}), lambda x: ((x, [0], True), {})],
    "max.dim": [lambda x: ((x, -1), {}), lambda x: ((x, 0, True), {})],
    "argmax": [lambda x: ((x, -1), {}), lambda x: ((x, 0, True), {})],
    "any.dim": [lambda x: ((x, -1), {})],
    "all.dim": [lambda x: ((x > 2, 0, True), {})],
    "logsumexp": [lambda x: ((x, [-1]), {}), lambda x: ((x, [0], True), {})],
    "linalg_vector_norm": [lambda x: ((x, 2, [-1]), {}), lambda x: ((x,), {})],
    "topk": [lambda x: ((x, 1, -1), {})],
    "cumsum": [lambda x: ((x, -1), {}), lambda x: ((x > 2, 0), {})],
    "_softmax": [lambda x: ((x, -1, False), {}), lambda x: ((x, 0, False), {})],
    "_log_softmax": [lambda x: ((x, -1, False), {})],
    # views
    "view": [
        lambda x: ((x, [-1]), {}),
        lambda x: ((x, list(x.shape)), {}),
        lambda x: ((x, [*x.shape, 1]), {}),
        lambda x: ((x, [*x.shape[:-1], 3, -1]), {}),
        lambda x: ((x, [-1, *x.shape[2:]]), {}),
    ],
    "_unsafe_view": [lambda x: ((x, [-1]), {})],
    "permute": [lambda x: ((x, list(range(x.dim()))[::-1]), {})],
    "transpose.int": [lambda x: ((x, 0, -1), {})],
    "unsqueeze": [lambda x: ((x, 0), {}), lambda x: ((x, -1), {}), lambda x: ((x, 1), {})],
    "squeeze.dim": [lambda x: ((x, 1), {}), lambda x: ((x, 0), {})],
    "squeeze.dims": [lambda x: ((x, [0, 1]), {})],
    "expand": [
        lambda x: ((x, [5, *x.shape]), {}),
        lambda x: ((x, [-1] * x.dim()), {}),
        lambda x: ((x, [3 if n == 1 else n for n in x.shape]), {}),
        lambda x: ((x, [1, *x.shape]), {}),
        lambda x: ((x, [2, 1, 1, *x.shape]), {}),
    ],
    "select.int": [lambda x: ((x, 0, 0), {}), lambda x: ((x, -1, -1), {})],
    "slice.Tensor": [
        lambda x: ((x, -1, 1, 4), {}),
        lambda x: ((x, 0, -2, None), {}),
        lambda x: ((x, -1, 0, 9223372036854775807, 2), {}),
        lambda x: ((x, -1, 4, 1), {}),
    ],
    "diagonal": [lambda x: ((x, 0, 0, -1), {}), lambda x: ((x, 1, 0, 1), {})],
    "unfold": [lambda x: ((x, -1, 2, 2), {})],
    "unbind.int": [lambda x: ((x, 0), {}), lambda x: ((x, -1), {})],
    "split.Tensor": [lambda x: ((x, 2, -1), {}), lambda x: ((x, 3, 0), {})],
    "split_with_sizes": [lambda x: ((x, [1, x.shape[-1] - 1], -1), {})],
    "cat": [
        lambda x: (([x, x], 0), {}),
        lambda x: (([x, x, x], -1), {}),
        lambda x: (([x], -1), {}),
        lambda x: (([x, x.to(torch.float64)], -1), {}),
        lambda x: (([x.to(torch.int32), x, x.to(torch.bfloat16)], 0), {}),
    ],
    # data movement
    "stack": [
        *(lambda x, i=i: (([x, x], i), {}) for i in (0, 1, 2, -1)),
        lambda x: (([x, x.contiguous()], 1), {}),
    ],
    "index_select": [lambda x: ((x, -1, torch.tensor([0, 0, 0])), {})],
    "gather": [lambda x: ((x, -1, torch.zeros(x.shape, dtype=I64)), {})],
    "index.Tensor": [
        lambda x: ((x, [torch.tensor([0, 0, -1])]), {}),
        lambda x: ((x, [torch.tensor([[0, 0], [0, -1]])] * 2), {}),
        lambda x: ((x, [None, torch.tensor([[0, 0], [0, -1]]).t()]), {}),
    ],
    "constant_pad_nd": [lambda x: ((x, [1, 2]), {}), lambda x: ((x, [0, 0, 1, 1], 2.0), {})],
    "tril": [lambda x: ((x,), {}), lambda x: ((x, -1), {})],
    "triu": [lambda x: ((x, 1), {})],
    "flip": [lambda x: ((x, [0]), {}), lambda x: ((x, [0, -1]), {})],
    "roll": [
        lambda x: ((x, [1], [0]), {}),
        lambda x: ((x, [1]), {}),
        lambda x: ((x, [2, -1], [-1, 1]), {}),
        lambda x: ((x, [0, 1], [0, 1]), {}),
    ],
    "repeat": [lambda x: ((x, [2] * x.dim()), {}), lambda x: ((x, [3, *([1] * x.dim())]), {})],
    # products
    "mm": [lambda x: ((x, x.t()), {}), lambda x: ((x, make((6, 4), (1, 0))), {})],
    "addmm": [
        lambda x: ((make((4,)), x, make((6, 4), (1, 0))), {}),
        lambda x: ((make((3, 4)), x, make((6, 4))), {}),
    ],
    "bmm": [lambda x: ((x, x.transpose(1, 2)), {})],
    "matmul": [
        lambda x: ((x, x.transpose(-2, -1)), {}),
        lambda x: ((x, make((x.shape[-1], 5))), {}),
    ],
    "baddbmm": [lambda x: ((make((3, 3)), x, x.transpose(1, 2)), {})],
    "mv": [lambda x: ((x, make((6,))), {})],
    "dot": [lambda x: ((x, x), {})],
    # images
    "max_pool2d_with_indices": [
        lambda x: ((x, [2, 2]), {}),
        lambda x: ((x, [3, 3], [2, 2], [1, 1]), {}),
        lambda x: ((x, [3], [2], [1], [1], True), {}),
    ],
    "avg_pool2d": [
        lambda x: ((x, [2, 2]), {}),
        lambda x: ((x, [3], [2], [1], True), {}),
    ],
    "_adaptive_avg_pool2d": [lambda x: ((x, [2, 2]), {}), lambda x: ((x, [3, 1]), {})],
    # normalisation
    "native_layer_norm": [
        lambda x: ((x, x.shape[-1:], make(x.shape[-1:]), make(x.shape[-1:]), 1e-5), {}),
        lambda x: ((x, x.shape[-1:], None, None, 1e-5), {}),
        lambda x: ((x, x.shape[1:], make(x.shape[1:]), None, 1e-5), {}),
        lambda x: ((x.bfloat16(), x.shape[-1:], make(x.shape[-1:]), None, 1e-5), {}),
    ],
    # writes
    "add_.Tensor": [
        lambda x: ((x, 2), {}),
        lambda x: ((x, make(x.shape[-1:])), {}),
        lambda x: ((x, x), {}),
    ],
    "mul_.Tensor": [lambda x: ((x, 2.0), {}), lambda x: ((x, make(x.shape)), {})],
    "div_.Tensor": [lambda x: ((x, 2), {})],
    "copy_": [
        lambda x: ((x, make(x.shape[-1:])), {}),
        lambda x: ((x, make(x.shape, dtype=I64)), {}),
    ],
    "fill_.Scalar": [lambda x: ((x, 2), {})],
    "zero_": [lambda x: ((x,), {})],
    "bernoulli_.float": [lambda x: ((x, 0.5), {}), lambda x: ((x, -1.0), {})],
    "masked_fill_.Scalar": [lambda x: ((x, x > 2, 0.0), {})],
    "relu_": [lambda x: ((x,), {})],
    "silu_": [lambda x: ((x,), {})],
}
for _name in UNARY:
    WITH_SETTINGS.setdefault(_name, []).append(lambda x: ((x,), {}))


def _conv(size, order, out, kernel, weight_order=None, groups=1, stride=1, padding=0, dilation=1):
    n = len(size) - 2
    weight = make((out, size[1] // groups, *kernel), weight_order)
    args = (make(size, order), weight, make((out,)), [stride] * n, [padding] * n, [dilation] * n)
    return lambda: ((*args, False, [0] * n, groups), {})


CL = (0, 2, 3, 1)


def _norm(name, size, order, *rest):
    def call():
        c = (size[1],)
        return (make(size, order), make(c), make(c), make(c), make(c), *rest, 0.1, 1e-5), {}

    return (name, call)


def _batch_norm_backward(size, order, order_of_gradient, train):
    c = make((size[1],))
    tensors = make(size, order_of_gradient), make(size, order), c, c, c, c, c
    return "native_batch_norm_backward", lambda: ((*tensors, bool(train), 1e-5, [True] * 3), {})


def _fused_attention(order, axes, **kwargs):
    """Query, key and value are parts of one tensor, whose axes are permuted to head-major."""
    size = tuple((2, 4, 5)[axis] for axis in order)
    parts = make((*size, 24)).chunk(3, -1)
    return lambda: (tuple(part.permute(*axes, 3) for part in parts), kwargs)


def _attention(order, length=5, **kwargs):
    q = make((2, 4, 5, 8), order)
    k = make((2, 4, length, 8), order, seed=1)
    return lambda: ((q, k, k), kwargs)


# (name, function that gives (args, kwargs))
WHOLE_CALLS = [
    *[  # images in both orders
        ("cat", lambda o=o, d=d: (([make((2, 4, 3, 5), k) for k in o] + d, 1), {}))
        for o in ((CL, None), (None, CL), (CL, CL))
        for d in ([], [make((2, 4, 3, 5), CL, torch.float64)])
    ],
    *[
        (
            "index_put",
            lambda n=n: ((make((6, n)), [make((5,), dtype=I64) % 6], make((5, n)), n > 4), {}),
        )
        for n in (3, 8)
    ],
    *[
        (
            "embedding_dense_backward",
            lambda g=g, i=i: ((make(g), make(i, dtype=I64) % 7, 7, -1, False), {}),
        )
        for g, i in (((2, 3, 4), (2, 3)), ((5, 4), (5,)))
    ],
    *[
        ("convolution", c)
        for c in (
            _conv((2, 4, 9, 8), None, 6, (3, 3)),
            _conv((2, 4, 9, 8), CL, 6, (3, 3), stride=2, padding=1),
            _conv((2, 4, 9, 8), CL, 6, (3, 3), CL, padding=1),
            _conv((2, 4, 9, 8), None, 6, (3, 3), CL, dilation=2),
            _conv((2, 4, 9, 8), None, 6, (1, 1)),
            _conv((2, 4, 9, 8), CL, 6, (1, 1)),
            _conv((1, 1, 9, 8), None, 6, (3, 3)),
            _conv((1, 3, 16, 16), None, 6, (4, 4), stride=4),
            _conv((2, 4, 9, 8), None, 8, (3, 3), groups=4),
            _conv((2, 4, 9, 8), CL, 8, (3, 3), groups=4),
            _conv((2, 4, 9, 8), (3, 0, 1, 2), 6, (3, 3)),
            _conv((2, 4, 1, 1), CL, 6, (1, 1)),
            _conv((2, 4, 9), None, 6, (3,), padding=1),
            _conv((2, 4, 9), None, 6, (1,), stride=2),
            _conv((2, 4, 9), None, 4, (3,), groups=4),
        )
    ],
    _norm("native_batch_norm", (2, 4, 6, 5), None, False),
    _norm("native_batch_norm", (2, 4, 6, 5), CL, False),
    _norm("native_batch_norm", (3, 4), None, False),
    *[
        _norm("native_batch_norm", size, order, training)
        for training in (False, True)
        for size, order in (
            ((3, 4), (1, 0)),
            ((2, 4, 6), (0, 2, 1)),
            ((2, 4, 6), (1, 2, 0)),
            ((2, 4, 1), (0, 2, 1)),
            ((2, 4, 6, 5), CL),
            ((2, 4, 6, 5), (3, 0, 1, 2)),
            ((2, 4, 6, 5), (0, 1, 3, 2)),
            ((4, 2, 4, 1), CL),
            ((4, 2, 4, 1), (3, 0, 2, 1)),
            ((3, 2, 1, 4), (0, 3, 2, 1)),
            ((1, 3, 2, 2), (3, 2, 1, 0)),
        )
    ],
    *[("linalg_vector_norm", lambda o=o: ((make((0, 4)), o, [-1]), {})) for o in (2, float("inf"))],
    ("isin.Tensor_Tensor", lambda: ((make((4, 5), (1, 0)), make((3,))), {"invert": True})),
    ("isin.Tensor_Scalar", lambda: ((make((2, 3, 4, 5), CL), 1.0), {})),
    _norm("_native_batch_norm_legit_no_training", (2, 4, 6, 5), None),
    _norm("_native_batch_norm_legit_no_training", (2, 4, 6, 5), CL),
    *[
        case
        for size, order in (
            ((3, 4), (1, 0)),
            ((2, 4, 6), None),
            ((2, 4, 6), (0, 2, 1)),
            ((2, 4, 6), (1, 2, 0)),
            ((2, 4, 6, 5), None),
            ((2, 4, 6, 5), CL),
        )
        for case in (
            _norm("_native_batch_norm_legit_functional", size, order, True),
            *(
                _batch_norm_backward(size, order, to, t)
                for to in (order, None, (0, *range(2, len(size)), 1))
                for t in (0, 1)
            ),
        )
    ],
    (
        "native_group_norm",
        lambda: ((make((2, 4, 6)), make((4,)), make((4,)), 2, 4, 6, 2, 1e-5), {}),
    ),
    ("native_group_norm", lambda: ((make((2, 4, 3, 2)), None, None, 2, 4, 6, 2, 1e-5), {})),
    *[
        ("_scaled_dot_product_flash_attention_for_cpu", c)
        for c in (
            _attention(None),
            _attention((0, 2, 1, 3)),
            _attention((0, 2, 1, 3), 7),
            _attention((2, 0, 1, 3), is_causal=True),
            _attention(None, attn_mask=make((2, 1, 5, 5)), scale=0.5),
            _fused_attention((0, 1, 2), (0, 1, 2)),
            _fused_attention((0, 2, 1), (0, 2, 1), is_causal=True),
            _fused_attention((2, 0, 1), (1, 2, 0)),
        )
    ],
    ("embedding", lambda: ((make((9, 4)), torch.tensor([[1, 2, 3], [4, 5, 6]])), {})),
    ("embedding", lambda: ((make((9, 4)), torch.tensor([[1, 2, 3]]).expand(2, 3)), {})),
    ("embedding", lambda: ((make((9, 4), (1, 0)), torch.tensor([1, 2])), {})),
    ("embedding", lambda: ((make((9, 4)), torch.tensor([[1, 2, 3], [4, 5, 6]]).t()), {})),
    ("zeros", lambda: (([2, 3],), {})),
    ("ones", lambda: (([2, 3],), {"dtype": I64})),
    ("randn", lambda: (([],), {"device": torch.device("cpu")})),
    ("empty.memory_format", lambda: (([0, 3],), {})),
    ("empty_strided", lambda: (([2, 3], [1, 2]), {})),
    ("full", lambda: (([2], 1), {})),
    ("full", lambda: (([2], 1.0), {})),
    ("full", lambda: (([2, 0, 3], True), {})),
    ("full", lambda: (([2], 1), {"dtype": torch.bfloat16})),
    ("scalar_tensor", lambda: ((1,), {})),
    ("scalar_tensor", lambda: ((1,), {"dtype": I64})),
    ("arange", lambda: ((5,), {})),
    ("arange", lambda: ((5.5,), {})),
    ("arange", lambda: ((0,), {})),
    ("arange", lambda: ((5,), {"dtype": F32})),
    ("arange.start", lambda: ((2, 7), {})),
    ("arange.start", lambda: ((7, 7), {})),
    ("arange.start_step", lambda: ((2, 9, 3), {})),
    ("arange.start_step", lambda: ((9, 2, -2), {})),
    ("arange.start_step", lambda: ((0.0, 1.0, 0.1), {})),
]
