"""Functions and contexts that change torch's state: value, order with the graph's operators, and
what is left after the call, whether the change is traced or a break."""

import torch
import torchsmith_tracer
from torch.nn.attention import SDPBackend, sdpa_kernel

SDP = torch.backends.cuda
READS = {
    "seed": torch.initial_seed,
    "random": lambda: torch.get_rng_state().sum().item(),
    "dtype": torch.get_default_dtype,
    "device": lambda: str(torch.get_default_device()),
    "deterministic": torch.get_deterministic_debug_mode,
    "grad": torch.is_grad_enabled,
    "inference": torch.is_inference_mode_enabled,
    "precision": torch.get_float32_matmul_precision,
    "threads": torch.get_num_threads,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
    "anomaly": lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    "cudnn": lambda: (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "attention": lambda: (SDP.flash_sdp_enabled(), SDP.math_sdp_enabled()),
    "warn": torch.is_warn_always_enabled,
}
_threads = torch.get_num_threads()


def reset():
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(_threads)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.autograd.set_detect_anomaly(False)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.enabled = torch.backends.mkldnn.enabled = True
    SDP.enable_flash_sdp(True)
    SDP.enable_math_sdp(True)
    torch.set_warn_always(False)
    torch.set_printoptions(profile="default")


PROGRAMS = []


def program(fn):
    PROGRAMS.append(fn)
    return fn


@program
def seeds(x):
    a = torch.rand(3)
    torch.manual_seed(3)
    return a, torch.rand(3) + x, torch.initial_seed()


@program
def forks(x):
    a = torch.rand(2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        b = torch.rand(2)
    return a, b, torch.rand(3) + x


@program
def states(x):
    state = torch.get_rng_state()
    a = torch.rand(2)
    torch.set_rng_state(state)
    return a, torch.rand(2), x + torch.rand(1)


@program
def generators(x):
    own = torch.Generator()
    own.manual_seed(5)
    return torch.rand(3, generator=own) + x, own.initial_seed()


@program
def dtypes(x):
    a = torch.zeros(2)
    torch.set_default_dtype(torch.float64)
    b = torch.zeros(2) + x[:2].detach().double()
    return a, b, torch.get_default_dtype(), x * 2.0


@program
def dtypes_and_back(x):
    torch.set_default_dtype(torch.float64)
    a = torch.ones(1)
    torch.set_default_dtype(torch.float32)
    return a, torch.ones(1) + x


@program
def devices(x):
    with torch.device("meta"):
        a = torch.zeros(3)
        inside = torch.get_default_device()
    return a.device, inside, torch.zeros(2).device, x + 1


@program
def devices_left(x):
    torch.set_default_device("meta")
    return torch.zeros(2).device, x + 1


@program
def determinism(x):
    y = x * 2
    torch.use_deterministic_algorithms(True, warn_only=True)
    return y, torch.are_deterministic_algorithms_enabled()


@program
def attention(x):
    q = x.reshape(1, 1, 3, 1)
    with sdpa_kernel(SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        inside = SDP.flash_sdp_enabled()
    return out, inside, SDP.flash_sdp_enabled()


@program
def flags(x):
    with torch.backends.cudnn.flags(enabled=False):
        inside = torch.backends.cudnn.enabled
        with torch.backends.mkldnn.flags(enabled=False):
            y = x * 2
            nested = torch.backends.mkldnn.enabled
    torch.backends.cudnn.benchmark = True
    return inside, nested, y, torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark


@program
def grad_off(x):
    y = x * 2
    torch.set_grad_enabled(False)
    return y, x * 3, torch.is_grad_enabled()


@program
def grad_off_over_a_break(x):
    torch.set_grad_enabled(False)
    a = x * 2
    seen = len(repr(a.shape)), torch.initial_seed()
    b = x * 3
    torch.set_grad_enabled(True)
    return a.requires_grad, b.requires_grad, seen, x * 4


@program
def inference(x):
    with torch.inference_mode():
        y = x * 2
    return y.is_inference(), y + 0, torch.is_inference_mode_enabled()


@program
def precision(x):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    return before, torch.get_float32_matmul_precision(), x @ x


@program
def threads(x):
    torch.set_num_threads(_threads + 1)
    return torch.get_num_threads(), x + 1


@program
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x[None] @ x[:, None]
        inside = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    return y, inside, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


@program
def anomaly(x):
    with torch.autograd.set_detect_anomaly(True, False):
        inside = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        y = x * 2
    return inside, y, torch.is_anomaly_enabled()


@program
def ranges(x):
    with torch.profiler.record_function("outer"), torch.autograd.profiler.record_function("inner"):
        y = x + 1
    return y


@program
def streams(x):
    stream = torch.cpu.Stream()
    with torch.cpu.stream(stream):
        y = x + 1
    torch.cpu.synchronize()
    return y, type(stream), type(torch.cpu.current_stream())


@program
def options(x):
    torch.set_printoptions(precision=2)
    torch.set_warn_always(True)
    return str(torch.ones(1) * 1.23456), torch.is_warn_always_enabled(), x


@program
def asked_by_tracing_too(x):
    return torch.is_warn_always_enabled(), x + 1


@program
def hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        y = x * x
    return y


@program
def handled(x):
    with torch.no_grad():
        try:
            with torch.autocast("cpu"):
                torch.set_default_dtype(torch.float64)
                x.view(7)
        except RuntimeError:
            y = torch.zeros(1)
    return y, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype()


@program
def unhandled(x):
    torch.manual_seed(11)
    with torch.no_grad(), torch.device("meta"):
        torch.set_num_threads(_threads + 1)
        raise ValueError("out of all contexts")


@program
def failing(x):
    y = torch.rand(3) + x
    torch.set_grad_enabled(False)
    with torch.autocast("cpu"):
        return y[torch.tensor([9])]


def run(fn, x):
    """Result or exception, and the state that is left."""
    reset()
    try:
        try:
            result = fn(x)
        except Exception as e:
            result = (type(e), str(e))
        return result, {name: read() for name, read in READS.items()}
    finally:
        reset()


def same(a, b):
    if isinstance(a, tuple | dict):
        pairs = zip(a.values(), b.values()) if isinstance(a, dict) else zip(a, b)
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in pairs)
    if isinstance(a, torch.Tensor):
        meta = (a.dtype, a.device, a.requires_grad) == (b.dtype, b.device, b.requires_grad)
        return meta and (a.is_meta or torch.equal(a, b))
    return a == b


def test_state_is_what_eager_makes_it():
    wrong = []
    for fn in PROGRAMS:
        for needs in (False, True):
            x = torch.arange(3.0).requires_grad_(needs)
            expected = run(fn, x)
            compiled = torchsmith_tracer.compile(fn, backend="eager")
            for call in range(2):
                if not same(run(compiled, x), expected):
                    wrong.append((fn.__name__, needs, call))
            bugs = [b for b in compiled._torchsmith_region.log.breaks if b.name == "internal-error"]
            assert not bugs, (fn.__name__, bugs)
    assert not wrong


def test_state_that_changes_between_calls_is_seen():
    def reads(x):
        flags = torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()
        kinds = torch.get_default_dtype(), torch.get_float32_matmul_precision()
        numbers = torch.get_num_threads(), torch.is_anomaly_check_nan_enabled()
        backends = torch.backends.cudnn.enabled, SDP.flash_sdp_enabled()
        autocast = torch.get_autocast_dtype("cpu")
        return torch.zeros(1), torch.rand(2), flags, kinds, numbers, backends, autocast, x * 2

    setters = (
        lambda: torch.manual_seed(3),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_device("meta"),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_num_threads(_threads + 1),
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
        lambda: setattr(torch.backends.cudnn, "enabled", False),
        lambda: SDP.enable_flash_sdp(False),
    )
    limit = {"recompile_limit": 32}
    compiled = torchsmith_tracer.compile(reads, backend="eager", fullgraph=True, options=limit)
    x = torch.ones(3, requires_grad=True)
    assert same(run(compiled, x), run(reads, x))
    for n, change in enumerate(setters):
        found, expected = (
            run(lambda x, fn=fn: (change(), fn(x))[1], x) for fn in (compiled, reads)
        )
        assert same(found, expected), n
        assert same(run(compiled, x), run(reads, x)), n
