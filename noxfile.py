"""Every task of the project. ``nox -l`` lists them; ``nox -s tests`` and ``nox -t ci`` check all.

Each package is tested in an environment that holds only that package, its declared dependencies
and its declared siblings, so that an undeclared import fails here and not at a user.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["tests"]
nox.options.error_on_missing_interpreters = True
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
# package folder -> sibling folders that it declares, in installation order
SIBLINGS = {
    "guards": [],
    "kernels": [],
    "tracer": ["guards"],
    "fx-backend": ["guards"],
    "torchsmith": ["guards", "kernels", "tracer", "fx-backend"],
}
IMPORTS = {name: "torchsmith_" + name.replace("-", "_") for name in SIBLINGS} | {
    "torchsmith": "torchsmith"
}
MATRIX = ["3.12", "3.13"]
TORCHS_TRITON = "triton==3.7.1"  # that CUDA builds of the pinned torch bring


def task(**options: Any) -> Callable[[Callable[[nox.Session], None]], Any]:
    """``nox.session``; with ``NOX_DISCARD=1`` an environment is deleted when its session ends.

    Those with a torch for GPUs take 5 GB of disk each.
    """

    def register(function: Callable[[nox.Session], None]) -> Any:
        @nox.session(**options)
        @functools.wraps(function)
        def run(session: nox.Session) -> None:
            try:
                function(session)
            finally:
                if os.environ.get("NOX_DISCARD") == "1":
                    shutil.rmtree(session.virtualenv.location)
                    if session.python:  # no other session is of that Python
                        shutil.rmtree(torch_folder(session), ignore_errors=True)

        return run

    return register


def torch_folder(session: nox.Session) -> Path:
    """Where torch lies for the Python of a session."""
    return ROOT / ".nox" / f"torch-{session.python or 'default'}"


def torch(session: nox.Session) -> None:
    """Show the session the pinned torch, with what it depends on, before all else: pip finds it
    satisfied. All sessions of one Python share a copy, which takes a minute and 1 GB to install."""
    folder, pinned = torch_folder(session), ROOT / "constraints" / "torch.txt"
    made_of = f"{pinned.read_text()}{session.run('python', '-VV', silent=True)}"
    stamp = folder / "made-of.txt"  # written last
    if not stamp.exists() or stamp.read_text() != made_of:
        shutil.rmtree(folder, ignore_errors=True)
        there = ("--no-compile", "--ignore-installed", "--prefix", str(folder))
        session.install("-q", *there, "-r", str(pinned))
        stamp.write_text(made_of)
    (shared,) = folder.glob("lib/python*/site-packages")
    (own,) = Path(session.virtualenv.location).glob("lib/python*/site-packages")
    (own / "torch.pth").write_text(f"{shared}\n")


def install(session: nox.Session, *packages: str) -> None:
    """Install package folders of this repository with their third-party dependencies. They are
    built by one installation of the build backend, not by one in an environment of each."""
    tools(session, "hatchling")
    tools(session, "--no-build-isolation", *(f"packages/{name}" for name in packages))


def tools(session: nox.Session, *names: str) -> None:
    """Install tools at the versions of ``constraints/tools.txt``; modules that are never imported
    are not compiled, which took half of the time."""
    session.install("-q", "--no-compile", "-c", "constraints/tools.txt", *names)


def script(session: nox.Session, path: str, packages: Iterable[str], *names: str) -> None:
    """Run a script with package folders and tools installed; arguments pass on."""
    torch(session)
    tools(session, "numpy", *names)
    install(session, *packages)
    session.run("python", path, *session.posargs)


def pytest(session: nox.Session, *args: str, env: dict[str, str] | None = None) -> None:
    """Run pytest with warnings of ours as errors and a fresh compile cache. Threads of kernels wait
    asleep: where two workers share two cores, spinning took 40 % of the time of some tests."""
    cache = session.create_tmp()
    common = {"TORCHSMITH_CACHE_DIR": f"{cache}/cache", "OMP_WAIT_POLICY": "PASSIVE"}
    session.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *args,
        *session.posargs, env={**common, **(env or {})},
    )  # fmt: skip


def test_package(session: nox.Session, name: str, *args: str) -> None:
    """Test one package with only its declared siblings installed; ``args`` are pytest's."""
    torch(session)
    tools(session, "pytest", "hypothesis", "pytest-xdist")
    install(session, *SIBLINGS[name], name)
    pytest(session, f"packages/{name}/tests", "-n", "2", *args)


@task(tags=["ci"])
def tests(session: nox.Session) -> None:
    """All tests on the running Python: style, types, each package alone, all together."""
    for name in ("style", "types", "guards", "tracer", "kernels", "fx-backend", "torchsmith",
                 "integration", "wheels", "readme", "docs", "isolation"):  # fmt: skip
        session.notify(name)


