"""Recorded traffic: three layouts are read, wrong ones are named by line, and a replay is what was recorded."""

from __future__ import annotations

import csv
import gzip
import json
import time
from collections import Counter
from itertools import pairwise

import pytest

from specprof.errors import InputError
from specprof.records import Phase, Role, phase_due
from specprof.study.load import Trace
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from specprof.study.replay import NEAREST, replay, rough_tokens
from specprof.study.trace import read_trace
from tests.factory import make_prompt, packed
from tests.running import specprof

# The first rows of AzureLLMInferenceTrace_code.csv (github.com/Azure/AzurePublicDataset, data/).
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
BURSTGPT_COLUMNS = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
# The columns of BurstGPT_1.csv and BurstGPT_3.csv (github.com/HPMLL/BurstGPT, README.md); the third request failed.
BURSTGPT = f"""\
{BURSTGPT_COLUMNS}
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
105,GPT-4,300,0,300,API log
118,GPT-4,417,276,693,Conversation log
"""
BURSTGPT_SESSIONS = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,29,65,Conversation log
"""
OURS = """\
timestamp,tag,prompt_tokens,output_tokens
100.0,code,40,8
100.5,prose,10,16
102.0,code,20,400
104.0,prose,30,12
"""


@pytest.fixture
def write(tmp_path):
    """A trace file of this text."""

    def written(text, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return written


def told(recording):
    """Time, prompt and output tokens of every request."""
    return [(round(one.at_s, 6), one.prompt_tokens, one.output_tokens) for one in recording.requests]


# -- layouts ---------------------------------------------------------------------------------------------------------


def test_azure_traces_are_read_by_their_columns(write):
    recording = read_trace(write(AZURE))
    assert recording.layout == "azure"
    assert told(recording) == [(0.0, 4808, 10), (0.052, 3180, 8), (0.098189, 110, 27)]
    assert {one.tag for one in recording.requests} == {None}


def test_azure_times_with_a_zone_are_the_same_instants(write):
    """The traces of 2024 write +00:00; a clock that is put forward in between takes no hour out."""
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-03-31 00:30:00.5+00:00,7,5\n2024-03-31 03:30:00+01:00,8,6\n"
    assert told(read_trace(write(rows))) == [(0.0, 7, 5), (7199.5, 8, 6)]
    naive = rows.replace("+00:00", "").replace("+01:00", "")
    assert told(read_trace(write(naive, "naive.csv"))) == [(0.0, 7, 5), (10799.5, 8, 6)]


def test_burstgpt_is_read_without_its_failures(write):
    recording = read_trace(write(BURSTGPT))
    assert recording.layout == "burstgpt"
    assert told(recording) == [(0.0, 472, 18), (40.0, 1087, 230), (113.0, 417, 276)]
    assert recording.num_failed == 1


def test_later_releases_of_burstgpt_have_more_columns(write):
    assert told(read_trace(write(BURSTGPT_SESSIONS))) == [(0.0, 906, 446), (51.0, 36, 29)]


def test_our_own_layout_names_contents(write):
    recording = read_trace(write(OURS))
    assert recording.layout == "specprof"
    assert [(one.at_s, one.tag, one.line) for one in recording.requests] == [
        (0.0, "code", 2),
        (0.5, "prose", 3),
        (2.0, "code", 4),
        (4.0, "prose", 5),
    ]


def test_only_the_times_are_needed(write):
    assert told(read_trace(write("timestamp\n3\n1\n2.5\n"))) == [
        (0.0, None, None),
        (1.5, None, None),
        (2.0, None, None),
    ]


def test_json_lines_and_compressed_files_say_the_same(write):
    header, *lines = OURS.splitlines()
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    typed = [{**row, "timestamp": float(row["timestamp"]), "output_tokens": int(row["output_tokens"])} for row in rows]
    plain = read_trace(write(OURS))
    for name, text in {
        "trace.jsonl": "\n".join(map(json.dumps, typed)),
        "trace.csv.gz": gzip.compress(OURS.encode()),
        "trace.csv.zst": packed("zstd", OURS.encode()),
        "bom.csv": b"\xef\xbb\xbf" + OURS.replace("\n", "\r\n").encode(),
    }.items():
        again = read_trace(write(text, name))
        assert told(again) == told(plain), name
        assert [one.tag for one in again.requests] == [one.tag for one in plain.requests], name


def test_a_file_that_changed_is_read_again(write):
    assert len(read_trace(write(OURS)).requests) == 4
    assert len(read_trace(write(OURS + "105,code,1,1\n")).requests) == 5


@pytest.mark.parametrize(
    ("text", "layout", "message"),
    [
        ("when,how long\n1,2\n", "auto", r":1: its columns \(when, how long\).*azure has TIMESTAMP, ContextTokens"),
        (AZURE, "burstgpt", r":1: its columns \(TIMESTAMP, .*: burstgpt has Timestamp, Request tokens"),
        (OURS.replace("prompt_tokens", "prompt_token"), "auto", ":1: unknown column 'prompt_token'. Did you mean"),
        ("timestamp,timestamp\n1,2\n", "auto", ":1: column 'timestamp' stands twice"),
        (AZURE.replace("18:17:04.03", "18h17"), "auto", ":3: TIMESTAMP: .* is not a date and time such as"),
        (BURSTGPT.replace("45,", "soon,"), "auto", ":3: Timestamp: 'soon' is not a number of seconds"),
        (OURS.replace("100.5", "nan"), "auto", ":3: timestamp: 'nan' is not a number of seconds"),
        (BURSTGPT.replace("1087", "many"), "auto", ":3: Request tokens: 'many' is not a whole number of tokens"),
        (OURS.replace(",16", ",-16"), "auto", ":3: output_tokens: '-16' is not a whole number of tokens"),
        (OURS.replace("100.5,prose", "100.5"), "auto", ":3: has 3 values, its header 4 columns"),
        ("timestamp\n", "auto", "holds no request with output tokens"),
        ("", "auto", "begins with no line of column names"),
        ('{"timestamp": 1}\n{"timestamp": 2, "tag": "code"}\n', "auto", ":2: has the keys timestamp, tag, the first"),
        ('{"timestamp": 1}\n{"timestamp":\n', "auto", ":2: is not JSON"),
        ('{"timestamp": 1}\n\n[2]\n', "auto", ":3: is no JSON object"),
        ('{"timestamp": 1, "output_tokens": 2.5}\n', "auto", ":1: output_tokens: 2.5 is not a whole number"),
        (b"\xff\xfe\x00t", "auto", "cannot be read"),
    ],
)
def test_a_trace_that_cannot_be_used_is_told_with_its_line(write, text, layout, message):
    with pytest.raises(InputError, match=message):
        read_trace(write(text), layout)


def test_a_damaged_archive_is_told(write):
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(write(gzip.compress(OURS.encode())[:-20], "trace.csv.gz"))


def test_a_million_requests_are_read_in_seconds(write):
    """In no more than thirty times what splitting its lines into fields takes, by this process's own time."""
    rows = (f"{n / 10:.1f},ChatGPT,{n % 3000},{n % 400},0,API log" for n in range(1_000_000))
    path = write("\n".join([BURSTGPT_COLUMNS, *rows]))
    began = time.process_time()
    with path.open(encoding="utf-8", newline="") as lines:
        assert sum(1 for _ in csv.reader(lines)) == 1_000_001
    split = time.process_time()
    recording = read_trace(path)
    assert time.process_time() - split < 30 * (split - began)
    assert recording.num_failed == 2500  # every 400th
    assert len(recording.requests) == 997_500


