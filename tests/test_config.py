"""EngineConfig: what a value may be, where it comes from, and what a wrong name or value is told."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.config import SETTINGS, EngineConfig, config_from_sources, config_from_values, nearest_name, parse_int
from jaxinfer.errors import ConfigError


@pytest.fixture
def preset(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "preset.toml"
        path.write_text(text)
        return str(path)

    return write


def test_every_field_is_a_setting_whose_default_is_accepted():
    assert list(SETTINGS) == [field.name for field in dataclasses.fields(EngineConfig)]
    assert all(setting.accepts(setting.default) for setting in SETTINGS.values())


def test_flags_win_over_the_environment_which_wins_over_the_file(preset):
    file = preset("max_num_seqs = 1\nmax_model_len = 1024\nseed = 1\n")
    env = {"JAXINFER_MAX_NUM_SEQS": "2", "JAXINFER_MAX_MODEL_LEN": "2K", "HOME": "elsewhere"}
    resolved = config_from_sources(file, env, {"max_num_seqs": "3", "dtype": None})
    assert resolved.config == EngineConfig(max_num_seqs=3, max_model_len=2048, seed=1)
    assert resolved.sources == {
        "max_num_seqs": "--max-num-seqs",
        "max_model_len": "JAXINFER_MAX_MODEL_LEN",
        "seed": file,
    }


def test_the_sources_are_shown_in_the_order_of_the_settings():
    resolved = config_from_sources(flags={"page_size": "16", "model": "demo", "enable_prefix_caching": False})
    assert resolved.rows() == (
        ("model", "demo (--model)"),
        ("page_size", "16 (--page-size)"),
        ("enable_prefix_caching", "false (--enable-prefix-caching)"),
    )


def test_auto_takes_an_optional_number_back(preset):
    resolved = config_from_sources(preset("max_model_len = 4096"), {}, {"max_model_len": "auto"})
    assert resolved.config.max_model_len is None


def test_each_type_is_read_from_text():
    env = {
        "JAXINFER_SERVED_MODEL_NAME": "a,b",
        "JAXINFER_GPU_MEMORY_UTILIZATION": "0.5",
        "JAXINFER_ENABLE_CHUNKED_PREFILL": "off",
        "JAXINFER_DTYPE": "float32",
    }
    config = config_from_sources(env=env).config
    assert config.served_model_name == ("a", "b")
    assert config.gpu_memory_utilization == 0.5
    assert not config.enable_chunked_prefill
    assert config.dtype == "float32"


def test_overrides_are_a_json_object_wherever_they_stand(preset):
    wanted = {"rope_scaling": {"type": "linear", "factor": 2.0}, "wings": None}
    text = '{"rope_scaling": {"type": "linear", "factor": 2.0}, "wings": null}'
    resolved = config_from_sources(flags={"hf_overrides": text})
    assert resolved.config.hf_overrides == wanted
    assert resolved.rows() == (("hf_overrides", f"{text} (--hf-overrides)"),)
    assert config_from_sources(env={"JAXINFER_HF_OVERRIDES": text}).config.hf_overrides == wanted
    assert config_from_values({"hf_overrides": wanted}).hf_overrides == wanted
    assert config_from_sources(preset("[hf_overrides]\nrope_theta = 5.0")).config.hf_overrides == {"rope_theta": 5.0}


@pytest.mark.parametrize("text", ["", "rope_theta=5", "[1]", "3", '{"a": 1', '{"a":' * 100_000])
def test_overrides_that_are_no_json_object_are_refused(text):
    with pytest.raises(ConfigError, match="--hf-overrides must be a JSON object, got"):
        config_from_sources(flags={"hf_overrides": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("2G", 2**31), ("3m", 3_000_000), ("1_000", 1000)],
)
def test_suffixes_are_decimal_in_lower_case_and_binary_in_upper_case(text, value):
    assert parse_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.2345k", "12kk", "ten", "1e3", "-"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(ValueError, match="."):
        parse_int(text)


def test_a_number_beyond_all_numbers_is_refused_as_any_other():
    with pytest.raises(ConfigError, match="--max-model-len must be an integer"):
        config_from_sources(None, flags={"max_model_len": "1.0e999k"})


def test_an_unknown_key_names_the_file_and_the_nearest_key(preset):
    file = preset("max_sequences = 3")
    with pytest.raises(ConfigError) as error:
        config_from_sources(file)
    assert str(error.value) == f"{file}: unknown key 'max_sequences', did you mean 'max_num_seqs'?"


def test_an_unknown_variable_names_the_nearest_one():
    with pytest.raises(
        ConfigError, match="unknown environment variable 'JAXINFER_MAX_SEQS', did you mean 'JAXINFER_MAX_"
    ):
        config_from_sources(env={"JAXINFER_MAX_SEQS": "3"})


@given(st.sampled_from(sorted(SETTINGS)), st.data())
def test_a_setting_with_two_letters_swapped_is_found_and_one_with_another_number_is_not(name, data):
    at = data.draw(st.integers(0, len(name) - 2))
    assert nearest_name(name[:at] + name[at + 1] + name[at] + name[at + 2 :], SETTINGS) == name
    assert nearest_name(name.upper(), SETTINGS) == name
    assert nearest_name(f"{name}-4080", [f"{name}-4090"]) is None


def test_a_name_that_is_like_none_is_not_told_another():
    with pytest.raises(ConfigError, match="'JAXINFER_TEMPERATURE'; docs/reference/settings.md has them all$"):
        config_from_sources(env={"JAXINFER_TEMPERATURE": "3"})


def test_an_unknown_name_in_python_names_the_nearest_one():
    with pytest.raises(ConfigError, match="unknown setting 'max_len', did you mean 'max_model_len'"):
        config_from_values({"max_len": 3})


def test_variables_of_others_and_of_a_cluster_are_left_alone():
    cluster = {
        "JAXINFER_SERVICE_HOST": "10.0.0.1",
        "JAXINFER_SERVICE_PORT_HTTP": "80",
        "JAXINFER_PORT": "tcp://10.0.0.1:80",
        "JAXINFER_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert config_from_sources(env=cluster | {"JAXINFER_HOST": "::1"}, other_env={"JAXINFER_HOST"}).sources == {}


def test_all_faults_are_reported_at_once_each_with_its_place(preset):
    file = preset("page_size = 48\nspeed = 9")
    with pytest.raises(ConfigError) as error:
        config_from_sources(file, {"JAXINFER_RUN_AHEAD": "2"}, {"max_num_seqs": "many"})
    message = str(error.value)
    assert f"{file}: page_size must be an integer in 1 .. 4096, a power of two or auto, got 48" in message
    assert f"{file}: unknown key 'speed'" in message
    assert "JAXINFER_RUN_AHEAD must be an integer in 0 .. 1, got 2" in message
    assert "--max-num-seqs must be an integer in 1 .. 4096 or auto, got 'many'" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("max_num_seqs", 2.0),
        ("max_num_seqs", "4"),
        ("max_model_len", 1),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", float("nan")),
        ("gpu_memory_utilization", None),
        ("dtype", "fp8"),
        ("device", "tpu"),
        ("page_size", 24),
        ("seed", -1),
        ("seed", 2**64),
        ("run_ahead", 2),
        ("num_pages", 1),
        ("enable_prefix_caching", 1),
        ("served_model_name", "alone"),
        ("served_model_name", ("",)),
        ("model", None),
    ],
)
def test_a_value_outside_its_law_is_refused_in_python_too(name, value):
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        EngineConfig(**{name: value})


def test_a_preset_goes_by_its_name_and_a_file_of_that_name_wins(tmp_path, monkeypatch):
    assert config_from_sources("demo-cpu").config.model == "demo"
    with pytest.raises(ConfigError, match="unknown preset 'demo-cpus', did you mean 'demo-cpu'?"):
        config_from_sources("demo-cpus")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-cpu").write_text("seed = 7")
    assert config_from_sources("demo-cpu").config.seed == 7


def test_a_broken_file_is_named(tmp_path, preset):
    with pytest.raises(ConfigError, match="must be TOML, one `name = value` to a line, got .*line 1"):
        config_from_sources(preset("seed 3"))
    with pytest.raises(ConfigError, match="file not found: .*absent.toml"):
        config_from_sources(str(tmp_path / "absent.toml"))
