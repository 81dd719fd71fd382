"""Print the table of targets for the arrangement of the source: measure, now, target, met.

    python scripts/house.py            # the table, and the names behind every row that misses its target
    python scripts/house.py --check    # the same; exit code 1 if a row misses its target
    python scripts/house.py --static   # without the two training runs that count the files of one step

Every row but the two profiled ones is computed from the source text alone. `--root` measures another checkout.
"""

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

SHIMS = ("engine/", "recipes.py")
"""Paths of version 0.1 that user code imports; each file re-exports names from where they are now."""

FROZEN = frozenset({"delta_coefficients", "make_plan"})
"""Functions of the public API (`tokencredit/__init__.py`) whose signatures stay as they are."""

RECORDS = frozenset({"Rollouts", "Credited", "StepPlan", "StepResult", "Scored", "TokenScores"})
"""The records of types.py that describe one batch."""

HOLD_BATCHES = ("trainer", "rollout", "optim", "pipeline", "policy", "engine", "engine/local")
"""Packages whose classes are searched for containers; the last two exist in checkouts before the move only."""

DEVICES = frozenset({"cpu", "cuda", "meta", "mps", "xpu"})
"""`device.type == "cuda"` is torch's own way to name a device and says nothing about a method."""

WORKED_EXAMPLE = Path("tests/runs/test_worked_example.py")
"""Follows CONTRIBUTING.md to add a credit method with a recipe; fails if the page's titled blocks are not all that is edited by hand."""


class Target(NamedTuple):
    measure: str
    most: float
    least: float = 0

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}" if self.least else f"{'<= ' if self.most else ''}{self.most:g}"


TARGETS = {
    "core": Target("source files, core", 290),
    "lab": Target("source files, lab", 55),
    "median": Target("median lines per file, core", 130, 100),
    "small": Target("files under 60 lines, one importer in their package", 10),
    "flat": Target("files in the largest flat folder", 20),
    "containers": Target("containers of one batch outside types.py", 4),
    "dapo": Target("own files entered by one `dapo` training step", 40),
    "delta": Target("own files entered by one full `delta` training step", 60),
    "loop": Target("lines of trainer/loop.py", 150),
    "parameters": Target("functions with 10 or more parameters", 0),
    "by_hand": Target("files edited by hand to add a credit method", 7),
    "types": Target("comparisons of .type with a name outside config/", 0),
}
PROFILED = ("dapo", "delta")

CEILINGS = {"containers": 5, "dapo": 52, "delta": 79}
"""Rows above their target, and the count that they must not exceed: only lower these. docs/architecture.md says why they are above it."""


class Count(NamedTuple):
    value: float | None
    names: Sequence[str] = ()
    """What was counted, where names say more than the number."""


class Source(NamedTuple):
    path: str
    """Relative to src/tokencredit."""
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def module(self) -> str:
        dotted = f"tokencredit/{self.path}".removesuffix(".py").replace("/", ".")
        return dotted.removesuffix(".__init__")


def is_shim(path: str) -> bool:
    return path.startswith(SHIMS)