# -- replay ----------------------------------------------------------------------------------------------------------


def prompts_of(tag, *lengths):
    """Prompts of so many rough tokens, a quarter of their bytes."""
    return [make_prompt(f"{tag}-{n}", tag=tag, text="x" * 4 * n) for n in lengths]


SUITES = {"code": prompts_of("code", 10, 20, 30, 40, 50, 60), "prose": prompts_of("prose", 10, 20, 30, 40)}


def replayed(path, seed="0", max_tokens=256, tail_s=120.0, prompts=SUITES, **load):
    return replay(Trace(kind="trace", file=path, **{"warmup": 0, **load}), prompts, seed, max_tokens, tail_s)


def test_times_begin_at_zero_and_are_divided_by_the_speed(write):
    path = write(OURS)
    assert replayed(path).arrivals.due_s == (0.0, 0.5, 2.0, 4.0)
    assert replayed(path, speed=2).arrivals.due_s == (0.0, 0.25, 1.0, 2.0)
    assert replayed(path, speed=0.5).arrivals.due_s == (0.0, 1.0, 4.0, 8.0)


def test_the_whole_trace_is_measured_but_for_its_warm_up(write):
    """Four requests in 4 s: with a mean gap of 4/3 s after the last, the trace lasts 16/3 s; 1 s of it warms up."""
    arrivals = replayed(write(OURS), warmup=1).arrivals
    assert [phase_due(arrivals, at) for at in arrivals.due_s] == [Phase.WARMUP] * 2 + [Phase.MEASURED] * 2
    assert arrivals.duration_s == pytest.approx(16 / 3 - 1)
    assert arrivals.rate_per_s == pytest.approx(2 / (16 / 3 - 1))


