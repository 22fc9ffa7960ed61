"""The house rules that can be checked: what may stand in the tree, and what the docs claim."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "quire"
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]

# Modules that run code from data; none of them has a place in quire.
RUNS_CODE_FROM_DATA = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
OPENS_URLS = {"urllib.request", "http.client", "requests", "httpx", "aiohttp", "urllib3"}
# The two doors that may open a URL: one for models, one for media. Neither exists unless listed.
MAY_OPEN_URLS = {"quire/weights/pull.py", "quire/inputs/media/fetch.py"}

# Files behind the door whose asserts, each with a message, state what we ourselves promised.
STATES_A_PROMISE = {"quire/scheduler/rows.py"}


def tracked_files() -> list[Path]:
    """What git has or would take in; in an unpacked archive, the source files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
        return [path for path in paths if path.is_file()]
    folders = ("quire", "tests", "docs", "examples", "scripts", "benchmarks")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in found if path.is_file() and path.suffix != ".pyc"]


@dataclass
class Read:
    """What the rules ask of all modules: each is read and walked once, and no tree is kept."""

    asserts: list[str] = field(default_factory=list)
    runs_code: list[str] = field(default_factory=list)
    catches_all: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    imports: dict[str, list[ast.Import | ast.ImportFrom]] = field(default_factory=dict)


def last_name(node: ast.expr | None) -> str:
    """`c` of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@cache
def package() -> Read:
    read = Read()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"), name)
        imports = read.imports[name] = []
        if tree.body and ast.get_docstring(tree) is None:
            read.silent.append(name)
        for node in ast.walk(tree):
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Import() | ast.ImportFrom():
                    imports.append(node)
                case ast.Assert() if not (name in STATES_A_PROMISE and node.msg):
                    read.asserts.append(where)
                case ast.Call() if catches_all_of(*node.args, by=last_name(node.func)):
                    read.catches_all.append(where)
                case ast.Call(func=ast.Name("eval" | "exec")):
                    read.runs_code.append(where)
                case ast.Call(func=ast.Attribute(ast.Name("torch"), "load")):
                    read.runs_code.append(f"{where}: torch.load unpickles")
                case ast.ExceptHandler() if node.type is None or catches_all_of(node.type):
                    if not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                        read.catches_all.append(where)
    return read


def catches_all_of(*kinds: ast.expr, by: str = "suppress") -> bool:
    everything = {"Exception", "BaseException"}
    return by == "suppress" and any(last_name(kind) in everything for kind in kinds)


def imported_names(imports: list[ast.Import | ast.ImportFrom]) -> Iterator[str]:
    """Every module an import names; `from a import b` may name the module a.b, so both count."""
    for node in imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_machine_of_ours_is_named_in_the_tree() -> None:
    # Put together here, so that this file does not hold what it looks for.
    folders = [f"/{name}" for name in ("work/", "farm/", "root/", "opt/wheels", "tmp/[a-z]")]
    hosts = ["py" + "pi\\.org", "python" + "hosted\\."]
    # A path starts a word: the same name inside a relative path is somebody's own folder.
    pattern = re.compile(r"(?<![\w.~$}*-])(" + "|".join(folders) + ")|" + "|".join(hosts))
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {hit.group()}" for hit in pattern.finditer(text)]
    assert found == []


def test_no_assert_guards_what_a_caller_passed() -> None:
    """`python -O` drops asserts, so none may stand between a caller and a wrong result."""
    assert package().asserts == []


def test_nothing_runs_code_from_data() -> None:
    assert package().runs_code == []
    imports = package().imports.items()
    named = {f"{name}: {m}" for name, some in imports for m in imported_names(some)}
    assert [one for one in named if one.split(": ")[1] in RUNS_CODE_FROM_DATA] == []


def test_urls_are_opened_by_the_fetchers_alone() -> None:
    found = [
        f"{name}: {module}"
        for name, imports in package().imports.items()
        if name not in MAY_OPEN_URLS
        for module in imported_names(imports)
        if module in OPENS_URLS or module.split(".")[0] in OPENS_URLS
    ]
    assert found == []


# The doors behind which anything may be raised: the command line, functions of a caller's,
# grammars that are tried, requests that tasks make, what is made of a row of somebody's table,
# batches that are on disk and tried again, towers of Transformers', and the boundary to what is not
# ours.
MAY_CATCH_ANYTHING = {
    "quire/base/boundary.py",
    "quire/cli/exits.py",
    "quire/executor/shelf.py",
    "quire/grammar/child.py",
    "quire/jobs/supervise/rows_ahead.py",
    "quire/inputs/media/child.py",
    "quire/inputs/media/image_files.py",
    "quire/jobs/input/arrow_values.py",
    "quire/jobs/child/requests.py",
    "quire/jobs/input/work.py",
    "quire/replicas/ray_engine.py",
    "quire/models/fallback/build.py",
    "quire/models/fallback/planning.py",
    "quire/sampling/call_threads.py",
    "quire/server/batch_service.py",
    "quire/server/generation.py",
    "quire/session/engine_thread.py",
    "quire/session/rank.py",
}


def test_no_broad_except_but_at_the_doors() -> None:
    found = package().catches_all
    assert [one for one in found if one.split(":")[0] not in MAY_CATCH_ANYTHING] == []


def test_there_is_no_utils_room() -> None:
    names = {path.stem for path in PACKAGE.rglob("*") if "__pycache__" not in path.parts}
    assert names.isdisjoint({"utils", "util", "helpers", "helper", "common", "misc"})


def test_every_module_states_its_contract() -> None:
    assert package().silent == []


def test_import_contracts_cover_every_torch_free_room() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = [
        c for c in config["tool"]["importlinter"]["contracts"] if c["type"] == "forbidden"
    ]
    free = {
        *("scheduler", "cache", "grammar", "plan", "inputs", "step", "spec", "jobs"),
        *("families", "layer_plan", "evals", "report"),
    }
    there = {
        f"quire.{name}"
        for name in free
        if (PACKAGE / f"{name}.py").exists() or (PACKAGE / name / "__init__.py").exists()
    }
    assert there <= set(contract["source_modules"])


def imported_modules(imports: list[ast.Import | ast.ImportFrom], known: set[str]) -> set[str]:
    """The modules of quire that a file imports, anywhere in it, for types alone too."""
    found = set()
    for node in imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif node.module is not None:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (parts & known) or ({node.module} & known)
    return found


def test_no_file_imports_itself_through_others() -> None:
    """Type-only imports count: files that need each other to be read are one file in two."""
    read = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): imports
        for name, imports in package().imports.items()
    }
    imports = {name: imported_modules(some, {*read} - {name}) for name, some in read.items()}
    # Take away what imports nothing that is left, until only rings and what leads to them remain.
    while free := {name for name, found in imports.items() if not found & imports.keys()}:
        for name in free:
            del imports[name]
    assert imports == {}


def test_the_root_has_at_most_fifteen_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 15


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_pages_are_read_in_a_terminal(page: Path) -> None:
    """Lines of 100 characters at most, but for tables and JSON, which cannot be cut."""
    text = re.sub(r"```json\n.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    assert [line[:60] for line in lines if len(line) > 100] == []


def test_the_architecture_page_names_every_room_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = page.split("## The rooms")[1].split("```")[1]
    named = set(re.findall(r"^  ([a-z_0-9]+(?:/|\.py))", tree, flags=re.MULTILINE))
    rooms = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    files = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert named == rooms | files


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    """From the checkout or from quire/: in the walks, and where the glossary says a word lives."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z]\w*/)+[\w./-]*\w)`", text)
    named += re.findall(r"^\|.*\| ([\w/]+\.py|\w+/)[^|]*\|[^|]*\|$", text, re.MULTILINE)
    assert len(named) > 10
    assert [n for n in named if not (ROOT / n).exists() and not (PACKAGE / n).exists()] == []


