"""Who may import whom, who may read the environment, who may catch everything, and how large things may be."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the bottom up: a module imports from its own layer and from those before it. Names are those below `worker`, and
# a package stands for all of it.
LAYERS = {
    "words": "worker errors events branch folders packages",
    "references": "names quantization references template",
    "settings": "go_values environment outset config",
    "jobs": "routes fields sampling images multipart openai_extension job frames chunks openai_answer tally api_error "
    "rejection",
    "devices": "device nvml video_memory cgroups cpu_quota gpu fatbin backend verdict choice gpu_report",
    "models": "manifest selection ggml_types gguf_head gguf_file footprint shards known_digest location",
    "storage": "progress digest bounded lease storage placement stretches opened readers pace glimpse"
    " http_answer http_range s3",
    "files": "partial resumable transfer landing arrival inventory artifact store registration verification pruning",
    "mechanisms": "jit_cache jit_key fit launch stop_signal remedy server residency proxy pulse thaw metrics sources "
    "view",
    "flows": "bringer weights kernels shelf boot adapter gateway",
    "tools": "timeline patches shapes figures readme hub check arguments status_line models_command exercise bake",
    "development": "local",
    "programs": "__main__ handler",
}
PLACES = {
    name if name in {"worker", "handler"} else f"worker.{name}": layer
    for layer, names in LAYERS.items()
    for name in names.split()
}
# What stands apart imports only this, and itself.
APART: dict[str, tuple[str, ...]] = {"worker.timeline": ("worker.errors", "worker.events"), "worker.patches": ()}
# What only these, and itself, may import.
KEPT_FOR = {
    "worker.local": ("worker.__main__",),
    "worker.patches": ("worker.__main__",),
    "worker.config": (
        "worker.boot",
        "worker.bringer",
        "worker.weights",
        "worker.adapter",
        "worker.gateway",
        "worker.check",
        "worker.local.standalone",
        "worker.bake",
        "worker.readme",
        "worker.hub",
        "worker.__main__",
        "handler",
    ),
    "runpod": ("worker.adapter",),
    "pydantic": ("worker.config",),
    "prometheus_client": ("worker.metrics",),
    "pynvml": ("worker.nvml",),
    "xllamacpp": ("worker.local",),
}
# The patch tool is a developer's, like all of worker.local: it wants OLLAMA_SRC and a git without variables of its own.
READS_ENVIRONMENT = ("handler", "worker.__main__", "worker.local", "worker.patches.command", "worker.patches.source")
CATCHES_EVERYTHING = {("worker.adapter.flow", "handle"), ("worker.adapter.loop", "_take")}
MODULE_LINES = 250
FUNCTION_LINES = 50


@dataclass(frozen=True)
class Source:
    """One module: its dotted name, its text, and what was parsed from that."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


Sources = Mapping[str, Source]
Rule = Callable[[Sources], list[str]]


def sources(**texts: str) -> Sources:
    """Make modules of texts; in a name, `__` stands for a dot."""
    named = {name.replace("__", "."): text for name, text in texts.items()}
    return {name: Source(name, text) for name, text in named.items()}


@cache
def project() -> Sources:
    found = {}
    for path in [ROOT / "handler.py", *sorted((ROOT / "worker").rglob("*.py"))]:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = Source(name, path.read_text(encoding="utf-8"))
    return found


