"""``same``: whether a result is as right as a reference, told leaf by leaf.

Close to the reference is right. What is not may still be: a reference in low precision is itself
off, so a third result, computed in float64, is the referee. A result may be farther from it than
the reference is by a small factor only. (The arbitration is the one that PyTorch's own benchmarks
use.)
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchsmith.errors import ComparisonError, StructureError

log = logging.getLogger("torchsmith.repro")

COSINE = 0.99  # two results that point the same way at least so much are the same
SMALL = 1000  # elements; below that the errors of a few of them are most of the mean
LOOSE = 2e-2  # a tolerance that says that little is expected
_PLAIN = (str, bytes, int, bool, type(None), torch.device, torch.dtype, torch.layout)
_FIELDS_OF = ("torch.distributions", "transformers", "detectron2")  # whose objects are results


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """What is said of one leaf of a result.

    Attributes:
        path: where it is, as Python text: ``result[0]['logits']``.
        problem: why it is not the same; empty when it is.
        error: the largest absolute difference, where there is one to tell.
        rms: root mean square errors of the result and of the reference against the referee.
    """

    path: str
    problem: str = ""
    error: float | None = None
    rms: tuple[float, float] | None = None

    def __str__(self) -> str:
        if not self.problem:
            return f"{self.path}: same"
        text = f"{self.path}: {self.problem}"
        if self.error is not None:
            text += f", largest difference {self.error:.3g}"
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two results are the same; true or false, and printed with the leaves that differ."""

    leaves: tuple[Leaf, ...]

    @property
    def different(self) -> tuple[Leaf, ...]:
        """The leaves that are not the same."""
        return tuple(leaf for leaf in self.leaves if leaf.problem)

    def __bool__(self) -> bool:
        return not self.different

    def __str__(self) -> str:
        if self:
            return f"same in all of {len(self.leaves)} places"
        return "\n".join(map(str, self.different))


