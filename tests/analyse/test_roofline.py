"""The bounds of METHOD 9 against the anchor of the seed articles, and against arithmetic done by hand."""

from __future__ import annotations

import pytest

from specprof.analyse import roofline
from specprof.analyse.roofline import Hardware, ModelShape
from tests.factory import data

CLAIMS = {claim["id"]: claim for claim in data("seed_claims.json")["claims"]}

P = 25_624_600_064
ANCHOR = ModelShape(
    weight_bytes=2 * P,
    num_parameters=P,
    kv_bytes_per_token=65_536,
    state_bytes=150_994_944,
    resident_bytes=55.56e9,
    attention_layers=16,
    num_heads=24,
    head_dim=256,
)
H100 = Hardware("H100", bandwidth=3.35e12, flops=989e12, memory=80e9, source="METHOD 9")


def expected(name):
    return pytest.approx(CLAIMS[name]["expected"], rel=CLAIMS[name]["rel_tol"])


@pytest.mark.parametrize(("streams", "step_ms"), [(1, 15.469), (8, 16.660), (27, 19.896), (58, 25.174)])
def test_decode_steps_and_throughput(streams, step_ms):
    assert roofline.tpot_s(ANCHOR, H100, streams, 4096) * 1e3 == pytest.approx(step_ms, abs=0.0006)
    assert roofline.throughput_tok_s(ANCHOR, H100, streams, 4096) == expected(f"roof_B{streams}")


def test_most_streams_within_a_target_and_in_memory():
    assert roofline.largest_concurrency(ANCHOR, H100, 4096, within_s=0.020) == CLAIMS["roof_slo20"]["expected"]
    assert roofline.capacity(ANCHOR, H100, 4096) == CLAIMS["roof_cap"]["expected"]
    assert roofline.capacity(ANCHOR, H100, 32768) == 10  # the claim's note


def test_reading_a_long_prompt():
    assert roofline.prefill_s(ANCHOR, H100, 32768) == expected("prefill_32k")
    assert roofline.prefill_s(ANCHOR, H100, 131072) == expected("prefill_128k")


def test_reading_it_in_chunks_beside_57_streams():
    steps = list(roofline.chunk_steps_s(ANCHOR, H100, 32768, chunk=512, decoding=57, context=4096))
    assert max(steps) == expected("chunk_max")
    assert sum(steps) == expected("chunk_ttft")


def test_a_draft_is_free_below_the_ridge_and_not_above():
    """16-bit weights: W = 2P, so the ridge is F / BW tokens."""
    ridge = roofline.ridge_tokens(ANCHOR, H100)
    assert ridge == pytest.approx(989e12 / 3.35e12)
    plain = roofline.tpot_s(ANCHOR, H100, 8, 0)
    assert roofline.verification_step_s(ANCHOR, H100, 8, 3, context=0) == plain
    above = int(ridge / 8) + 10
    assert roofline.verification_step_s(ANCHOR, H100, 8, above, context=0) > plain


def test_nothing_fits_where_the_weights_do_not():
    small = Hardware("small", bandwidth=1e12, flops=1e12, memory=1e9, source="made up")
    assert roofline.capacity(ANCHOR, small, 4096) == 0
    assert roofline.largest_concurrency(ANCHOR, small, 4096, within_s=0.001) == 0
