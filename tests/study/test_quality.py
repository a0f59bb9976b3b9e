"""The checks on one text: what each calls good, what bad, what it will not judge, and what cannot bring it down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specprof.errors import InputError
from specprof.records import Prompt, Stop
from specprof.study.load import Command
from specprof.study.plan import make_plan
from specprof.study.prompts import load_suite
from specprof.study.quality import Answer, Mark, can_judge, in_words, mark
from specprof.study.reading import load_study, parse_study
from tests.factory import distinct_tokens, looping_tokens, make_prompt
from tests.running import ROOT

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PYTHON = make_prompt(text='def area(radius):\n    """Area of a circle."""\n')
GO = make_prompt(text='package main\n\nimport (\n\t"fmt"\n')
CHINESE = "外婆家的厨房朝北，冬天下午三点就要开灯。那盏灯泡外面蒙了一层油烟，照得案板上的萝卜发黄。"


def answer(
    text: str,
    prompt: Prompt | None = None,
    *,
    chat: bool = True,
    schema: dict[str, Any] | None = None,
    ids: tuple[int, ...] | None = None,
) -> Answer:
    prompt = replace(prompt or make_prompt(text="As JSON:\n"), schema=schema)
    return Answer(prompt, text, ids if ids is not None else distinct_tokens("x", 40), chat)


# -- json -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "age": 36}',
        '\n  {"name": "阿达", "age": 36}\n',
        '```json\n{"name": "Ada", "age": 36}\n```',
        ' ```JSON \n{"name": "Ada",\n "age": 36}\n``` \n',
    ],
)
def test_json_that_keeps_its_schema_is_good(text: str) -> None:
    assert mark("json", answer(text, schema=PERSON)) == Mark(True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not one JSON value"),
        ('{"name": "Ada", "age": 3', "is not one JSON value"),  # cut at its length
        ('Here it is:\n```json\n{"name": "Ada", "age": 36}\n```', "is not one JSON value"),
        ('```json\n{"name": "Ada", "age": 36}\n```\nDone.', "is not one JSON value"),
        ('```\n{"name": "Ada", "age": 36}\n```', "is not one JSON value"),
        ('```json\n{"name": "Ada", "age": 36}\n```\n```json\n{}\n```', "is not one JSON value"),
        ('{"name": "Ada", "age": 36} {}', "is not one JSON value"),
        ('{"name": "Ada", "age": NaN}', "is not one JSON value"),
        ("{'name': 'Ada', 'age': 36}", "is not one JSON value"),
        ('{"name": "Ada\0", "age": 36}', "is not one JSON value"),
        ('{"name": "Ada"}', "breaks its schema at $: 'age' is a required property"),
        ('{"name": "Ada", "age": "old"}', "breaks its schema at $.age: 'old' is not of type 'integer'"),
        ('{"name": "Ada", "age": 36, "x": 1}', "breaks its schema at $: Additional properties"),
    ],
)
def test_json_that_is_cut_wrapped_or_invalid_is_bad(text: str, why: str) -> None:
    judged = mark("json", answer(text, schema=PERSON))
    assert judged.good is False
    assert judged.why.startswith(why)


def test_without_a_schema_any_json_is_good() -> None:
    assert mark("json", answer('{"name": 1}')).good is True
    assert mark("json", answer("[1, 2")).good is False


def test_a_completion_goes_on_with_the_json_its_prompt_began() -> None:
    begun = make_prompt(text='The record:\n{"name": "Ada",\n ')
    assert mark("json", answer('"age": 36}', begun, chat=False, schema=PERSON)).good is True
    assert mark("json", answer('"age": "old"}', begun, chat=False, schema=PERSON)).good is False
    assert mark("json", answer('{"name": "Ada", "age": 36}', begun, chat=False, schema=PERSON)).good is False
    in_a_string = make_prompt(text='The record:\n{"age": 36, "name": "A')
    assert mark("json", answer('da"}', in_a_string, chat=False, schema=PERSON)).good is True
    complete = make_prompt(text='Like [this] and {"name": "Bob", "age": 3}. Now Ada, 36:\n')
    assert mark("json", answer('{"name": "Ada", "age": 36}\n', complete, chat=False, schema=PERSON)).good is True


def test_a_completion_may_close_the_fence_its_prompt_opened_and_no_other() -> None:
    opened, plain = make_prompt(text="Ada, 36.\n\n```json\n"), make_prompt(text="Ada, 36:\n")
    closed = '{"name": "Ada", "age": 36}\n```'
    assert mark("json", answer(closed, opened, chat=False, schema=PERSON)).good is True
    assert mark("json", answer(f"{closed}\nMore.", opened, chat=False, schema=PERSON)).good is False
    assert mark("json", answer(closed, plain, chat=False, schema=PERSON)).good is False


def test_every_prompt_of_the_suite_is_read_as_it_was_meant() -> None:
    """The first half leaves the writer to begin its JSON, the second breaks off inside one."""
    for prompt in load_suite(ROOT / "prompts" / "json.jsonl"):
        alone = mark("json", Answer(replace(prompt, schema=None), '{"a": 1}', (), chat=False))
        assert alone.good is (int(prompt.id.removeprefix("json-")) <= 44), prompt.id


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "no such type"}, "its schema is not valid JSON Schema"),
        ({"pattern": "("}, "its schema is not valid JSON Schema"),
        ({"$ref": "#/$defs/absent"}, "its schema names what is not there"),
        ({"$ref": "https://example.com/schema.json"}, "its schema names what is not there"),
        ({"$ref": "#"}, "the schema, or the text under it, nests too deeply"),
    ],
)
def test_a_schema_that_cannot_be_used_leaves_its_texts_not_judged(schema: dict[str, Any], why: str) -> None:
    judged = mark("json", answer('"text"', schema=schema))
    assert judged.good is None
    assert judged.why.startswith(why)


# -- code -------------------------------------------------------------------------------------------------------------


def test_a_completion_is_parsed_together_with_its_prompt() -> None:
    assert mark("code", answer("    return 3.14 * radius ** 2\n", PYTHON, chat=False)) == Mark(True)
    judged = mark("code", answer("    return 3.14 * radius **", PYTHON, chat=False))
    assert judged == Mark(False, "is no Python at line 3: invalid syntax")


def test_fenced_python_is_parsed_and_nothing_around_it() -> None:
    assert mark("code", answer("Sure:\n\n```python\nx = 1\n```\nThat's it.", PYTHON)).good is True
    assert mark("code", answer("Sure:\n\n```python\nx = = 1\n```", PYTHON)).good is False
    assert mark("code", answer("```python\nx = 1\n```\n```py\ny = (\n```", PYTHON)).good is False
    assert mark("code", answer("```python\nx = 1\n```\nRun it:\n```bash\n./x.py | grep (\n```", PYTHON)).good is True
    assert mark("code", answer("```\nx = 1\n```", PYTHON)).good is True
    assert mark("code", answer("~~~~python\nprint('''\n~~~\n''')\n~~~~", PYTHON)).good is True


def test_a_fence_that_is_never_closed_goes_on_to_the_end() -> None:
    """As CommonMark has it; what was cut in the middle of a line does not parse."""
    assert mark("code", answer("```python\nx = [1,\n", PYTHON)).good is False
    assert mark("code", answer("```python\nx = [1]\n", PYTHON)).good is True


def test_an_answer_without_a_fence_must_be_python_as_a_whole() -> None:
    assert mark("code", answer("x = 1\n", PYTHON)).good is True
    assert mark("code", answer("I would write a loop.", PYTHON)).why.startswith("holds no fenced block")
    assert mark("code", answer("```bash\nls\n```", PYTHON)) == Mark(False, "holds no block of Python")
    assert mark("code", answer("", PYTHON)).good is False


def test_other_languages_are_not_judged_and_the_reason_names_them() -> None:
    assert mark("code", answer("func main() {}", GO, chat=False)) == Mark(None, "the prompt is not Python")
    judged = mark("code", answer("```go\nfunc main() {\n```", GO))
    assert judged == Mark(None, "only Python is parsed, and its blocks name go")
    assert mark("code", answer("```\nfunc main() {\n```", GO)).good is None
    assert mark("code", answer("func main() {", GO)).good is None
    assert mark("code", answer("```python\nx = = 1\n```", GO)).good is False, "it says that it is Python"


@pytest.mark.parametrize("suite", ["code", "long_code"])
def test_python_prompts_are_told_from_all_the_others_of_the_suite(suite: str) -> None:
    """code-001 to 024 are Python, as their chat form says; in the long suite 001 and 009 are."""
    python = {"code": {f"code-{i:03d}" for i in range(1, 25)}, "long_code": {"long-code-001", "long-code-009"}}[suite]
    judged = {
        prompt.id
        for prompt in load_suite(ROOT / "prompts" / f"{suite}.jsonl")
        if mark("code", Answer(prompt, "", (), chat=False)).good is not None
    }
    assert judged == python


def test_nothing_is_executed(tmp_path) -> None:
    witness = tmp_path / "witness"
    code = f"open({str(witness)!r}, 'w').close()\n"
    assert mark("code", answer(f"```python\n{code}```", PYTHON)).good is True
    assert mark("code", answer(code, make_prompt(text=code), chat=False)).good is True
    assert not witness.exists()


# -- zh-prose ---------------------------------------------------------------------------------------------------------


def test_chinese_prose_with_names_and_numbers_in_it_is_good() -> None:
    assert mark("zh-prose", answer(CHINESE)) == Mark(True)
    assert mark("zh-prose", answer(f"{CHINESE}一九九八年，我在 Oxford 读书，CO2 超标，温度 23.5 度。")).good is True


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("The lamp at Skarrholm stands above the sea.", "0%"),
        ("彼女は静かに窓の外を見つめていた。雨が降り始めた。", "39%"),  # Japanese: 9 Han of 23 letters
        ("나는 학교에 갑니다.", "0%"),
        ("会议 meeting 在 tomorrow afternoon 举行", "17%"),  # 5 Han of 29 letters
    ],
)
def test_another_language_is_bad(text: str, share: str) -> None:
    assert mark("zh-prose", answer(text)) == Mark(False, f"only {share} of its letters are Han characters")


def test_text_without_words_is_bad() -> None:
    assert mark("zh-prose", answer("……。\n")) == Mark(False, "holds no words")


def test_a_loop_is_bad_by_the_definition_of_gate_7() -> None:
    """64 tokens of period 6 have 6 different 4-grams of 61: 10%, under 35%."""
    judged = mark("zh-prose", answer(CHINESE, ids=looping_tokens(64)))
    assert judged == Mark(False, "64 of its 64 tokens repeat themselves")


@pytest.mark.parametrize("suite", ["zh_prose", "long_zh", "zh_qa_context"])
def test_chinese_suites_are_chinese_and_the_others_are_not(suite: str) -> None:
    prompts = load_suite(ROOT / "prompts" / f"{suite}.jsonl")
    assert all(mark("zh-prose", Answer(p, p.text, distinct_tokens("x", 40), chat=False)).good for p in prompts)
    english = load_suite(ROOT / "prompts" / "en_prose.jsonl")
    assert not any(mark("zh-prose", Answer(p, p.text, distinct_tokens("x", 40), chat=False)).good for p in english)


# -- whatever a stranger writes ---------------------------------------------------------------------------------------

HOSTILE = {
    "empty": "",
    "NUL": "a\0b",
    "deep lists": "[" * 100_000,
    "deep and closed": "[" * 5_000 + "]" * 5_000,
    "deep objects": '{"a":' * 100_000,
    "many minus signs": "-" * 100_000 + "1",
    "a megabyte of fences": "```\n" * 250_000,
    "a megabyte of backticks": "`" * 1_000_000,
    "a fence line without end": "```" + " " * 1_000_000 + "`",
    "a label without end": "```" + "x" * 1_000_000 + "`",
    "a huge number": "9" * 100_000,
    "a megabyte of prose": "word " * 200_000,
    "lone surrogate": '"\ud800"',
    "bidi and controls": "\u202e\x1b[31m\x07",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("check", ["json", "code", "zh-prose"])
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
def test_no_text_raises_or_takes_long(check: Any, name: str, chat: bool) -> None:
    recursive = {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "integer"}]}
    judged = mark(check, answer(HOSTILE[name], PYTHON, chat=chat, schema=recursive))
    assert judged.good in (True, False, None)
    assert len(judged.why) <= 200


# -- the study file ---------------------------------------------------------------------------------------------------

STUDY = f"""
study: judged
engine: {{kind: sim, preset: small}}
arms: {{"off": {{}}}}
workloads:
  - {{tag: json, suite: {ROOT}/prompts/json.jsonl, quality: QUALITY}}