@dataclasses.dataclass(frozen=True, slots=True)
class _Comparison:
    """The options of one call of ``same``."""

    cos_similarity: bool
    tol: float
    equal_nan: bool
    exact_dtype: bool
    exact_stride: bool
    relax_numpy_equality: bool
    ignore_non_fp: bool
    larger_multiplier: bool

    # --------------------------------------------------------------------------- containers

    def walk(self, ref: Any, res: Any, third: Any, path: str) -> Iterator[Leaf]:
        """The leaves below ``ref``."""
        if isinstance(ref, (list, tuple, torch.nn.ParameterList, torch.Size)):
            yield from self._sequence(ref, res, third, path)
        elif type(ref).__name__ == "QuestionAnsweringModelOutput":
            yield from self.walk(ref.loss, res.loss, _part(third, "loss"), f"{path}.loss")
        elif isinstance(ref, Mapping):
            yield from self._mapping(ref, res, third, path)
        elif isinstance(ref, (set, frozenset)):
            yield Leaf(path, "" if ref == res else f"{_short(res)}, not {_short(ref)}")
        elif isinstance(ref, (torch.Tensor, float, complex)):
            yield self._tensor(ref, res, third, path)
        elif isinstance(ref, _PLAIN):
            right = self.ignore_non_fp or (type(ref) is type(res) and ref == res)
            yield Leaf(path, "" if right else f"{_short(res)}, not {_short(ref)}")
        elif _is_numpy(ref):
            yield self._numpy(ref, res, third, path)
        elif (names := _field_names(ref)) is not None:
            if type(ref) is not type(res):
                yield Leaf(path, f"a {type(res).__name__}, not a {type(ref).__name__}")
                return
            for name in names:
                one, two = getattr(ref, name), getattr(res, name)
                yield from self.walk(one, two, _part(third, name), f"{path}.{name}")
        else:
            raise ComparisonError(
                f"cannot compare {path}: a {type(ref).__module__}.{type(ref).__qualname__} is no "
                "tensor, number, text, container or dataclass of these"
            )

    def _sequence(self, ref: Any, res: Any, third: Any, path: str) -> Iterator[Leaf]:
        if not isinstance(res, (list, tuple, torch.nn.ParameterList, torch.Size)):
            raise StructureError(f"{path}: a {type(res).__name__}, not a {type(ref).__name__}")
        if len(ref) != len(res):
            yield Leaf(path, f"{len(res)} items, not {len(ref)}")
            return
        for number, (one, two) in enumerate(zip(ref, res)):
            yield from self.walk(one, two, _part(third, number), f"{path}[{number}]")

    def _mapping(self, ref: Any, res: Any, third: Any, path: str) -> Iterator[Leaf]:
        if not isinstance(res, Mapping):
            raise StructureError(f"{path}: a {type(res).__name__}, not a {type(ref).__name__}")
        if ref.keys() != res.keys():
            raise StructureError(f"{path}: keys {_short(list(res))}, not {_short(list(ref))}")
        for key in sorted(ref, key=lambda key: (str(type(key)), str(key))):
            yield from self.walk(ref[key], res[key], _part(third, key), f"{path}[{key!r}]")

    # ------------------------------------------------------------------------------- leaves

    def _numpy(self, ref: Any, res: Any, third: Any, path: str) -> Leaf:
        if hasattr(ref, "shape") and ref.shape == () and not hasattr(ref, "__array_finalize__"):
            if self.relax_numpy_equality and not _is_numpy(res):
                ref = ref.item()
            right = type(ref) is type(res) and (ref == res or (self.equal_nan and ref != ref))
            return Leaf(path, "" if right or self.ignore_non_fp else f"{res!r}, not {ref!r}")
        if type(ref) is not type(res) and not (
            self.relax_numpy_equality and isinstance(res, torch.Tensor)
        ):
            return Leaf(path, f"a {type(res).__name__}, not a {type(ref).__name__}")
        return self._tensor(torch.as_tensor(ref), torch.as_tensor(res), third, path)

    def _tensor(self, given: Any, result: Any, third: Any, path: str) -> Leaf:
        if not isinstance(result, (torch.Tensor, int, float, complex)):
            return Leaf(path, f"a {type(result).__name__}, not a {type(given).__name__}")
        ref, res = _as_tensor(given), _as_tensor(result)
        if ref.layout != res.layout:
            return Leaf(path, f"layout {res.layout}, not {ref.layout}")
        if self.exact_dtype and ref.dtype != res.dtype:
            return Leaf(path, f"dtype {res.dtype}, not {ref.dtype}")
        if ref.shape != res.shape:
            return Leaf(path, f"shape {list(res.shape)}, not {list(ref.shape)}")
        if self.exact_stride and ref.layout is torch.strided and _strides(ref) != _strides(res):
            return Leaf(path, f"strides {res.stride()}, not {ref.stride()}")
        if ref.device != res.device:
            return Leaf(path, f"device {res.device}, not {ref.device}")
        if ref.is_meta or ref.numel() == 0:
            return Leaf(path)
        if ref.dtype == torch.bool and self.ignore_non_fp:
            return Leaf(path)
        ref, res = _plain(ref), _plain(res)
        if self.cos_similarity:
            return self._cosine(ref, res, path)
        if not self.exact_dtype:
            ref = ref.to(res.dtype)
        if torch.allclose(ref, res, atol=self.tol, rtol=self.tol, equal_nan=self.equal_nan):
            return Leaf(path)
        exact = _as_tensor(third) if isinstance(third, (torch.Tensor, float)) else None
        if exact is not None and exact.dtype in (torch.float64, torch.complex128):
            return self._arbitrate(ref, res, _plain(exact), path)
        if self.ignore_non_fp and not (ref.is_floating_point() or ref.is_complex()):
            return Leaf(path)
        return Leaf(path, f"{_count(ref, res, self)}, tolerance {self.tol:g}", _largest(ref, res))

    def _cosine(self, ref: torch.Tensor, res: torch.Tensor, path: str) -> Leaf:
        one, two = ref.flatten().to(torch.float32), res.flatten().to(torch.float32)
        if torch.allclose(one, two, atol=self.tol, rtol=self.tol, equal_nan=True):
            return Leaf(path)
        score = torch.nn.functional.cosine_similarity(one, two, dim=0, eps=1e-6).item()
        return Leaf(path, "" if score >= COSINE else f"cosine similarity {score:.4g} < {COSINE}")

    def _arbitrate(
        self, ref: torch.Tensor, res: torch.Tensor, exact: torch.Tensor, path: str
    ) -> Leaf:
        own, allowed = rmse(exact, res), rmse(exact, ref)
        found = own, allowed
        if torch.isnan(ref).any() and not torch.isnan(res).any() and not math.isnan(own):
            # better than the reference, which overflowed
            loose = max(self.tol, 4e-2)
            if torch.allclose(exact.to(res.dtype), res, atol=loose, rtol=loose):
                return Leaf(path, rms=found)
        factor = 2.0
        if exact.numel() < SMALL or tuple(ref.shape[2:]) == (1, 1) or self.tol >= LOOSE:
            factor = 3.0
        if self.larger_multiplier and exact.numel() <= 10:
            factor = 10.0
        if own <= factor * allowed + self.tol / 10 or (
            self.equal_nan and math.isnan(own) and math.isnan(allowed)
        ):
            return Leaf(path, rms=found)
        return Leaf(
            path,
            f"RMS error {own:.3g} against float64, where the reference has {allowed:.3g} "
            f"(shape {list(ref.shape)}, {ref.dtype}, factor {factor:g}, tolerance {self.tol:g})",
            _largest(ref, res),
            found,
        )