@task(tags=["ci"])
def style(session: nox.Session) -> None:
    """ruff, file sizes, import contracts, declared dependencies."""
    tools(session, "ruff", "import-linter", "pytest")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    env = {"PYTHONPATH": ":".join(f"packages/{name}/src" for name in SIBLINGS)}
    session.run("lint-imports", "--no-cache", env=env)
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/repository")


@task(tags=["ci"])
def types(session: nox.Session) -> None:
    """mypy --strict, package by package."""
    torch(session)
    tools(session, "mypy", "networkx", "triton")
    install(session, *SIBLINGS)
    for name in SIBLINGS:
        session.run("mypy", f"packages/{name}/src")


@task(tags=["ci"])
def guards(session: nox.Session) -> None:
    """Test the guards package alone."""
    test_package(session, "guards")


@task(tags=["ci"])
def tracer(session: nox.Session) -> None:
    """Test the tracer with guards only."""
    test_package(session, "tracer")


@task(name="fuzz-nesting", tags=["ci"])
def fuzz_nesting(session: nox.Session) -> None:
    """Random nesting of control flow, 300 programs; ``-- --programs 10000 --seed N`` for more."""
    script(session, "packages/tracer/tests/fuzz_nesting.py", ["guards", "tracer"], "pytest")


@task()
def conformance(session: nox.Session) -> None:
    """CPython's own tests, captured whole: ``-- [--failures] [MODULE...]``."""
    script(session, "packages/tracer/tests/interp/conformance.py", ["guards", "tracer"])


@task(tags=["ci"])
def kernels(session: nox.Session) -> None:
    """Test the kernels alone: as they are, and a share of the cases on a CPU through Triton's
    interpreter as well."""
    test_package(session, "kernels")
    test_interpreted(session, "--share", "3")


def test_interpreted(session: nox.Session, *args: str) -> None:
    """Test the installed kernels on a CPU through Triton's interpreter; ``args`` are pytest's."""
    interpreted = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    pytest(session, "packages/kernels/tests", "-n", "2", "-W", "ignore::RuntimeWarning", *args,
           env=interpreted)  # fmt: skip


@task(name="kernels-whole")
def kernels_whole(session: nox.Session) -> None:
    """Every case of the kernels, under Triton's interpreter, too; after a change of one."""
    test_package(session, "kernels")
    test_interpreted(session)


@task(name="fx-backend", tags=["ci"])
def fx_backend(session: nox.Session) -> None:
    """Test the backend with guards; Triton is there for the code generator's tests only, whose
    printed kernels are run under the one that torch brings, too."""
    torch(session)
    tools(session, "pytest", "hypothesis", "pytest-xdist")
    install(session, "guards", "fx-backend")
    session.install("-q", TORCHS_TRITON)
    interpreted = "packages/fx-backend/tests/codegen_triton/interpreted"
    pytest(session, interpreted, "-n", "2", "-W", "ignore::RuntimeWarning",
           env={"TRITON_INTERPRET": "1"})  # fmt: skip
    session.install("-q", "-U", "triton")
    pytest(session, "packages/fx-backend/tests", "-n", "2")


@task(name="fuzz-composition")
def fuzz_composition(session: nox.Session) -> None:
    """Random programs against eager, for long: ``-- --programs 20000 --seed 1 [--symbolic]``."""
    path = "packages/fx-backend/tests/fuzz_composition.py"
    script(session, path, ["guards", "fx-backend"], "triton")


@task(name="fuzz-mutation")
def fuzz_mutation(session: nox.Session) -> None:
    """Facts that change between two calls, for long: ``-- --programs 10000 --seed 1``."""
    script(session, "packages/tracer/tests/fuzz_mutation.py", ["guards", "tracer"])


@task(name="fuzz-calls")
def fuzz_calls(session: nox.Session) -> None:
    """Sessions whose calls differ in anything, for long: ``-- --programs 10000 --seed 1``."""
    script(session, "packages/torchsmith/tests/fuzz_calls.py", SIBLINGS, "pytest")


@task(name="op-gradients")
def op_gradients(session: nox.Session) -> None:
    """Gradients of every operator of torch's database, for long: ``-- --only linalg``."""
    script(session, "packages/torchsmith/tests/op_gradients.py", SIBLINGS, "pytest")


@task(tags=["ci"])
def torchsmith(session: nox.Session) -> None:
    """Test the front door with everything installed."""
    test_package(session, "torchsmith")