protocols:
  forced: {{stop: forced, output_tokens: 16}}
  natural: {{stop: natural, max_tokens: 16, guided: true}}
prompts: 48
"""


CHOICE = "must be json, code, zh-prose or {command: [PROGRAM, ARGUMENT, …]}"


@pytest.mark.parametrize(
    ("quality", "message"),
    [
        ("jason", f"workloads.0.quality: {CHOICE} (it says 'jason')"),
        ("[json]", f"workloads.0.quality: {CHOICE}"),
        ("3", f"workloads.0.quality: {CHOICE} (it says 3)"),
        ("{comand: [x]}", "unknown key 'workloads.0.quality.comand'. Did you mean 'command'?"),
        ("{timeout: 3}", "'workloads.0.quality.command' is missing. Add it."),
        ("{command: [x], timeout: 0}", "workloads.0.quality.timeout: Input should be greater than 0 (it says 0)"),
        ("{command: []}", "workloads.0.quality.command: Tuple should have at least 1 item"),
        ("{command: ['']}", "workloads.0.quality.command: must begin with the name of a program"),
        ("{command: python x.py}", "write the program and each argument as a list: [python, x.py]; no shell reads it"),
    ],
)
def test_a_wrong_check_is_named_with_what_to_write_instead(quality: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_study(STUDY.replace("QUALITY", quality), "judged.yaml")
    text = str(caught.value)
    assert "judged.yaml:6: " in text
    assert message in text
    assert text.count("\n") == text.count("unknown key"), "one line, or what is missing besides"


def test_checks_are_read() -> None:
    found = parse_study(STUDY.replace("QUALITY", "{command: [./check.sh, --strict], timeout: 3}"), "judged.yaml")
    check = found.workloads[0].quality
    assert check == Command(command=("./check.sh", "--strict"), timeout=3)
    assert in_words(check) == "command ./check.sh"
    assert parse_study(STUDY.replace("QUALITY", "json"), "judged.yaml").workloads[0].quality == "json"


def test_a_check_does_not_change_what_is_measured() -> None:
    with_check, without = (parse_study(STUDY.replace("QUALITY", q), "x") for q in ("json", "null"))
    assert with_check.content_hash() == without.content_hash()
    assert [c.key for c in make_plan(with_check).cells] == [c.key for c in make_plan(without).cells]


def test_the_plan_says_what_cannot_be_judged_and_what_has_no_schema(tmp_path) -> None:
    path = tmp_path / "judged.yaml"
    path.write_text(STUDY.replace("QUALITY", "json"), encoding="utf-8")
    notes = make_plan(load_study(path)).notes
    assert any(note.startswith("json, forced: texts are not judged by 'json', since") for note in notes)
    (guided,) = (note for note in notes if "schema" in note)
    assert guided.startswith("json, natural: ")
    assert guided.endswith(" of 48 prompts have no schema and are written freely.")
    assert not any(note.startswith("json, natural: texts") for note in notes)


def test_forced_text_can_be_judged_by_what_needs_no_end() -> None:
    assert not can_judge("json", Stop.FORCED)
    assert not can_judge("code", Stop.FORCED)
    assert can_judge("zh-prose", Stop.FORCED)
    assert can_judge(Command(command=("x",)), Stop.FORCED)
    assert all(can_judge(check, Stop.NATURAL) for check in ("json", "code", "zh-prose"))
