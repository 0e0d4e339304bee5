"""What surrounds the package says what the package is: versions, stages, systems, and recipes that run."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fedsw
from fedsw.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", text("Makefile"), flags=re.MULTILINE))


def linked(name: str) -> list[str]:
    """The files that a document links to."""
    return [path for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(name)) if path]


def test_the_workflow_runs_each_stage_of_the_script_once_and_in_its_order():
    workflow = yaml.safe_load(text(".github/workflows/ci.yml"))
    job = workflow["jobs"]["stage"]
    stages = re.findall(r"^ *make (\S+)", text(".ci/run"), flags=re.MULTILINE)
    assert job["strategy"]["matrix"]["stage"] == stages and set(stages) <= targets()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make ${{ matrix.stage }}"]
    assert workflow["permissions"] == {"contents": "read"}
    (python,) = [step["with"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert f">={python['python-version']}" == PROJECT["requires-python"] and python["cache"] == "pip"
    assert list(ROOT.glob(python["cache-dependency-path"]))


def test_quick_tests_run_on_every_version_of_python_and_every_system_that_is_named():
    job = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]["version"]
    matrix = job["strategy"]["matrix"]
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"] and f">={matrix['python'][0]}" == PROJECT["requires-python"]
    assert matrix["system"] == ["ubuntu-latest", "macos-latest"]
    assert matrix["exclude"] == [{"system": "ubuntu-latest", "python": "3.11"}], "the stage `test` runs there"


def test_a_release_is_built_checked_and_signed_in_this_order_and_says_that_it_has_never_run():
    release = text(".github/workflows/release.yml")
    workflow = yaml.safe_load(release)
    assert "NEVER RUN" in release.split("name:")[0] and workflow["permissions"] == {"contents": "read"}
    build, sign = workflow["jobs"].values()
    commands = "".join(step.get("run", "") for step in build["steps"])
    assert commands.index("-m build") < commands.index("twine check --strict") < commands.index("fedsw --version")
    assert commands.index("--require-hashes") < commands.index("fedsw --version")
    assert commands.index("fedsw --version") < commands.index("--output-file dist/sbom.json")
    assert sign["needs"] == "build" and "attest" in "".join(step.get("uses", "") for step in sign["steps"])
    attested = [step["with"]["sbom-path"] for step in sign["steps"] if "attest-sbom" in step.get("uses", "")]
    assert attested == ["dist/sbom.json"] and sign["if"] == "github.ref_type == 'tag'"


def test_folders_that_have_owners_are_there_and_newer_versions_are_proposed():
    owned = [line.split()[0] for line in text(".github/CODEOWNERS").splitlines() if line and line[0] not in "#*"]
    assert len(owned) > 5 and [name for name in owned if not (ROOT / name.strip("/")).exists()] == []
    updates = yaml.safe_load(text(".github/dependabot.yml"))["updates"]
    assert [entry["package-ecosystem"] for entry in updates] == ["pip", "github-actions"]


def test_merges_and_long_subjects_are_refused(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def checked():
        return subprocess.run([ROOT / ".ci" / "commits", "main..HEAD"], cwd=tmp_path, capture_output=True, text=True)

    git("init", "--quiet", "--initial-branch=main")
    for subject, branch in (("One", "other"), ("x" * 72, "side")):
        git("commit", "--quiet", "--allow-empty", "--message", subject)
        git("checkout", "--quiet", "-b", branch)
    assert checked().returncode == 0
    git("checkout", "--quiet", "main")
    git("checkout", "--quiet", "-b", "long")
    git("commit", "--quiet", "--allow-empty", "--message", "x" * 73)
    assert checked().returncode == 1 and "its subject has 73 letters, at most 72" in checked().stdout
    git("merge", "--quiet", "--no-ff", "--message", "Together", "side")
    assert "is a merge: rebase" in checked().stdout


def test_the_workflow_publishes_the_site_where_make_docs_puts_it():
    build, publish = yaml.safe_load(text(".github/workflows/pages.yml"))["jobs"].values()
    assert [step["run"] for step in build["steps"] if "run" in step] == ["make docs"] and "docs" in targets()
    (uploaded,) = [step["with"]["path"] for step in build["steps"] if "upload" in step.get("uses", "")]
    assert re.search(rf"^docs:.*\n\t.* docs {uploaded}$", text("Makefile"), flags=re.MULTILINE)
    assert publish["needs"] == "build" and publish["permissions"] == {"pages": "write", "id-token": "write"}


def test_every_hook_before_a_commit_is_a_command_of_make_lint():
    (here,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert here["repo"] == "local", "the versions are those of the lock"
    commands = " ".join(hook["entry"] for hook in here["hooks"])
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", text("Makefile"), flags=re.MULTILINE)
    assert recipe is not None
    for program in re.findall(r"\$\(BIN\)/([\w-]+)", recipe[1]):
        assert f".venv/bin/{program}" in commands
    for hook in here["hooks"]:
        assert hook.get("pass_filenames", True) is False or re.search(hook["exclude"], "docs/data.md")


def test_the_version_and_the_licence_are_the_same_wherever_they_stand():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])
    assert citation["abstract"] == PROJECT["description"] and citation["license"] == PROJECT["license"]
    newest, *_ = re.findall(r"^## (\d\S*)", text("CHANGELOG.md"), flags=re.MULTILINE)
    supported = re.search(r"there is one version, (\d+\.\d+)\.", text("SECURITY.md"))
    assert newest == PROJECT["version"] == fedsw.__version__
    assert supported is not None and PROJECT["version"].startswith(f"{supported[1]}.")


def test_the_systems_and_the_python_of_the_readme_are_those_of_the_package():
    classifiers = set(PROJECT["classifiers"])
    systems = {each for each in classifiers if each.startswith("Operating System")}
    assert systems == {"Operating System :: POSIX :: Linux", "Operating System :: MacOS"}
    assert re.search(r"on Linux.*macOS.*Windows is not supported: it has no `fcntl`", text("README.md"), re.DOTALL)
    python = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {python}" in classifiers and f"Python {python}" in text("README.md")
    assert not any(each.startswith("License") for each in classifiers), "the licence is an expression"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.stem)
def test_a_template_has_what_a_chooser_shows(template):
    _, front, body = template.read_text(encoding="utf-8").split("---\n", 2)
    shown = yaml.safe_load(front)
    assert shown["name"] and shown["about"] and body.strip()
    if template.stem in ("bug", "guarantee"):
        assert "SECURITY.md" in body


def test_what_contributing_names_is_there():
    named = [*linked("CONTRIBUTING.md"), *re.findall(r"`((?:fedsw|tests|docs)/[\w./]*)`", text("CONTRIBUTING.md"))]
    named += re.findall(r"^(fedsw/\w+/)", text("CONTRIBUTING.md"), flags=re.MULTILINE)
    assert len(named) > 15
    for name in named:
        assert (ROOT / name).exists(), name
    for stage in re.findall(r"\bmake ([a-z-]+)", text("CONTRIBUTING.md")):
        assert stage in targets(), stage
    mutants = " ".join(each.read_text() for each in (ROOT / "tests" / "mutants" / "table").glob("*.toml"))
    for name in re.findall(r"--only (\S+)", text("CONTRIBUTING.md")):
        assert f'name = "{name}"' in mutants


def test_the_recipes_run_in_python_and_on_the_command_line(tmp_path, monkeypatch, capsys):
    *recipes, use = re.findall(r"```python\n(.*?)```", text("CONTRIBUTING.md"), flags=re.DOTALL)
    (experiment,) = re.findall(r"```toml\n(.*?)```", text("CONTRIBUTING.md"), flags=re.DOTALL)
    (tmp_path / "clinic.py").write_text("\n\n".join(recipes), encoding="utf-8")
    (tmp_path / "clinic.toml").write_text(experiment, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "clinic", raising=False)
    importlib.invalidate_caches()
    names: dict = {}
    exec(compile(use, "CONTRIBUTING.md", "exec"), names)
    assert "3 rounds, (1, " in capsys.readouterr().out
    summary = names["result"].summary
    assert summary["status"] == "completed" and summary["guarantee"]["trust"] == "central"
    assert {f"accuracy_by_group.group_{group}" for group in (0, 1)} <= summary["held_out"].keys()
    settings = names["result"].experiment
    assert (settings.objective.task, settings.model.kind) == ("clinic:Smoothed", "clinic:network")
    line = "(experiment=clinic, status=completed, rounds=3, directory=runs/clinic/"
    assert repr(names["result"]).startswith(f"RunResult{line}") and "(1, 1.74e-05)" in repr(names["result"])
    loaded = fedsw.load(names["result"].directory, allow_modules=["clinic"])
    assert repr(loaded).startswith("TrainedModel(features=1, experiment=clinic,") and "\n" not in repr(loaded)
    assert main(["run", "clinic.toml", "training.rounds=1", "--quiet"]) == 0


def test_a_word_of_the_list_is_found_in_any_spelling_and_nowhere_else(tmp_path):
    spec = importlib.util.spec_from_file_location("words", ROOT / ".ci" / "words.py")
    assert spec is not None and spec.loader is not None
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    assert list(words.found("One\nA Striker, and a loud one\nlouder strikers")) == [(2, "striker"), (2, "loud")]
    page = tmp_path / "page.md"
    page.write_text("In imitation of nothing.\n", encoding="utf-8")
    assert words.main([str(page)]) == 1
    page.write_text("Plain.\n", encoding="utf-8")
    assert words.main([str(page)]) == 0
