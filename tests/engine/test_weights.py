"""Bytes a step reads, from headers written by hand: the format is 8 bytes of length, JSON, then the data."""

from __future__ import annotations

import json
import struct

import pytest

from specprof.engine.weights import config_file, num_parameters, read_config, step_bytes
from specprof.errors import InputError

EMBEDDING = ("model.embed_tokens.weight", "BF16", [100, 8], 1600)
LAYER = ("model.layers.0.mlp.up_proj.weight", "BF16", [32, 8], 512)
HEAD = ("lm_head.weight", "BF16", [100, 8], 1600)
EXPERT = ("model.layers.0.mlp.experts.0.up_proj.weight", "BF16", [32, 8], 512)


@pytest.fixture
def folder(tmp_path):
    def made(*tensors, config=None):
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, size in tensors:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
        (tmp_path / "config.json").write_text(json.dumps(config or {}))
        return tmp_path

    return made


def test_tied_embeddings_are_the_output_layer_and_are_read(folder):
    assert step_bytes(folder(EMBEDDING, LAYER)) == 1600 + 512


def test_untied_embeddings_are_looked_up(folder):
    assert step_bytes(folder(EMBEDDING, LAYER, HEAD)) == 512 + 1600


def test_served_in_another_type(folder):
    assert step_bytes(folder(EMBEDDING, LAYER), "torch.float32") == 2 * (1600 + 512)


def test_quantised_files_are_served_as_they_are(folder):
    assert step_bytes(folder(EMBEDDING, LAYER, config={"quantization_config": {"bits": 4}}), "float32") == 1600 + 512


def test_experts_are_not_all_read(folder):
    assert step_bytes(folder(EMBEDDING, LAYER, EXPERT)) is None


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, struct.pack("<Q", 4) + b"null"])
def test_what_is_no_safetensors_file_tells_nothing(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.json").write_text("{}")
    assert step_bytes(tmp_path) is None


def test_a_hub_name_tells_nothing(tmp_path):
    assert step_bytes(tmp_path / "org" / "model") is None


def test_parameters_of_all_tensors(folder):
    assert num_parameters(folder(EMBEDDING, LAYER, EXPERT)) == 800 + 256 + 256


def test_quantised_files_do_not_tell_how_many_parameters(folder):
    assert num_parameters(folder(EMBEDDING, config={"quantization_config": {"bits": 4}})) is None


def test_a_folder_without_weights_has_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert num_parameters(tmp_path) is None


def test_a_config_is_named_by_its_folder_or_itself(folder):
    made = folder(LAYER, config={"hidden_size": 8})
    assert config_file(made) == config_file(made / "config.json") == made / "config.json"
    assert read_config(config_file(made)) == {"hidden_size": 8}


@pytest.mark.parametrize("text", ["[1]", "{", "\x00"])
def test_what_is_no_config_is_refused_by_name(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(tmp_path / "config.json")


def test_a_folder_without_a_config_is_no_model(tmp_path):
    with pytest.raises(InputError, match=r"no folder with a config\.json"):
        config_file(tmp_path)