class House:
    """One checkout, read once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        package = root / "src" / "tokencredit"
        texts = {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
        every = [Source(path, text, ast.parse(text)) for path, text in texts.items()]
        # Before the move, `engine/` held the engines themselves.
        self.moved = not (package / "engine" / "local").exists()
        self.shims = [source for source in every if self.moved and is_shim(source.path)]
        self.sources = [source for source in every if source not in self.shims]
        self.core = [source for source in self.sources if not source.path.startswith("lab/")]
        self.lab = [source for source in self.sources if source.path.startswith("lab/")]

    def static_counts(self) -> dict[str, Count]:
        return {
            "core": Count(len(self.core)),
            "lab": Count(len(self.lab)),
            "median": Count(statistics.median(source.lines for source in self.core)),
            "small": self.small_files(),
            "flat": self.largest_folder(),
            "containers": self.containers(),
            "loop": self.loop(),
            "parameters": self.parameters(),
            "by_hand": self.by_hand(),
            "types": self.type_comparisons(),
        }

    @cached_property
    def importers(self) -> dict[str, set[Source]]:
        """Module -> the files that import it."""
        found: dict[str, set[Source]] = {source.module: set() for source in self.sources}
        for source in self.sources:
            for name in imported(source.tree):
                # `from package import name` imports a module if there is one of that name, else the package.
                module = name if name in found else name.rpartition(".")[0]
                if module in found and module != source.module:
                    found[module].add(source)
        return found

    def small_files(self) -> Count:
        names = []
        for source in self.sources:
            users = self.importers[source.module]
            alone = len(users) == 1 and next(iter(users)).folder == source.folder
            if alone and source.lines < 60 and not source.path.endswith("__init__.py"):
                names.append(source.path)
        return Count(len(names), names)

    def largest_folder(self) -> Count:
        folders = [source.folder for source in self.sources]
        largest = max(folders, key=folders.count)
        return Count(folders.count(largest), [f"{largest}/"])

    def containers(self) -> Count:
        """Classes with a field that is one of RECORDS or another container."""
        fields = {
            f"{source.path}:{node.name}": (node.name, field_types(node))
            for source in self.sources
            if in_folders(source.folder, HOLD_BATCHES)
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ClassDef) and not is_protocol(node)
        }
        held, found = set(RECORDS), {}
        while new := {place: name for place, (name, types) in fields.items() if place not in found and types & held}:
            found |= new
            held |= set(new.values())
        return Count(len(found), sorted(found))

    def loop(self) -> Count:
        found = [source for source in self.sources if source.path in ("trainer/loop.py", "engine/local/train.py")]
        return Count(found[0].lines if found else None)

    def parameters(self) -> Count:
        """Outside kernels and FROZEN; `self` and `cls` are not counted."""
        names = []
        for source in self.sources:
            if in_folders(source.folder, ("kernels",)):
                continue
            for qualified, node in functions(source.tree):
                count = parameter_count(node)
                if count >= 10 and node.name not in FROZEN and not is_kernel(node):
                    names.append(f"{source.path}:{qualified}({count})")
        return Count(len(names), names)

    def by_hand(self) -> Count:
        """Files that the worked example of CONTRIBUTING.md creates or edits, if a test carries it out."""
        if not (self.root / WORKED_EXAMPLE).exists():
            return Count(None)
        page = (self.root / "CONTRIBUTING.md").read_text(encoding="utf-8")
        files = sorted(set(re.findall(r'^```\w+ title="([^"]+)"$', page, flags=re.MULTILINE)))
        return Count(len(files) or None, files)

    def type_comparisons(self) -> Count:
        where = ("config",) if self.moved else ("config", "stages", "recipes")
        names = []
        for source in self.sources:
            if in_folders(source.folder, where) or (not self.moved and source.path in ("config.py", "task_choice.py", "choices.py")):
                continue
            names += [f"{source.path}:{line}" for line in sorted(compared_types(source.tree))]
        return Count(len(names), names)


def in_folders(folder: str, names: Sequence[str]) -> bool:
    return any(folder == name or (folder.startswith(f"{name}/") and name != "engine") for name in names)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def field_types(node: ast.ClassDef) -> set[str]:
    """Names in the annotations of a class's fields, written as `field: Type`; arguments of a Callable are no field."""
    found: set[str] = set()
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            found |= names_in(statement.annotation)
    return found


def names_in(annotation: ast.expr) -> set[str]:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        # A quoted type; the axes of a tensor are text too, but no record has such a name.
        return set(re.findall(r"\w+", annotation.value))
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Callable"):
        return set()
    if isinstance(annotation, ast.Name):
        return {annotation.id}
    return set().union(*(names_in(child) for child in ast.iter_child_nodes(annotation) if isinstance(child, ast.expr)))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function, those inside classes and functions too, under its qualified name."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}{child.name}" if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, child
            yield from inside(child, f"{name}." if name else prefix)

    return inside(tree, "")


def parameter_count(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named = named[1:] if named and named[0].arg in ("self", "cls") else named
    return len(named) + sum(more is not None for more in (arguments.vararg, arguments.kwarg))


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A Triton kernel takes pointers, strides and sizes one by one; an operator registered with torch takes tensors and numbers only."""
    return any(re.search(r"\bjit\b|\bcustom_op\b", ast.unparse(decorator)) for decorator in node.decorator_list)


def compared_types(tree: ast.Module) -> Iterator[int]:
    """Lines that compare `something.type` with a literal name: ==, !=, in, not in, or a `match` statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides) and literals(sides) - DEVICES:
                yield node.lineno
        elif isinstance(node, ast.Match) and isinstance(node.subject, ast.Attribute) and node.subject.attr == "type":
            yield from (case.pattern.lineno for case in node.cases if literals([case.pattern]) - DEVICES)