def within(name: str, places: tuple[str, ...] | list[str]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def imported(source: Source, known: Sources) -> Iterator[str]:
    """Yield what `source` imports anywhere in it: a module of `known` where there is one of that name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in known else base


def ours(source: Source, known: Sources) -> set[str]:
    return {name for name in imported(source, known) if name in known} - {source.name}


def layer_of(name: str) -> str | None:
    """Return the layer of `name` or of the package it is in; the package `worker` is no home for what nobody placed."""
    place = name
    while place not in PLACES or (place == "worker" != name):
        place, dot, _ = place.rpartition(".")
        if not dot:
            return None
    return PLACES[place]


def every_module_has_a_layer(modules: Sources) -> list[str]:
    problems = [
        f"{name} is in no layer: give it a place in LAYERS, which docs/architecture.md explains"
        for name in modules
        if layer_of(name) is None
    ]
    for name, source in modules.items():
        relative = sorted({target for target in imported(source, modules) if target.startswith(".")})
        problems += [f"{name} imports {target}: write the whole name" for target in relative]
    return problems


def every_layer_names_modules(modules: Sources) -> list[str]:
    listed = [name for names in LAYERS.values() for name in names.split()]
    twice = sorted({name for name in listed if listed.count(name) > 1})
    return [f"LAYERS names {name} twice" for name in twice] + [
        f"LAYERS names {name}, which does not exist" for name in PLACES if name not in modules
    ]


def imports_point_down(modules: Sources) -> list[str]:
    order = list(LAYERS)
    problems = []
    for name, source in modules.items():
        here = layer_of(name)
        for target in sorted(ours(source, modules)):
            there = layer_of(target)
            if here and there and order.index(there) > order.index(here):
                problems.append(f"{name} ({here}) imports {target} ({there}), which is above it")
    return problems


def imports_make_no_circle(modules: Sources) -> list[str]:
    left = {name: ours(source, modules) for name, source in modules.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    # What is left is in a circle or above one; the former is imported by something else that is left.
    needed = {target for targets in left.values() for target in targets}
    return [f"{name} is in a circle with {sorted(left[name] & left.keys())}" for name in sorted(left.keys() & needed)]


def what_stands_apart_stays_apart(modules: Sources) -> list[str]:
    problems = []
    for name, source in modules.items():
        for group, allowed in APART.items():
            if within(name, (group,)):
                wrong = [target for target in ours(source, modules) if not within(target, (group, *allowed))]
                problems += [f"{name} imports {target}: {group} may use only {allowed}" for target in sorted(wrong)]
    return problems


def what_is_kept_for_some_is_left_alone_by_others(modules: Sources) -> list[str]:
    problems = []
    for name, source in modules.items():
        targets = set(imported(source, modules))
        for kept, readers in KEPT_FOR.items():
            if any(within(target, (kept,)) for target in targets) and not within(name, (kept, *readers)):
                problems.append(f"{name} imports {kept}, which is for {readers}")
    return problems


def the_environment_is_read_in_few_places(modules: Sources) -> list[str]:
    return [
        f"{name}:{line} reads the environment: take a mapping instead"
        for name, source in modules.items()
        if not within(name, READS_ENVIRONMENT)
        for line in environment_reads(source.tree)
    ]


def environment_reads(tree: ast.Module) -> Iterator[int]:
    names = {"environ", "environb", "getenv"}
    aliases = {
        alias.asname or "os"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "os"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names}:
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) in aliases:
            yield node.lineno


def everything_is_caught_in_two_places(modules: Sources) -> list[str]:
    found = {
        (name, function): line
        for name, source in modules.items()
        for function, line in broad_catches(source.tree, function="")
    }
    return [
        f"{name}:{line} in {function or 'the module'} catches everything: name what can happen"
        for (name, function), line in found.items()
        if (name, function) not in CATCHES_EVERYTHING
    ] + [
        f"{name}.{function} no longer catches everything: take it off the list"
        for name, function in sorted(CATCHES_EVERYTHING - found.keys())
        if name in modules
    ]


def broad_catches(node: ast.AST, *, function: str) -> Iterator[tuple[str, int]]:
    """Yield function and line of each place that catches everything and goes on."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler) and is_broad(child.type):
            # One that only cleans up and raises again swallows nothing.
            last = child.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield function, child.lineno
        if isinstance(child, ast.Call) and ast.unparse(child.func).rpartition(".")[2] == "suppress":
            yield from ((function, child.lineno) for argument in child.args if is_broad(argument))
        inside = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        yield from broad_catches(child, function=inside)


def is_broad(caught: ast.expr | None) -> bool:
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    names = {"bare" if kind is None else ast.unparse(kind).rpartition(".")[2] for kind in kinds}
    return bool(names & {"bare", "Exception", "BaseException"})


def nothing_is_too_long(modules: Sources) -> list[str]:
    problems = []
    for name, source in modules.items():
        lines = len(source.text.splitlines())
        if lines > MODULE_LINES:
            problems.append(f"{name} has {lines} lines, more than {MODULE_LINES}: it is two modules")
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    problems.append(f"{name}.{node.name} has {length} lines, more than {FUNCTION_LINES}")
    return problems


def every_module_says_what_it_is(modules: Sources) -> list[str]:
    return [f"{name} has no docstring" for name, source in modules.items() if not ast.get_docstring(source.tree)]


RULES: list[Rule] = [
    every_module_has_a_layer,
    every_layer_names_modules,
    imports_point_down,
    imports_make_no_circle,
    what_stands_apart_stays_apart,
    what_is_kept_for_some_is_left_alone_by_others,
    the_environment_is_read_in_few_places,
    everything_is_caught_in_two_places,
    nothing_is_too_long,
    every_module_says_what_it_is,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps(rule: Rule) -> None:
    modules = project()
    assert {"handler", "worker", "worker.errors", "worker.adapter.flow", "worker.local"} <= modules.keys()
    problems = rule(modules)
    assert not problems, "\n".join(["", *problems])


# --- The rules can fail


@pytest.mark.parametrize(
    ("rule", "modules", "words"),
    [
        (every_module_has_a_layer, {"worker__novel": ""}, "worker.novel is in no layer"),
        (every_module_has_a_layer, {"elsewhere": ""}, "elsewhere is in no layer"),
        (every_module_has_a_layer, {"worker__job": "from . import routes"}, "worker.job imports .: write the whole"),
        (every_layer_names_modules, {"worker": ""}, "LAYERS names worker.errors, which does not exist"),
        (
            imports_point_down,
            {"worker__job": "from worker.proxy import Proxy", "worker__proxy": ""},
            "worker.job (jobs) imports worker.proxy (mechanisms), which is above it",
        ),
        (
            imports_point_down,
            {"worker__job": "def f():\n    from worker import proxy", "worker__proxy": ""},
            "worker.job (jobs) imports worker.proxy",
        ),
        (
            imports_point_down,
            {"worker__errors": "if TYPE_CHECKING:\n    import worker.job", "worker__job": ""},
            "worker.errors (words) imports worker.job",
        ),
        (
            imports_point_down,
            {"worker__sources__volume": "from worker.adapter.flow import JobFlow", "worker__adapter__flow": ""},
            "worker.sources.volume (mechanisms) imports worker.adapter.flow (flows)",
        ),
        (
            imports_make_no_circle,
            {"worker__job": "import worker.routes", "worker__routes": "def f():\n    from worker.job import parse"},
            "worker.job is in a circle with ['worker.routes']",
        ),
        (
            imports_make_no_circle,
            {"a": "import b", "b": "import c", "c": "import a", "d": "import a"},
            "a is in a circle with ['b']",
        ),
        (
            what_stands_apart_stays_apart,
            {"worker__timeline__parse": "from worker import job", "worker__job": ""},
            "worker.timeline.parse imports worker.job",
        ),
        (
            what_stands_apart_stays_apart,
            {"worker__patches__queue": "from worker.errors import WorkerError", "worker__errors": ""},
            "worker.patches.queue imports worker.errors",
        ),
        (
            what_is_kept_for_some_is_left_alone_by_others,
            {"worker__boot": "def f():\n    from worker.local.engine import serve", "worker__local__engine": ""},
            "worker.boot imports worker.local",
        ),
        (
            what_is_kept_for_some_is_left_alone_by_others,
            {"worker__server": "from worker.config import Config", "worker__config": ""},
            "worker.server imports worker.config",
        ),
        (
            what_is_kept_for_some_is_left_alone_by_others,
            {"worker__proxy": "from runpod.serverless import start"},
            "worker.proxy imports runpod",
        ),
        (the_environment_is_read_in_few_places, {"worker__gpu": "import os\nos.environ['X']"}, "worker.gpu:2 reads"),
        (the_environment_is_read_in_few_places, {"worker__gpu": "import os\nos.getenv('X')"}, "worker.gpu:2 reads"),
        (the_environment_is_read_in_few_places, {"worker__gpu": "import os as o\no.environ"}, "worker.gpu:2 reads"),
        (the_environment_is_read_in_few_places, {"worker__gpu": "from os import environ"}, "worker.gpu:1 reads"),
        (everything_is_caught_in_two_places, {"a": "def f():\n try: x\n except: y"}, "a:3 in f catches everything"),
        (
            everything_is_caught_in_two_places,
            {"a": "class C:\n def m(self):\n  try: x\n  except Exception: y"},
            "a:4 in m catches everything",
        ),
        (
            everything_is_caught_in_two_places,
            {"a": "try: x\nexcept (OSError, BaseException) as e: y"},
            "a:2 in the module",
        ),
        (everything_is_caught_in_two_places, {"a": "with contextlib.suppress(Exception): x"}, "a:1 in the module"),
        (
            everything_is_caught_in_two_places,
            {"worker__adapter__flow": "def other():\n try: x\n except Exception: y"},
            "worker.adapter.flow:3 in other catches everything",
        ),
        (
            everything_is_caught_in_two_places,
            {"worker__adapter__loop": ""},
            "worker.adapter.loop._take no longer catches",
        ),
        (nothing_is_too_long, {"a": "\n" * 251}, "a has 251 lines, more than 250"),
        (nothing_is_too_long, {"a": "def f():\n" + " x\n" * 50}, "a.f has 51 lines, more than 50"),
        (nothing_is_too_long, {"a": "class C:\n async def f(self):\n" + "  x\n" * 50}, "a.f has 51 lines"),
        (every_module_says_what_it_is, {"a": "# A comment is not a docstring.\nx = 1"}, "a has no docstring"),
    ],
)
def test_a_breach_is_found(rule: Rule, modules: dict[str, str], words: str) -> None:
    problems = rule(sources(**modules))
    assert any(problem.startswith(words) for problem in problems), problems


@pytest.mark.parametrize(
    ("rule", "modules"),
    [
        (every_module_has_a_layer, {"worker": "", "worker__timeline__novel": "", "handler": "import os"}),
        (imports_point_down, {"worker__job": "from worker.routes import find", "worker__routes": "", "worker": ""}),
        (imports_point_down, {"worker__job": "import worker.elsewhere\nimport json"}),
        (imports_make_no_circle, {"a": "import b\nimport a", "b": "import c", "c": ""}),
        # The package's __init__ imports one of its modules, which imports another: no circle.
        (imports_make_no_circle, {"p": "from p.a import x", "p__a": "from p import b", "p__b": ""}),
        (
            what_stands_apart_stays_apart,
            {"worker__timeline__a": "from worker import events\nfrom worker.timeline import b", "worker__events": ""},
        ),
        (
            what_is_kept_for_some_is_left_alone_by_others,
            {
                "worker__local__demo": "import worker.local.engine",
                "worker__local__engine": "",
                "handler": "import runpods",
            },
        ),
        (
            the_environment_is_read_in_few_places,
            {"handler": "import os\nos.environ", "a": "environ = x.environ\nos.sep"},
        ),
        (
            everything_is_caught_in_two_places,
            {"a": "def f():\n try: x\n except BaseException:\n  y\n  raise", "b": "try: x\nexcept OSError: y"},
        ),
        (nothing_is_too_long, {"a": "\n" * 250, "b": "def f():\n" + " x\n" * 49}),
        (every_module_says_what_it_is, {"a": '"""Something."""'}),
    ],
)
def test_what_is_right_is_left_alone(rule: Rule, modules: dict[str, str]) -> None:
    assert rule(sources(**modules)) == []


# --- Paths of one machine

SKIPPED = {".git", ".venv", "build", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}
COMMON = {Path(place) for place in ("/", "/tmp", "/opt", "/srv", "/src", "/usr", "/usr/local", "/home", "/root")}  # noqa: S108 - compared, not written to


def places_of_this_machine(root: Path) -> list[str]:
    """Return directories that mean something here and nowhere else; those of the image belong to it."""
    image = root / "Dockerfile"
    told = image.read_text(encoding="utf-8") if image.exists() else ""
    here = {root, root.parent, Path(sys.base_prefix)} - COMMON - {Path.home()}
    return sorted(str(place) for place in here if f"{place}/" not in told and f"{place}\n" not in told)


def mentions(root: Path, places: list[str]) -> list[str]:
    """Return each line below `root` that names one of `places` or somebody's home."""
    known = "|".join(re.escape(place) for place in places) or "(?!)"
    pattern = re.compile(rf"(?<![\w.~-])(?:{known})/|/(?:home|Users)/[a-z]\w*/")
    found = []
    for path in sorted(root.rglob("*")):
        if SKIPPED & set(path.relative_to(root).parts) or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [
            f"{path.relative_to(root)}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if pattern.search(line)
        ]
    return found


def test_no_file_names_a_place_of_this_machine() -> None:
    found = mentions(ROOT, places_of_this_machine(ROOT))
    assert not found, "\n".join(["", *found])


def test_a_place_of_one_machine_is_found(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    (root / "docs").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text(f"{root}/x")
    (root / "docs" / "a.md").write_text(f"one\nsee {root}/docs\n")
    (root / "b.sh").write_text(f"cd {tmp_path}/other; ls /{'home'}/me/src")
    (root / "c.txt").write_text(f"../clone/x https://host{root}/x /opt/x")
    assert places_of_this_machine(root)[-2:] == [str(tmp_path), str(root)]
    assert [line.partition(": ")[0] for line in mentions(root, places_of_this_machine(root))] == [
        "b.sh:1",
        "docs/a.md:2",
    ]
    (root / "Dockerfile").write_text(f"WORKDIR {root}\nCOPY x {tmp_path}/other\n")
    assert not {str(root), str(tmp_path)} & set(places_of_this_machine(root))
