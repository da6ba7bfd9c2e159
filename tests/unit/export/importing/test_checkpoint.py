"""Tests of files saved by torch and numpy: content that is read as plain values, and content that is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from attendant.export.importing import fairseq, opennmt
from attendant.export.importing.checkpoint import Weights, read_arrays, read_torch
from attendant.runtime.errors import UserError


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(12.5), 12.5),
        (np.int64(-3), -3),
        (np.bool_(True), True),
        (np.str_("steps"), "steps"),
        (np.dtype(">f8").type(2.5), 2.5),
    ],
)
def test_numpy_scalars_are_plain_values(value: Any, plain: Any, tmp_path: Path) -> None:
    torch.save({"score": value}, tmp_path / "model.pt")
    score = read_torch(tmp_path / "model.pt")["score"]
    assert (score, type(score)) == (plain, type(plain))


def test_numpy_1_scalars_are_plain_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt"
    torch.save({"score": np.float64(1.5)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert read_torch(path) == {"score": 1.5}


def test_numpy_arrays_do_not_prevent_reading(tmp_path: Path) -> None:
    torch.save({"history": np.arange(6.0).reshape(2, 3), "step": 4}, tmp_path / "model.pt")
    assert read_torch(tmp_path / "model.pt")["step"] == 4


@pytest.mark.parametrize("value", [np.datetime64("2026-01-01"), np.array([{}], dtype=object)])
def test_values_that_are_not_plain_are_refused_by_type(value: Any, tmp_path: Path) -> None:
    torch.save({"value": value}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"it is made of numpy\.\w+"):
        read_torch(tmp_path / "model.pt")


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize(("read", "options"), [(read_torch, ()), (fairseq.read, (False,)), (opennmt.read, (False,))])
def test_nothing_of_a_checkpoint_is_executed(
    read: Callable[..., object], options: tuple[bool, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"args": Malicious(), "opt": Malicious()}, "model.pt")
    with pytest.raises(UserError, match=r"it is made of posix\.system, which would have to be executed"):
        read(Path("model.pt"), *options)
    assert not Path("executed").exists()


def test_torchscript_is_named(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "model.pt", "w") as archive:  # as by torch.jit.save, without its content
        for name in ("constants.pkl", "data.pkl", "version"):
            archive.writestr(f"model/{name}", "3\n")
    with pytest.raises(UserError, match=r"model\.pt: it is TorchScript, a program .*: save it again, as tensors"):
        read_torch(tmp_path / "model.pt")


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("share", [0, 0.05, 0.5, 0.99])
def test_a_truncated_file_is_refused_with_its_size(archive: bool, share: float, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"weights": torch.arange(100.0)}, path, _use_new_zipfile_serialization=archive)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=r"model\.pt: .*truncated or damaged at [\d,]+ bytes"):
        read_torch(path)


@pytest.mark.parametrize("share", [0, 0.5, 0.99, 1])
def test_a_truncated_or_damaged_archive_of_arrays_is_refused(share: float, tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, weights=np.ones(100))
    content = bytearray(path.read_bytes())
    if share == 1:
        content[300] ^= 1
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=r"arrays\.npz: .*truncated or damaged"):
        read_arrays(path)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.tensor([1.0, torch.nan, torch.inf]), "the weights a are NaN at 2 of 3 places"),
        (torch.tensor([1.0, -torch.inf]), "the weights a are infinite at 1 of 2 places"),
        (torch.tensor([1]), "the weights a are torch.int64, must be dense floating-point numbers"),
        (torch.eye(2).to_sparse(), "the weights a are torch.sparse_coo"),
    ],
)
def test_weights_that_are_no_numbers_are_named_first(tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Weights(Path("model.pt"), {"b": torch.ones(1), "a": tensor}, "gru")