def literals(nodes: Sequence[ast.AST]) -> set[str]:
    """Text that stands in these expressions themselves, also inside a tuple, list, set or pattern."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.MatchValue | ast.MatchOr):
            found |= literals(list(ast.iter_child_nodes(node)))
    return found


# A tiny run on the CPU. In the measured step everything is due, for `delta`, or nothing but training, for `dapo`.
TINY = {
    "device": "cpu",
    "threads": 1,
    "steps": 4,
    "sampling": {"prompts": 4, "group_size": 4},
    "evaluation": {"every": 0, "final_problems": 4, "final_samples": 1},
    "diagnose": {"every": 0},
    "save_every": 0,
    "save_best": False,
    "tokens_every": 0,
}
EVERYTHING = {
    "evaluation": {"every": 1, "problems": 4, "samples": 1, "final_problems": 4, "final_samples": 1},
    "diagnose": {"every": 1, "groups": 1},
    "save_every": 1,
    "tokens_every": 1,
}
RUNS: dict[str, dict[str, Any]] = {"dapo": {"recipe": "dapo", **TINY}, "delta": {"recipe": "delta", **TINY, **EVERYTHING}}
WARM_UP = 2


class StepProfile:
    """A callback that records which files the calls of one training step enter.

    The step runs from the end of one to the end of the next, so that saving, which follows the callback, is in it.
    """

    def __init__(self, package: Path) -> None:
        self.package, self.ended, self.codes = str(package), 0, set()

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        # `stepped` is what the callback was called up to version 0.1.
        return self.end_step if name in ("on_step_end", "stepped") else lambda *_, **__: None

    def end_step(self, *_: Any, **__: Any) -> None:
        self.ended += 1
        profile = self.called if self.ended == WARM_UP else None
        if self.ended in (WARM_UP, WARM_UP + 1):
            threading.setprofile(profile)
            sys.setprofile(profile)

    def called(self, frame: FrameType, event: str, _: Any) -> None:
        # The body of a module runs when it is imported, which is no call.
        if event == "call" and frame.f_code.co_name != "<module>":
            self.codes.add(frame.f_code.co_filename)

    def files(self) -> list[str]:
        return sorted(str(Path(name).relative_to(self.package)) for name in self.codes if name.startswith(self.package))


def profile_step(name: str) -> list[str]:
    """The own files that one training step of the recipe enters; runs in a process of its own."""
    import tokencredit

    profile = StepProfile(Path(tokencredit.__file__).resolve().parent)
    with tempfile.TemporaryDirectory() as folder:
        tokencredit.train(tokencredit.resolve([RUNS[name]]), Path(folder) / "run", profile)  # pyright: ignore[reportArgumentType]
    if profile.ended <= WARM_UP:
        raise RuntimeError(f"the run ended after {profile.ended} steps, before a step was measured")
    return profile.files()


def profiled_counts(root: Path) -> dict[str, Count]:
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    found = {}
    for name in PROFILED:
        command = [sys.executable, __file__, "--profile", name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the run that profiles {name} failed:\n{done.stderr[-2000:]}")
        files = json.loads(done.stdout.splitlines()[-1])
        found[name] = Count(len(files), files)
    return found


def is_met(name: str, count: Count) -> bool:
    return count.value is not None and TARGETS[name].least <= count.value <= TARGETS[name].most


def misses(counts: dict[str, Count]) -> list[str]:
    """Rows that miss their target, or where they are above it already, their ceiling."""
    return [name for name, count in counts.items() if not is_met(name, count) and (count.value or 0) > CEILINGS.get(name, -1)]


def table(counts: dict[str, Count]) -> str:
    """At most 80 columns wide."""
    lines = [f"{'measure':<56}{'now':>8} {'target':>10}  met"]
    for name, target in TARGETS.items():
        if name not in counts:
            continue
        count = counts[name]
        now = "see test" if count.value is None else f"{count.value:g}"
        met = "yes" if is_met(name, count) else ""
        lines.append(f"{target.measure:<56}{now:>8} {target!s:>10}  {met}".rstrip())
    return "\n".join(lines)


def details(counts: dict[str, Count]) -> str:
    """The names behind the containers and behind every row that misses its target."""
    blocks = []
    for name, count in counts.items():
        if count.names and (name == "containers" or not is_met(name, count)):
            body = textwrap.fill(", ".join(count.names), 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            blocks.append(f"{TARGETS[name].measure}:\n{body}")
    return "\n\n".join(blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure; default: this one")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a row misses its target")
    parser.add_argument("--static", action="store_true", help="leave out the two profiled training runs")
    parser.add_argument("--profile", choices=PROFILED, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.profile:
        print(json.dumps(profile_step(chosen.profile)))
        return 0
    house = House(chosen.root.resolve())
    counts = house.static_counts() | ({} if chosen.static else profiled_counts(house.root))
    print(table(counts))
    if house.shims:
        print(f"\nnot counted, import paths of version 0.1: {len(house.shims)} files in {', '.join(SHIMS)}")
    if named := details(counts):
        print(f"\n{named}")
    missed = misses(counts)
    if chosen.check and missed:
        print(f"\nabove target: {', '.join(missed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