@task(tags=["ci"])
def integration(session: nox.Session) -> None:
    """Real models through all packages, against eager."""
    torch(session)
    tools(session, "pytest", "pytest-xdist", "transformers")
    install(session, *SIBLINGS)
    zoo = "tests/integration/test_zoo.py"
    # A file is one worker's, and the zoo apart: the others patch classes of transformers.
    pytest(session, "tests/integration", f"--ignore={zoo}", "-n", "2", "--dist", "loadfile")
    pytest(session, zoo, "-n", "2")


@task(python=MATRIX, tags=["ci"])
def matrix(session: nox.Session) -> None:
    """guards, tracer and kernels on the other Pythons, in one environment per Python: all that
    follows bytecode, and a share of the cases of each other test. What torch and Triton give does
    not depend on Python: tests of fake tensors run on one only, of kernels little more."""
    fake = "packages/guards/tests/fake"
    for name, share in (("guards", 8), ("tracer", 8), ("kernels", 16)):  # alone at its turn
        test_package(session, name, f"--ignore={fake}", "--share", str(share))


@task(name="matrix-whole", python=MATRIX)
def matrix_whole(session: nox.Session) -> None:
    """Every test of a package on the other Pythons; before a release, too long for every run."""
    for name in ("guards", "tracer", "kernels", "fx-backend"):
        test_package(session, name)


def build_wheels(session: nox.Session) -> None:
    """Build all wheels into an empty ``dist``, and forget those installed from there before."""
    tools(session, "build", "hatchling")
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", *IMPORTS.values(), silent=True)
    shutil.rmtree(DIST, ignore_errors=True)
    for name in SIBLINGS:
        build = ("-m", "build", "-w", "-n", "-o", str(DIST), f"packages/{name}")
        session.run("python", *build, silent=True)


@task(tags=["ci"])
def wheels(session: nox.Session) -> None:
    """Build all wheels and use each in isolation, installed by its path from ``dist`` only."""
    build_wheels(session)
    torch(session)
    tools(session, "bytecode", "sympy")
    script = "tests/isolation/use_installed.py"
    for name in ("guards", "tracer"):
        wheel = next(DIST.glob(f"{IMPORTS[name]}-*.whl"))
        session.install("-q", "--force-reinstall", "--no-deps", "--no-index", str(wheel))
        session.run("python", script, IMPORTS[name])


@task()
def release(session: nox.Session) -> None:
    """Rehearse a release, ``-- --dry-run``: wheels, metadata, plan, each wheel alone, the demo."""
    build_wheels(session)
    torch(session)
    tools(session, "bytecode", "sympy", "numpy", "triton", "transformers", "towncrier", "packaging")
    session.run("python", "docs/tools/release.py", *session.posargs)


@task(tags=["ci"])
def readme(session: nox.Session) -> None:
    """Run the Python blocks of every README, check its commands, and run the examples."""
    torch(session)
    tools(session, "pytest", "pytest-xdist", "transformers")
    install(session, *SIBLINGS)
    pytest(session, "tests/readme", "-n", "2")


@task(tags=["ci"])
def docs(session: nox.Session) -> None:
    """Build the documentation strictly into ``build/site``, and check what is there."""
    tools(session, "mkdocs-material", "mkdocstrings-python", "pytest", "ruff", "towncrier")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/docs")


@task(tags=["ci"])
def isolation(session: nox.Session) -> None:
    """Self-test: a planted undeclared import must make the isolated test of a package fail."""
    torch(session)
    tools(session, "pytest")
    session.run("python", "tests/isolation/planted_import.py", str(session.create_tmp()))


@task(tags=["ci"])
def demo(session: nox.Session) -> None:
    """Train a small GPT and run an image model, compare with eager and torch.compile."""
    script(session, "benchmarks/demo.py", SIBLINGS, "transformers")


@task()
def bench(session: nox.Session) -> None:
    """Measure every model side by side: eager, torch.compile, torchsmith. Arguments pass on."""
    script(session, "benchmarks/run.py", SIBLINGS, "transformers", "matplotlib")


@task(name="bench-kernels")
def bench_kernels(session: nox.Session) -> None:
    """Measure every kernel beside its peers; needs a GPU. Arguments pass on."""
    torch(session)
    tools(session, "liger-kernel", "matplotlib", "transformers")
    install(session, "kernels")
    session.run("python", "benchmarks/kernels/run.py", *session.posargs)
    if not session.posargs:
        session.run("python", "benchmarks/kernels/render.py")


@task(name="format")
def format_(session: nox.Session) -> None:
    """Rewrite the sources to the house style."""
    tools(session, "ruff")
    session.run("ruff", "check", "--fix", ".")
    session.run("ruff", "format", ".")
