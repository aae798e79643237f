"""The reader agrees with the safetensors library on sound files and never does anything worse than refuse on others."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxinfer.checkpoint.safetensors_file import SafetensorsFile
from jaxinfer.errors import CheckpointError
from tests.support.checkpoints import write_safetensors

TENSORS = {
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.linspace(-1, 1, 7).astype(np.float16),
    "brain": np.linspace(-1, 1, 8).astype(ml_dtypes.bfloat16).reshape(2, 2, 2),
    "odd": np.arange(3, dtype=np.uint8),
    "after an odd number of bytes": np.full((5,), 2.5, np.float32),
    "scalar": np.array(3, np.float32),
}


def test_tensors_written_by_the_library_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(TENSORS, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert file.tensors.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        if expected.dtype == np.uint8:
            assert file.tensors[name].dtype == "U8"
            continue
        view = file.view(file.tensors[name])
        assert (view.dtype, view.shape, view.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_the_library_reads_what_the_test_writer_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, TENSORS)
    read = safetensors.numpy.load_file(path)
    assert {name: array.tobytes() for name, array in read.items()} == {
        name: array.tobytes() for name, array in TENSORS.items()
    }


def test_a_view_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, TENSORS)
    file = SafetensorsFile(path)
    with pytest.raises(ValueError, match="read-only"):
        file.view(file.tensors["matrix"])[0, 0] = 1


def test_a_file_without_tensors_and_tensors_without_elements_are_sound(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {})
    assert SafetensorsFile(path).tensors == {}
    write_safetensors(path, {"none": np.zeros((0, 3), np.float32), "one": np.ones(1, np.float32)})
    assert [entry.shape for entry in SafetensorsFile(path).tensors.values()] == [(0, 3), (1,)]


def test_a_released_tensor_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, TENSORS)
    file = SafetensorsFile(path)
    entry = file.tensors["matrix"]
    view = file.view(entry)
    file.will_need(entry, range(3))
    file.release(entry, range(1, 2))
    np.testing.assert_array_equal(view, TENSORS["matrix"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_or_still_sound_never_a_crash(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, TENSORS)
    content = bytearray(path.read_bytes())
    header_stop = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header_stop - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(len(content) - 4, len(content)))]))
    try:
        file = SafetensorsFile(path)
    except CheckpointError as refusal:
        assert "a.safetensors" in str(refusal)
        return
    spans = sorted((entry.start, entry.stop) for entry in file.tensors.values())
    assert all(stop <= path.stat().st_size for _, stop in spans)
    assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:], strict=False))
