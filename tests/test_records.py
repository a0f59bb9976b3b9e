"""What an arm is called, and how long its drafts may be."""

from __future__ import annotations

import pytest

from specprof.records import arm_in_words, draft_length


@pytest.mark.parametrize(
    ("flags", "length", "words"),
    [
        (None, 0, "off"),
        ({"method": "ngram", "num_speculative_tokens": 4}, 4, "ngram K=4"),
        ({"method": "suffix"}, 24, "suffix K=24"),  # vLLM: the depth of its tree
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 16}, 16, "suffix K=16"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 16, "num_speculative_tokens": 8}, 8, "suffix K=8"),
        ({"method": "mtp"}, 0, "mtp K=?"),  # the checkpoint's own
    ],
)
def test_draft_length_and_the_arm_in_words(flags, length, words):
    assert draft_length(flags) == length
    assert arm_in_words(flags) == words
