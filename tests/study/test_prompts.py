"""Prompt suites: reading, linting, and data sets at a pinned revision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.errors import InputError
from specprof.study.config import HubDataset
from specprof.study.prompts import lint, load_hub, load_suite, suite_hash
from tests.factory import make_prompt

RECORD = {
    "id": "code-001",
    "tag": "code",
    "lang": "en",
    "prompt": "def area(radius):",
    "messages": [{"role": "user", "content": "Write a function for the area of a circle."}],
    "license": "CC0-1.0",
}
SUITES = sorted((Path(__file__).parents[2] / "prompts").glob("*.jsonl"))


def write(folder: Path, *records: object) -> Path:
    path = folder / "code.jsonl"
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def without(field: str) -> dict[str, object]:
    return {name: value for name, value in RECORD.items() if name != field}


def test_a_record_is_read_as_it_stands(tmp_path):
    (prompt,) = load_suite(write(tmp_path, {**RECORD, "schema": {"type": "object"}}))
    assert (prompt.id, prompt.text, prompt.license) == ("code-001", "def area(radius):", "CC0-1.0")
    assert prompt.messages[0]["role"] == "user"
    assert prompt.schema == {"type": "object"}


def test_blank_lines_are_passed_over_and_counted(tmp_path):
    path = tmp_path / "code.jsonl"
    path.write_text("\n" + json.dumps(RECORD) + "\n\n{", encoding="utf-8")
    with pytest.raises(InputError, match=r"code\.jsonl:4: not one JSON object"):
        load_suite(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (["not", "an", "object"], "a record must be a JSON object with id, tag, lang"),
        (without("license"), "field 'license' is missing. A record has id, tag"),
        ({**RECORD, "id": ""}, "field 'id' must be a non-empty string"),
        ({**RECORD, "prompt": 7}, "field 'prompt' must be a non-empty string"),
        ({**RECORD, "licence": "CC0"}, "unknown field 'licence'. Optional is only 'schema'"),
        ({**RECORD, "schema": "object"}, "field 'schema' must be a JSON Schema object"),
        ({**RECORD, "messages": "hello"}, "field 'messages' must be a non-empty list of {\"role\""),
        ({**RECORD, "messages": []}, "field 'messages' must be a non-empty list"),
        ({**RECORD, "messages": [{"role": "user"}]}, "field 'messages' must be a non-empty list"),
    ],
)
def test_a_record_that_cannot_be_used_is_named_by_file_line_and_field(record, message, tmp_path):
    with pytest.raises(InputError) as problem:
        load_suite(write(tmp_path, RECORD, record))
    assert f"code.jsonl:2: {message}" in str(problem.value)


def test_half_a_character_can_be_written_in_json_but_not_sent(tmp_path):
    path = tmp_path / "code.jsonl"
    path.write_text(json.dumps({**RECORD, "prompt": "\ud83d"}), encoding="ascii")
    with pytest.raises(InputError, match=r"code\.jsonl:1: not one JSON object in UTF-8"):
        load_suite(path)


def test_a_missing_suite(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl: cannot be read .*Name a JSONL prompt suite"):
        load_suite(tmp_path / "nowhere.jsonl")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    st.binary()
    | st.builds(lambda f, v: json.dumps({**RECORD, f: v}).encode(), st.sampled_from([*RECORD, "schema", "x"]), JSON)
)
def test_any_bytes_are_prompts_or_a_clean_refusal(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("suite") / "code.jsonl"
    path.write_bytes(content)
    said = ""
    try:
        suite_hash(load_suite(path))
    except InputError as problem:
        said = str(problem)
    assert not said or said.startswith(f"{path}:")


# -- identity -------------------------------------------------------------------------------------------------------


def test_the_hash_is_over_what_is_sent():
    plain = suite_hash([make_prompt()])
    assert suite_hash([make_prompt(text="def area(r):")]) != plain
    assert suite_hash([make_prompt(schema={"type": "object"})]) != plain
    assert suite_hash([make_prompt("a"), make_prompt("b")]) != suite_hash([make_prompt("b"), make_prompt("a")])
    assert suite_hash([make_prompt()]) == plain


# -- linting --------------------------------------------------------------------------------------------------------


def problems(*prompts, **options):
    return [f"{finding.where}: {finding.problem}" for finding in lint(prompts, **options)]


DISTINCT = (
    "def area(radius): return 3.14159 * radius ** 2",
    "SELECT name, seats FROM rooms WHERE seats > 12 ORDER BY name",
    'for f in *.log; do gzip -9 "$f" && echo done; done',
)


def test_a_good_suite_has_no_findings():
    assert problems(*(make_prompt(f"p{i}", text=text) for i, text in enumerate(DISTINCT))) == []


def test_duplicate_ids():
    (found,) = problems(make_prompt("a", text=DISTINCT[0]), make_prompt("a", text=DISTINCT[1]))
    assert found == "a: stands 2 times; ids must be unique, since results are paired by them"


def test_mixed_tags():
    (found,) = problems(make_prompt("a", text=DISTINCT[0]), make_prompt("b", text=DISTINCT[1], tag="sql"))
    assert found == "suite: mixes the tags code, sql; one file holds one content"


def test_near_copies():
    (found,) = problems(make_prompt("a", text=DISTINCT[0]), make_prompt("b", text=DISTINCT[0].replace("radius", "r")))
    assert found.startswith("b: shares ")
    assert found.endswith("of its text with a; write another")


def test_two_prompts_too_short_for_an_n_gram_are_copies_all_the_same():
    assert problems(make_prompt("a", text="hi"), make_prompt("b", text="hi"))


def test_a_schema_that_is_none():
    (found,) = problems(make_prompt(schema={"type": "objct"}))
    assert found.startswith("code-001: its schema is not valid JSON Schema: 'objct' is not valid")


def test_lengths_under_a_tokenizer():
    count = len
    assert problems(make_prompt(text="a b"), count_tokens=count) == [
        "code-001: is only 3 tokens; a model has nothing to continue"
    ]
    assert problems(make_prompt(), count_tokens=count, max_tokens=10) == ["code-001: is 17 tokens, over the 10 allowed"]


def test_lengths_without_a_tokenizer_are_about_a_token_in_four_bytes():
    """Not a word each: Chinese writes none apart, and code writes many tokens between two spaces."""
    chinese = "漢字文本長度測試一二"  # ten characters of three bytes each, and no space
    about = round(10 * 3 / 4)
    assert problems(make_prompt(text=chinese), max_tokens=about) == []
    assert problems(make_prompt(text=chinese), max_tokens=about - 1) == [
        f"code-001: is about {about} tokens (4 bytes each), over the {about - 1} allowed; --model counts them"
    ]


def test_filler_is_not_natural_text():
    assert "use natural text, not filler" in problems(make_prompt(text="hello world and again " * 20))[0]


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.name)
def test_the_suites_of_this_project_lint_clean(suite):
    assert problems(*load_suite(suite)) == []


# -- data sets ------------------------------------------------------------------------------------------------------

ROWS = [
    {
        "task": "HE/0",
        "text": "def add(a, b):",
        "chat": [{"role": "user", "content": "Add."}],
        "shape": '{"type": "object"}',
    },
    {"task": "HE/1", "text": "def sub(a, b):", "chat": [{"role": "user", "content": "Subtract."}], "shape": None},
]


def hub(folder: Path, rows: list[dict[str, object]] | None = None, **columns: str) -> HubDataset:
    """A data set in a local folder, as the library reads it."""
    text = "".join(json.dumps(row) + "\n" for row in rows or ROWS)
    (folder / "data.jsonl").write_text(text, encoding="utf-8")
    return HubDataset(
        dataset=str(folder),
        revision="main",
        split="train",
        lang="en",
        license="MIT",
        columns=columns or {"id": "task", "prompt": "text"},
    )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def test_a_data_set_becomes_prompts_by_its_column_map(tmp_path):
    first, second = load_hub(hub(tmp_path, id="task", prompt="text", messages="chat", schema="shape"), "code")
    assert (first.id, first.tag, first.text, first.license) == ("HE/0", "code", "def add(a, b):", "MIT")
    assert first.messages[0]["content"] == "Add."
    assert first.schema == {"type": "object"}
    assert second.schema is None


def test_rows_without_ids_are_numbered_and_texts_without_messages_are_asked_as_they_are(tmp_path):
    first, _ = load_hub(hub(tmp_path, prompt="text"), "code")
    assert first.id == "code-00001"
    assert dict(first.messages[0]) == {"role": "user", "content": "def add(a, b):"}


def test_messages_alone_give_the_prompt_its_text(tmp_path):
    assert load_hub(hub(tmp_path, messages="chat"), "code")[1].text == "Subtract."


def test_an_absent_column_is_named_beside_those_there_are(tmp_path):
    with pytest.raises(InputError, match=r"no column 'prompt'\. It has task, text, chat, shape; correct columns:"):
        load_hub(hub(tmp_path, prompt="prompt"), "code")


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"text": ""}, {"prompt": "text"}, "row 1: the prompt column holds no text"),
        ({"text": "a", "chat": "b"}, {"messages": "chat"}, "row 1: field 'messages' must be a non-empty list"),
        ({"text": "a", "shape": "{"}, {"prompt": "text", "schema": "shape"}, "row 1: the schema column holds no JSON"),
        ({"text": "a", "shape": "[]"}, {"prompt": "text", "schema": "shape"}, "row 1: the schema column must hold"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row, columns, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load_hub(hub(tmp_path, [row], **columns), "code")


def test_a_data_set_that_is_not_there(tmp_path):
    source = hub(tmp_path).model_copy(update={"dataset": str(tmp_path / "nowhere")})
    with pytest.raises(InputError, match="at main: cannot be loaded"):
        load_hub(source, "code")