def same(
    ref: object,
    res: object,
    fp64_ref: object = None,
    *,
    cos_similarity: bool = False,
    tol: float = 1e-4,
    equal_nan: bool = False,
    exact_dtype: bool = True,
    exact_stride: bool = False,
    relax_numpy_equality: bool = False,
    ignore_non_fp: bool = False,
    use_larger_multiplier_for_smaller_tensor: bool = False,
    log_error: Callable[..., object] | None = None,
) -> Verdict:
    """Whether ``res`` is as right as ``ref``.

    Args:
        ref: the reference: a tensor, number, text, list, tuple, set, mapping, dataclass or model
            output, in any nest. Lists match tuples.
        res: what is to be judged.
        fp64_ref: the same computed in float64, in a nest of the same form: where ``res`` is not
            close to ``ref``, this decides.
        cos_similarity: tensors are the same when they point the same way.
        tol: absolute and relative tolerance.
        equal_nan: NaN is the same as NaN.
        exact_dtype, exact_stride: other dtypes, other strides are a difference.
        relax_numpy_equality: a Python number or tensor may stand for one of numpy.
        ignore_non_fp: only floating-point values are compared.
        use_larger_multiplier_for_smaller_tensor: be generous with tensors of up to ten elements.
        log_error: called with a format and its arguments for each leaf that differs; by default an
            error is logged.

    Returns:
        A verdict that is true or false, and prints as the leaves that differ.

    Raises:
        StructureError: one is a container and the other is not, or a mapping has other keys.
        ComparisonError: there is something that cannot be compared.
    """
    comparison = _Comparison(
        cos_similarity, tol, equal_nan, exact_dtype, exact_stride, relax_numpy_equality,
        ignore_non_fp, use_larger_multiplier_for_smaller_tensor,
    )  # fmt: skip
    with torch.no_grad():
        verdict = Verdict(tuple(comparison.walk(ref, res, fp64_ref, "result")))
    for leaf in verdict.different:
        (log.error if log_error is None else log_error)("not the same: %s", leaf)
    return verdict


def rmse(ref: torch.Tensor, res: torch.Tensor) -> float:
    """Root of the mean squared difference, computed in the wider of the two dtypes."""
    return float(torch.sqrt(torch.mean((ref - res).abs().square())))


def _part(value: Any, key: object) -> Any:
    """The part of the referee that belongs to a part of the reference; None where it has none."""
    try:
        if isinstance(key, str) and not isinstance(value, Mapping):
            return getattr(value, key)
        return value[key]
    except (TypeError, KeyError, IndexError, AttributeError):
        return None


def _field_names(value: Any) -> list[str] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [f.name for f in dataclasses.fields(value) if f.compare]
    kind = type(value)
    known = kind.__module__.startswith(_FIELDS_OF) or kind.__name__.endswith("Output")
    return sorted(n for n in vars(value) if not n.startswith("__")) if known else None


def _is_numpy(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "numpy"


def _as_tensor(value: Any) -> torch.Tensor:
    return value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor that arithmetic takes."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.to(torch.float32)  # float8 has no arithmetic
    return tensor


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides that matter: of dimensions with more than one place."""
    return [s for n, s in zip(tensor.shape, tensor.stride()) if n > 1]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_complex() else tensor.to(torch.float64)


def _largest(ref: torch.Tensor, res: torch.Tensor) -> float:
    return float((_wide(ref) - _wide(res)).abs().nan_to_num(nan=math.inf).max())


def _count(ref: torch.Tensor, res: torch.Tensor, options: _Comparison) -> str:
    close = torch.isclose(ref, res, atol=options.tol, rtol=options.tol, equal_nan=options.equal_nan)
    wrong = (~close).nonzero()
    where = wrong[0].tolist()
    index = tuple(where)
    return (
        f"{len(wrong)} of {close.numel()} elements differ, first at {where}: "
        f"{res[index].item():.6g}, not {ref[index].item():.6g}"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
