"""The rooms of the project: who may import whom. A broken rule fails here, not in a review."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = {
    "types",
    "errors",
    "schema",
    "shards",
    "manifest",
    "digest",
    "order",
    "console",
    "files",
    "html",
    "examples",
    "terminal",
    "progress",
    "unheard",
    "wrong_use",
    "completion",
    "hub",
}
PURE = (
    "plan",
    "exact_fill",
    "heuristics",
    "waiting",
    "layout",
    "mix",
    "overlong",
    "order",
    "ledger",
    "savings",
    "schema",
    "types",
    "distributions",
    "buffers",
    "row_choice",
    "expressions",
    "symbolic",
    "forms",
)
# From a list of events to a verdict: no torch either, so that a trace made by hand is all that it takes.
PURE_OF_PROFILE = (
    "events",
    "intervals",
    "names",
    "attribute",
    "analysis",
    "memory",
    "about",
    "verdict",
    "advice",
    "words",
)
ONE_ROOM = {
    "datasets": {"packer/source.py"},
    "fsspec": {"packer/sources", "packer/readers.py", "packer/store.py"},
    "yaml": {"packer/sources/folder_splits.py"},
    "huggingface_hub": {
        "packer/hub.py",
        "packer/source.py",
        "packer/tokenizer.py",
        "trainer/source.py",
        "trainer/library.py",
    },
    "tokenizers": {"packer/tokenizer.py", "packer/encoders.py", "packer/tokenization"},
    "splintr": {"packer/encoders.py"},
    "fastokens": {"packer/encoders.py"},
    "jinja2": {"packer/template.py", "packer/sandbox.py", "packer/html"},
    "markupsafe": {
        "packer/html",
        "packer/stats_page.py",
        "packer/stats_figures.py",
        "packer/stats_slots.py",
        "trainer/compare_page.py",
    },
    "ray": {"packer/engine_ray.py"},
    "click": {
        "packer/cli.py",
        "packer/cli_folder.py",
        "packer/cli_repack.py",
        "packer/cli_values.py",
        "packer/console.py",
        "packer/wrong_use.py",
        "packer/completion.py",
        "trainer/cli.py",
        "trainer/cli_compare.py",
        "trainer/cli_export.py",
        "trainer/cli_plan.py",
        "trainer/cli_blame.py",
        "trainer/cli_ranks.py",
        "trainer/cli_refused.py",
        "trainer/cli_options.py",
        "trainer/cli_profile.py",
    },
    "rich": {
        "packer/report.py",
        "packer/report_verify.py",
        "packer/report_inspect.py",
        "packer/report_diff.py",
        "packer/report_dry.py",
        "packer/report_stats.py",
        "packer/terminal.py",
        "packer/progress.py",
        "trainer/memory/report.py",
        "trainer/compare/report_terminal.py",
        "trainer/profile/report.py",
    },
    "tensorboard": {"trainer/tracker_backends.py"},
    "trackio": {"trainer/tracker_backends.py"},
    "wandb": {"trainer/tracker_backends.py"},
    "fla": {"trainer/kernels"},
    "causal_conv1d": {"trainer/kernels"},
    "flash_attn": {"trainer/kernels"},
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path, *, at_import_time: bool = False) -> Iterator[str]:
    """Every dotted name a file imports; at_import_time: only those outside functions and TYPE_CHECKING."""

    def walk(nodes: list[ast.stmt]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                yield str(node.module)
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif (at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)) or (
                at_import_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            ):
                continue
            else:
                for child in ast.iter_child_nodes(node):
                    yield from walk([child])  # type: ignore[list-item]

    yield from walk(ast.parse(path.read_text(encoding="utf-8")).body)


def top(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("path", modules("packer"), ids=lambda path: path.stem)
def test_packer_never_imports_torch_or_the_trainer(path: Path) -> None:
    assert not {top(name) for name in imports(path)} & {"torch", "trainer"}


@pytest.mark.parametrize("path", modules("trainer"), ids=lambda path: path.stem)
def test_trainer_takes_from_packer_only_what_describes_the_folder(path: Path) -> None:
    taken = {name.split(".")[1] if "." in name else "" for name in imports(path) if top(name) == "packer"}
    assert taken <= SHARED, f"{path.name} imports packer.{taken - SHARED}"


@pytest.mark.parametrize("name", PURE)
def test_the_pure_modules_know_no_files_clocks_or_ambient_random_state(name: str) -> None:
    path = ROOT / "packer" / f"{name}.py"
    assert not {top(found) for found in imports(path)} & {
        "os",
        "pathlib",
        "time",
        "datetime",
        "random",
        "io",
        "shutil",
        "tempfile",
    }
    source = path.read_text(encoding="utf-8")
    assert "np.random.seed" not in source
    assert "default_rng(" not in source
    assert "open(" not in source


@pytest.mark.parametrize("name", PURE_OF_PROFILE)
def test_what_judges_a_profile_knows_neither_torch_nor_a_clock(name: str) -> None:
    path = ROOT / "trainer" / "profile" / f"{name}.py"
    taken = set(imports(path, at_import_time=True))
    assert not {top(found) for found in taken} & {"torch", "os", "pathlib", "time", "datetime", "random", "io"}
    ours = {found.split(".")[2] for found in taken if found.startswith("trainer.profile.") and found.count(".") >= 2}
    assert ours <= set(PURE_OF_PROFILE), f"{name} imports {ours - set(PURE_OF_PROFILE)}"
    assert {found.split(".")[1] for found in taken if found.startswith("trainer.")} <= {"profile"}


@pytest.mark.parametrize(
    "path", modules("packer") + modules("trainer"), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_each_outside_library_has_one_room(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    for library in {top(name) for name in imports(path)} & set(ONE_ROOM):
        assert any(place.startswith(room) for room in ONE_ROOM[library]), f"{place} imports {library}"


@pytest.mark.parametrize(
    "path",
    [
        *ROOT.glob("packer/cli*.py"),
        *ROOT.glob("trainer/cli*.py"),
        ROOT / "packer/console.py",
        ROOT / "packer/__init__.py",
    ],
    ids=str,
)
def test_a_command_line_imports_only_what_is_light(path: Path) -> None:
    standard = sys.stdlib_module_names | {"click", "packer", "trainer"}
    assert {top(name) for name in imports(path, at_import_time=True)} <= standard


@pytest.mark.parametrize(
    "path", modules("packer") + modules("trainer"), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_every_module_says_what_it_is_and_has_one_subject(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source)) or path.stem == "__init__", f"{path.name} has no docstring"
    assert source.count("\n") <= 300, f"{path.name} has {source.count(chr(10))} lines: two subjects?"


def test_environment_switches_live_in_the_command_lines() -> None:
    for path in modules("packer") + modules("trainer"):
        source = path.read_text(encoding="utf-8")
        # torchrun tells each rank who it is by variables: that is read in one place, and by the command line that prints on rank 0.
        assert "os.environ.get" not in source or path.stem in ("ranks", "cli", "cli_ranks", "cli_blame"), (
            f"{path.name} reads the environment"
        )
