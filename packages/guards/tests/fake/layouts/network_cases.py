"""Arguments for operators of networks: images, losses, normalisations, and their gradients.

Each case is a function of ``m``, which makes a tensor of a size, in the memory order and of the
type under test; parameters and classes are made by ``make``.
"""

import torch
from layout_cases import I64, make

ORDERS = ("row-major", "channels last", "transposed", "sliced", "part of the channels")


def maker(order, dtype):
    """A function that makes tensors of given sizes; those of less than two axes have one order."""

    def m(*size):
        axes = range(len(size))
        if len(size) < 2 or order == "row-major":
            return make(size, None, dtype)
        if order == "expanded":
            return make((1, *size[1:]), None, dtype).expand(size)
        if order == "sliced":
            return make((*size[:-1], 2 * size[-1]), None, dtype)[..., : size[-1]]
        if order == "part of the channels":
            return make((size[0], 2 * size[1], *size[2:]), None, dtype)[:, : size[1]]
        return make(size, axes[::-1] if order == "transposed" else (0, *axes[2:], 1), dtype)

    return m


ALL = [True, True, True]


def classes(*size):
    return make(size, dtype=I64) % 4


def _convolution(size, out, kernel, groups=1, transposed=False, bias=True, mask=None, **settings):
    """Forward and backward of one convolution."""
    n = len(size) - 2
    stride, padding, dilation, more = (
        [settings.get(name, default)] * n
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("more", 0))
    )
    shape = (size[1], out // groups) if transposed else (out, size[1] // groups)
    rest = (stride, padding, dilation, transposed, more, groups)

    def forward(m):
        x, w = m(*size), m(*shape, *kernel)
        return (x, w, make((out,), dtype=x.dtype) if bias else None, *rest), {}

    def backward(m):
        args, _ = forward(m)
        grad = m(*torch.convolution(*args).shape)
        return (grad, *args[:2], [out] if bias else None, *rest, mask or [True, True, bias]), {}

    return {"convolution": forward, "convolution_backward": backward}


COLUMNS = [  # of windows: kernel, dilation, padding, stride
    {"im2col": lambda m, size=size, where=where: ((m(*size), *([n, n] for n in where)), {})}
    for size in ((2, 4, 5, 6), (4, 3, 4), (2, 1, 4, 1))
    for where in ((1, 1, 0, 1), (1, 2, 0, 2), (1, 1, 1, 1), (2, 1, 1, 1), (2, 2, 1, 1))
]


CONVOLUTIONS = [
    _convolution((2, 4, 9, 8), 6, (3, 3)),
    _convolution((2, 4, 9, 8), 6, (3, 3), bias=False, padding=1),
    _convolution((2, 4, 9, 8), 6, (3, 3), mask=[False, True, True]),
    _convolution((2, 4, 9, 8), 6, (3, 3), stride=2, padding=1, dilation=2),
    _convolution((2, 4, 9, 8), 8, (3, 3), groups=4),
    _convolution((2, 1, 9, 8), 6, (1, 1)),
    _convolution((2, 4, 9, 8), 1, (1, 1)),
    _convolution((2, 4, 9), 6, (3,), padding=1),
    _convolution((2, 4, 9), 4, (3,), groups=4),
    _convolution((2, 3, 5, 6, 4), 4, (3, 3, 3), padding=1),
    _convolution((2, 4, 5, 6), 6, (2, 2), transposed=True, stride=2),
    _convolution((2, 4, 5, 6), 6, (3, 3), transposed=True, stride=2, padding=1, more=1),
    _convolution((2, 4, 5, 6), 6, (3, 3), transposed=True, groups=2, bias=False),
    _convolution((2, 4, 9), 6, (4,), transposed=True, stride=2, padding=1),
    _convolution((2, 4, 3, 4, 3), 6, (2, 2, 2), transposed=True, stride=2),
]


def _upsampling(mode, count, *settings):
    size, more = (6, 8, 10)[:count], [None] * (1 if count == 1 else count)
    name = f"{mode}{count}d"
    return {
        name: lambda m: ((m(2, 3, *range(3, 3 + count)), list(size), *settings, *more), {}),
        f"{name}_backward": lambda m: (
            (m(2, 3, *size), list(size), [2, 3, *range(3, 3 + count)], *settings, *more),
            {},
        ),
    }


def _windows(count):
    """Pools over two or three dimensions, and their gradients."""
    sizes = ((2, 4, *(6, 7, 5)[:count]), (4, *(6, 7, 5)[:count]))
    for size in sizes:
        for window in ([2], [3], [3]), ([2], [2], [1]), ([3], [2], [1]), ([2], [], [0]):
            for ceil in (False, True):
                yield from _pools(count, size, [w * count for w in window], ceil)
        shape = [3, 2, 2][:count]
        yield (
            f"_adaptive_avg_pool{count}d",
            lambda m, size=size, shape=shape: ((m(*size), shape), {}),
        )
        yield (
            f"_adaptive_avg_pool{count}d_backward",
            lambda m, size=size, shape=shape: ((m(*size[:-count], *shape), m(*size)), {}),
        )
        yield (
            f"adaptive_max_pool{count}d",
            lambda m, size=size, shape=shape: ((m(*size), shape), {}),
        )

        def backward(m, size=size, shape=shape):
            x = m(*size)
            pool = getattr(torch.ops.aten, f"adaptive_max_pool{count}d")
            return (m(*size[:-count], *shape), x, pool(x, shape)[1]), {}

        yield f"adaptive_max_pool{count}d_backward", backward


def _pools(count, size, window, ceil):
    aten = torch.ops.aten
    maximum, average = (getattr(aten, f"{n}_pool{count}d") for n in ("max", "avg"))
    indices = getattr(aten, f"max_pool{count}d_with_indices")
    one = [1] * count
    yield f"max_pool{count}d_with_indices", lambda m: ((m(*size), *window, one, ceil), {})
    yield f"avg_pool{count}d", lambda m: ((m(*size), *window, ceil, True, None), {})

    def max_backward(m):
        x = m(*size)
        grad = m(*maximum(x, *window, one, ceil).shape)
        found = indices(x, *window, one, ceil)[1]
        return (grad, x, *window, one, ceil, found), {}

    def avg_backward(m):
        x = m(*size)
        return (m(*average(x, *window, ceil).shape), x, *window, ceil, True, None), {}

    yield f"max_pool{count}d_with_indices_backward", max_backward
    yield f"avg_pool{count}d_backward", avg_backward


def _padding(kind, count):
    size, pad = (2, 3, *(5, 6, 7)[:count]), [1, 2, 2, 0, 1, 1][: 2 * count]
    wide = [n + sum(pad[2 * i : 2 * i + 2]) for i, n in enumerate(reversed(size[2:]))][::-1]
    for batch in (size[:2], size[1:2]):
        yield f"{kind}_pad{count}d", lambda m, b=batch: ((m(*b, *size[2:]), pad), {})
        yield (
            f"{kind}_pad{count}d_backward",
            lambda m, b=batch: ((m(*b, *wide), m(*b, *size[2:]), pad), {}),
        )


def _losses():
    more = {"smooth_l1_loss": (1.0,), "huber_loss": (1.0,)}
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
        for reduction in (0, 1, 2):
            args = (reduction, *more.get(name, ()))
            yield name, lambda m, a=args: ((m(3, 4, 5), m(3, 4, 5), *a), {})
            yield (
                f"{name}_backward",
                lambda m, a=args: (
                    (m(*(3, 4, 5)[: 0 if a[0] else 3]), m(3, 4, 5), m(3, 4, 5), *a),
                    {},
                ),
            )
    for reduction in (0, 1, 2):
        for weighted in (False, True):

            def forward(m, r=reduction, weighted=weighted):
                return (m(3, 4) / 6, m(3, 4) / 6, m(3, 4) if weighted else None, r), {}

            def backward(m, r=reduction, forward=forward):
                return (m(*(3, 4)[: 0 if r else 2]), *forward(m)[0]), {}

            def logits(m, r=reduction, forward=forward):
                return (*forward(m)[0][:3], None, r), {}

            yield "binary_cross_entropy", forward
            yield "binary_cross_entropy_backward", backward
            yield "binary_cross_entropy_with_logits", logits
            for shape, to in (((5, 4), (5,)), ((4,), ())):
                yield from _classes("nll_loss", shape, to, reduction, weighted)
            yield from _classes("nll_loss2d", (2, 4, 3, 5), (2, 3, 5), reduction, weighted)
            yield from _margins(reduction, weighted)


def _margins(reduction, weighted):
    for shape, to in (((5, 4), (5,)), ((4,), ()), ((4,), (1,))):

        def of_class(m, shape=shape, to=to):
            x = m(*shape)
            weight = make((4,), dtype=x.dtype) if weighted else None
            return (x, classes(*to), 1, 1, weight, reduction), {}

        yield "multi_margin_loss", of_class
    for shape in ((5, 4), (4,), ()):
        yield (
            "multilabel_margin_loss_forward",
            lambda m, shape=shape: ((m(*shape), classes(*shape) * 0, reduction), {}),
        )


def _classes(name, shape, to, reduction, weighted):
    def forward(m):
        x = m(*shape)
        return (
            x,
            classes(*to),
            make((4,), dtype=x.dtype) if weighted else None,
            reduction,
            -100,
        ), {}

    def backward(m):
        args, _ = forward(m)
        total = args[0].new_ones(())
        return (m(*(() if reduction else to)), *args, total), {}

    yield f"{name}_forward", forward
    yield f"{name}_backward", backward


def _layer_norm(parameters, mask, mixed=False):
    def call(m):
        x = m(3, 4, 6)
        kind = torch.float32 if mixed else x.dtype
        weight, bias = (make((6,), dtype=kind) if p else None for p in parameters)
        out, mean, deviation = torch.ops.aten.native_layer_norm(x, [6], weight, bias, 1e-5)
        return (m(*out.shape), x, [6], mean, deviation, weight, bias, mask), {}

    return "native_layer_norm_backward", call


def _group_norm(weighted, mask, mixed=False):
    def call(m):
        x = m(2, 4, 3, 5)
        weight = make((4,), dtype=torch.float32 if mixed else x.dtype) if weighted else None
        sizes = (2, 4, 15, 2)
        _, mean, deviation = torch.ops.aten.native_group_norm(x, weight, weight, *sizes, 1e-5)
        return (m(*x.shape), x, mean, deviation, weight, *sizes, mask), {}

    return "native_group_norm_backward", call


def _group_norm_forward(m):
    x, weight = m(2, 4, 3, 5), make((4,), dtype=m(1).dtype)
    return (x, weight, weight, 2, 4, 15, 2, 1e-5), {}


def _batch_norm_backward(weighted, mask):
    def call(m):
        x = m(2, 4, 3, 5)
        weight = make((4,), dtype=x.dtype) if weighted else None
        saved = make((4,), dtype=x.dtype)
        return (m(*x.shape), x, weight, None, None, saved, saved, True, 1e-5, mask), {}

    return "native_batch_norm_backward", call


def _batch_norm(m, training, mixed=False):
    x = m(2, 4, 3, 5)
    kind = torch.float32 if mixed else x.dtype
    return (x, *(make((4,), dtype=kind) for _ in range(4)), training, 0.1, 1e-5)


def _scatters():
    def call(m, dim, value=None):
        x = m(4, 5, 6)
        index = torch.zeros(2, 3, 4, dtype=I64)
        return (x, dim, index, m(3, 3, 4) if value is None else value), {}

    for dim in (0, 1, -1):
        for name in ("scatter.src", "scatter_add"):
            yield name, lambda m, dim=dim: call(m, dim)
        yield "scatter.value", lambda m, dim=dim: call(m, dim, 1)
        yield "scatter.value", lambda m, dim=dim: call(m, dim, 1.5)


def _attention_backward(m):
    q, k = m(2, 4, 5, 8), m(2, 4, 7, 8)
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, sums = forward(q, k, k)
    return (m(2, 4, 5, 8), q, k, k, out, sums, 0.0, False), {}


PLACES = (
    ("select_scatter", lambda m: ((m(3, 4, 5), m(3, 5), 1, -1), {})),
    ("select_scatter", lambda m: ((m(3, 4, 5), m(4, 5), 1, 0), {})),  # wrong sizes
    ("slice_scatter", lambda m: ((m(3, 4, 5), m(3, 2, 5), 1, 0, None, 2), {})),
    ("slice_scatter", lambda m: ((m(3, 4, 5), m(3, 4, 4), -1, 1), {})),
    ("slice_scatter", lambda m: ((m(3, 4, 5)[1:], m(1, 4, 5), 0, 1), {})),
    ("diagonal_scatter", lambda m: ((m(3, 4), m(3)), {})),
    ("as_strided_scatter", lambda m: ((m(3, 4), m(2, 2), [2, 2], [4, 1], 1), {})),
    ("as_strided_scatter", lambda m: ((m(3, 4), m(2, 2), [2, 2], [40, 1], 1), {})),
    ("as_strided", lambda m: ((m(3, 4), [2, 2], [1, 4]), {})),
    ("as_strided", lambda m: ((m(3, 4)[1:], [2, 2], [1, 4]), {})),
    ("as_strided", lambda m: ((m(3, 4), [2, 0], [1, 4], 3), {})),
    ("as_strided", lambda m: ((m(3, 4), [5], [0], 11), {})),
    ("as_strided", lambda m: ((m(3, 4), [2, 2], [100, 4], 3), {})),  # out of bounds
    ("index_add", lambda m: ((m(5, 4), 0, torch.tensor([1, 2, 1]), m(3, 4)), {"alpha": 2})),
    ("index_add", lambda m: ((m(5, 4), -1, torch.tensor([1, 2, 1]), m(5, 3)), {})),
    ("index_put", lambda m: ((m(5, 4), [torch.tensor([1, 2])], m(2, 4)), {})),
    ("index_put", lambda m: ((m(5, 4), [torch.tensor([1, 2])], m(1, 1), True), {})),
    ("index_put", lambda m: ((m(5, 1), [torch.tensor([[1, 2]]), torch.tensor([0])], m(1, 2)), {})),
    ("index_put", lambda m: ((m(5, 4), [torch.tensor([1, 2])], m(3, 4)), {})),  # wrong sizes
)
_POINTWISE = (
    ("glu", lambda m: ((m(4, 6), -1), {})),
    ("glu", lambda m: ((m(4, 6, 3), 0), {})),
    ("glu_backward", lambda m: ((m(4, 3), m(4, 6), -1), {})),
    ("log_sigmoid_forward", lambda m: ((m(4, 6, 3),), {})),
    (
        "log_sigmoid_backward",
        lambda m: ((m(4, 6), (x := m(4, 6)), torch.ops.aten.log_sigmoid_forward(x)[1]), {}),
    ),
    ("_prelu_kernel", lambda m: ((m(2, 4, 3), m(4, 1)), {})),
    ("_prelu_kernel", lambda m: ((m(2, 4, 3), m(1)), {})),
    ("_prelu_kernel_backward", lambda m: ((m(2, 4, 3), m(2, 4, 3), m(4, 1)), {})),
    ("xlogy.Tensor", lambda m: ((m(4, 6), m(6)), {})),
    ("clamp_min.Tensor", lambda m: ((m(4, 6), m(6)), {})),
    ("clamp_max.Tensor", lambda m: ((m(4, 6), m()), {})),
    ("clamp_min_.Tensor", lambda m: ((m(4, 6), m(6)), {})),
    ("clamp_", lambda m: ((m(4, 6), 0.5), {})),
    ("sgn", lambda m: ((m(4, 6),), {})),
    ("masked_fill.Scalar", lambda m: ((m(4, 6), m(6) > 2, 0), {})),
    ("masked_fill.Scalar", lambda m: ((m(4, 6), m(4, 6) > 2, 0.0), {})),
    ("norm.ScalarOpt_dim", lambda m: ((m(4, 6), 2, [1], True), {})),
    ("sort", lambda m: ((m(4, 6), 0, True), {})),
    ("sort.stable", lambda m: ((m(4, 6),), {"stable": True})),
    ("_safe_softmax", lambda m: ((m(2, 3, 4), -1), {})),
    ("constant_pad_nd", lambda m: ((m(2, 1, 4, 3, 3), [0, 0, 0, 0, 1, 0], 0.0), {})),
    ("constant_pad_nd", lambda m: ((m(2, 4, 3, 3), [0, 0, -1, 0], 0.0), {})),
    ("constant_pad_nd", lambda m: ((m(2, 4, 3, 3), [0, 0, -2, -2], 0.0), {})),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
)
_RESAMPLING = (
    ("pixel_shuffle", lambda m: ((m(2, 12, 4, 3), 2), {})),
    ("pixel_unshuffle", lambda m: ((m(2, 3, 4, 6), 2), {})),
    ("affine_grid_generator", lambda m: ((m(2, 2, 3), [2, 3, 4, 6], False), {})),
    ("affine_grid_generator", lambda m: ((m(2, 3, 4), [2, 3, 4, 6, 5], True), {})),
    ("grid_sampler_2d", lambda m: ((m(2, 3, 4, 6), m(2, 5, 7, 2), 0, 0, False), {})),
    ("grid_sampler_3d", lambda m: ((m(2, 3, 4, 6, 3), m(2, 5, 7, 2, 3), 0, 0, False), {})),
    (
        "grid_sampler_2d_backward",
        lambda m: (
            (m(2, 3, 5, 7), m(2, 3, 4, 6), m(2, 5, 7, 2), 0, 0, False, [True, True]),
            {},
        ),
    ),
)
NETWORK_CALLS = [
    *(pair for calls in CONVOLUTIONS + COLUMNS for pair in calls.items()),
    *(
        pair
        for mode, count, *settings in (
            *(("upsample_nearest", n) for n in (1, 2, 3)),
            *(("_upsample_nearest_exact", n) for n in (1, 2, 3)),
            ("upsample_linear", 1, False),
            ("upsample_bilinear", 2, True),
            ("upsample_bicubic", 2, False),
            ("upsample_trilinear", 3, False),
        )
        for pair in _upsampling(mode, count, *settings).items()
    ),
    *(pair for count in (2, 3) for pair in _windows(count)),
    *(p for kind in ("reflection", "replication") for n in (1, 2, 3) for p in _padding(kind, n)),
    *_losses(),
    _layer_norm((True, True), ALL),
    _layer_norm((True, False), [True, True, False]),
    _layer_norm((False, False), [True, False, False]),
    _layer_norm((True, True), ALL, mixed=True),
    ("native_group_norm", _group_norm_forward),
    _group_norm(True, ALL),
    _group_norm(True, ALL, mixed=True),
    _group_norm(False, [True, False, False]),
    _batch_norm_backward(True, ALL),
    _batch_norm_backward(False, [True, False, False]),
    ("_native_batch_norm_legit_functional", lambda m: (_batch_norm(m, True), {})),
    ("native_batch_norm", lambda m: (_batch_norm(m, True), {})),
    ("native_batch_norm", lambda m: (_batch_norm(m, False), {})),
    (
        "_native_batch_norm_legit.no_stats",
        lambda m: ((*_batch_norm(m, True)[:3], True, 0.1, 1e-5), {}),
    ),
    *_scatters(),
    *PLACES,
    *_POINTWISE,
    *_RESAMPLING,
]
# What runs on GPUs only, or with other types than on the CPU.
GPU_CALLS = [
    (name, lambda m, given=given: (_batch_norm(m, *given), {}))
    for name in ("cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit_functional")
    for given in ((True,), (True, True), (False,), (False, True))
]


def _cudnn_backward(m):
    x, *parameters = _batch_norm(m, True, mixed=True)[:5]
    return (x, m(2, 4, 3, 5), *parameters, parameters[-1], 1e-5, make((0,), dtype=torch.uint8)), {}


GPU_CALLS.append(("cudnn_batch_norm_backward", _cudnn_backward))