def test_a_duration_cuts_and_the_tail_keeps_the_load_up(write):
    arrivals = replayed(write(OURS), warmup=0.25, duration=1, tail_s=2, max_concurrency=3, timeout=9).arrivals
    assert arrivals.due_s == (0.0, 0.5, 2.0)
    assert [phase_due(arrivals, at) for at in arrivals.due_s] == [Phase.WARMUP, Phase.MEASURED, Phase.FILL]
    assert (arrivals.rate_per_s, arrivals.max_concurrency, arrivals.timeout_s) == (1.0, 3, 9)


def test_burstiness_is_that_of_the_recorded_gaps(write):
    """Gaps of 0.5, 1.5 and 2: mean 4/3, variance 7/18."""
    assert replayed(write(OURS)).arrivals.burstiness == pytest.approx((4 / 3) ** 2 / (7 / 18))
    assert replayed(write("timestamp\n1\n2\n3\n", "even.csv")).arrivals.burstiness == 1.0


def test_answers_are_as_long_as_recorded_and_never_longer_than_the_protocol(write):
    path = write(OURS)
    found = replayed(path, max_tokens=100)
    assert found.arrivals.output_tokens == (8, 16, 100, 12)
    assert any("1 of 4 recorded answers are longer than this protocol's 100 tokens" in note for note in found.notes)
    assert replayed(write("timestamp\n1\n2\n", "times.csv")).arrivals.output_tokens == ()


def test_every_request_gets_a_prompt_of_its_content_near_its_length(write):
    rows = "\n".join(f"{n},code,31,5" for n in range(200))
    found = replayed(write(f"timestamp,tag,prompt_tokens,output_tokens\n{rows}\n"))
    drawn = Counter(prompt.id for prompt in found.prompts)
    assert set(drawn) == {"code-20", "code-30", "code-40", "code-50"}  # 11, 1, 9 and 19 away; the others 21 and 29
    assert len(drawn) == NEAREST
    assert min(drawn.values()) > 20  # of 200, so no one of them is sent for ever


def test_a_chinese_character_counts_as_three_quarters_of_a_token():
    assert rough_tokens(make_prompt(text="汉字" * 10)) == 15


def test_contents_of_a_trace_without_tags_take_turns_in_equal_parts(write):
    path = write(BURSTGPT_COLUMNS + "".join(f"\n{n},GPT-4,20,5,25,API log" for n in range(100)))
    tags = [prompt.tag for prompt in replayed(path).prompts]
    assert all(set(turn) == {"code", "prose"} for turn in zip(tags[::2], tags[1::2], strict=True))
    assert len(set(zip(tags[::2], tags[1::2], strict=True))) == 2  # in both orders


def test_the_seed_alone_decides(write):
    path = write(BURSTGPT_COLUMNS + "".join(f"\n{n},GPT-4,20,5,25,API log" for n in range(50)))
    assert replayed(path) == replayed(path)
    assert replayed(path).prompts != replayed(path, seed="1").prompts
    assert replayed(path).arrivals == replayed(path, seed="1").arrivals


def test_notes_tell_what_differs_from_the_trace(write):
    notes = " ".join(replayed(write(BURSTGPT), max_tokens=500).notes)
    assert "1 of its requests had no output tokens" in notes
    assert "recorded prompts have 472 tokens at the median, those sent in their place about" in notes
    near = {tag: prompts_of(tag, 24, 25, 26, 27) for tag in SUITES}
    assert replayed(write(OURS), max_tokens=500, prompts=near).notes == ()