def test_a_room_that_names_its_files_has_them() -> None:
    for room in PACKAGE.rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(room.read_text(encoding="utf-8"))) or ""
        named = set(re.findall(r"[a-z_0-9]+\.py", text))
        missing = sorted(name for name in named if not list(room.parent.rglob(name)))
        assert not missing, f"{room.parent.name} has no {', '.join(missing)}"
    scheduler = PACKAGE / "scheduler"
    text = (scheduler / "__init__.py").read_text(encoding="utf-8")
    left_out = [path.name for path in scheduler.glob("[a-z]*.py") if path.name not in text]
    assert not left_out, f"the scheduler's map leaves out {', '.join(left_out)}"


def test_the_changelog_knows_this_version() -> None:
    import quire

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{quire.__version__}]" in changelog


def test_the_readme_example_is_the_one_that_is_run() -> None:
    """The README's Python is offline.py's idea in ten lines; tests/test_examples.py runs it."""
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[:1]
    compile(code, "README.md", "exec")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("name", ["demo", "test", "check", "size", "setup", "browser", "gpu-check"])
def test_scripts_are_executable_and_parse(name: str) -> None:
    script = ROOT / "scripts" / name
    assert script.stat().st_mode & 0o111
    if script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash"):
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_importing_quire_is_instant_and_brings_no_torch() -> None:
    code = (
        "import sys, time; start = time.process_time(); import quire;"
        "print(time.process_time() - start);"
        "from quire import LLM, SamplingParams, RequestOutput;"
        "heavy = {'torch', 'transformers', 'pyarrow', 'pydantic', 'rich', 'typer'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, heavy = run.stdout.split("\n", 1)
    assert heavy.strip() == "[]"
    assert float(seconds) < 0.1  # of CPU: the wall clock would measure who else is running


def test_the_architecture_page_draws_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers, free_of_torch = contracts["contracts"]
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, drawn, after = page.partition("**Who may import whom**")[2].split("```", 2)
    assert " ".join(drawn.split()) == " > ".join(layers["layers"][1:])  # but for __main__
    named = set(re.findall(r"`(\w+)`", after.partition("never reach torch")[0]))
    whole = {name.removeprefix("quire.") for name in free_of_torch["source_modules"]}
    assert named == {name for name in whole if "." not in name}