@pytest.mark.parametrize(
    ("text", "load", "message"),
    [
        (OURS.replace("102.0,code", "102.0,json"), {}, r":4: tag: 'json' is no workload of this protocol \(code"),
        (OURS, {"warmup": 6}, r"lasts 5.333 s at speed 1, no longer than the warm-up of 6 s"),
        (OURS, {"warmup": 1, "duration": 5}, "leaves 4.333 s after a warm-up of 1 s"),
        (OURS, {"warmup": 1, "duration": 0.5}, "no request comes in the 0.5 s after a warm-up of 1 s"),
        (OURS.replace("104.0", "1e9"), {"speed": 1e10, "duration": 60}, "lasts 0.1333 s at speed 1e"),
        ("timestamp\n7\n7\n", {}, "all its requests come at one instant"),
    ],
)
def test_a_replay_that_cannot_be_is_refused(write, text, load, message):
    with pytest.raises(InputError, match=message):
        replayed(write(text), **load)


# -- the study -------------------------------------------------------------------------------------------------------

STUDY = """\
study: replayed
engine: {kind: sim, preset: small}
arms: {"off": {}, k4: {speculative_config: {method: mtp, num_speculative_tokens: 4}}}
workloads: [{tag: code, suite: code.jsonl}, {tag: prose, suite: prose.jsonl}]
protocols:
  served: {stop: forced, output_tokens: 64, load: {kind: trace, file: traces/day.csv, warmup: 1, timeout: 5}}
prompts: 4
blocks: 2
"""


@pytest.fixture
def study_file(tmp_path):
    """A study beside its suites and its trace."""
    for tag in ("code", "prose"):
        lines = [
            {"id": p.id, "tag": tag, "lang": "en", "prompt": p.text, "messages": list(p.messages), "license": "CC0-1.0"}
            for p in SUITES[tag]
        ]
        (tmp_path / f"{tag}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "day.csv").write_text(OURS, encoding="utf-8")
    path = tmp_path / "study.yaml"
    path.write_text(STUDY, encoding="utf-8")
    return path


def test_a_trace_becomes_one_cell_of_all_its_contents(study_file):
    cells = [cell for cell in make_plan(load_study(study_file)).cells if cell.role is Role.OPEN]
    assert [(cell.arm, cell.block) for cell in cells] in (
        [("off", 0), ("k4", 0), ("k4", 1), ("off", 1)],
        [("k4", 0), ("off", 0), ("off", 1), ("k4", 1)],
    )
    for cell in cells:
        assert (cell.tag, cell.prompt_tags) == ("code+prose", ("code", "prose", "code", "prose"))
        assert cell.arrivals.output_tokens == (8, 16, 64, 12)
        assert cell.max_tokens == 64
    for one, other in pairwise(cells):
        if one.block == other.block:  # another arm, and nothing else
            assert (one.arrivals, one.prompt_ids) == (other.arrivals, other.prompt_ids)
        assert one.key != other.key


def test_contents_are_named_in_the_order_of_the_study_whichever_comes_first(study_file):
    day = study_file.parent / "traces" / "day.csv"
    day.write_text("timestamp\n" + "\n".join(map(str, range(9))), encoding="utf-8")
    text = STUDY.replace("blocks: 2", "blocks: 8")
    study_file.write_text(text, encoding="utf-8")
    cells = [cell for cell in make_plan(load_study(study_file)).cells if cell.role is Role.OPEN]
    assert {cell.prompt_tags[0] for cell in cells} == {"code", "prose"}
    assert {cell.tag for cell in cells} == {"code+prose"}


def test_the_study_hash_does_not_hang_on_where_the_trace_lies(study_file):
    moved = study_file.parent / "day.csv"
    moved.write_text(OURS, encoding="utf-8")
    before = load_study(study_file).content_hash()
    study_file.write_text(STUDY.replace("traces/day.csv", str(moved)), encoding="utf-8")
    assert load_study(study_file).content_hash() == before


def test_a_missing_trace_is_named(study_file):
    (study_file.parent / "traces" / "day.csv").unlink()
    with pytest.raises(InputError, match=r"trace traces/day\.csv does not exist"):
        load_study(study_file)


def test_plan_shows_the_notes(study_file):
    planned = specprof("plan", study_file)
    assert planned.returncode == 0, planned.stderr
    assert "1 of 4 recorded answers are longer than this protocol's 64 tokens" in " ".join(planned.stdout.split())
