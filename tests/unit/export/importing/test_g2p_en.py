"""Tests of g2p_en checkpoints against its equations in numpy, with random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attendant.export.importing.g2p_en import LETTERS, SOUNDS, read
from attendant.runtime.errors import UserError
from tests.imported import assert_same

SIZE = 6
SHAPES = {
    f"{side}_{part}": shape
    for side in ("enc", "dec")
    for part, shape in (
        ("w_ih", (3 * SIZE, SIZE)),
        ("w_hh", (3 * SIZE, SIZE)),
        ("b_ih", (3 * SIZE,)),
        ("b_hh", (3 * SIZE,)),
    )
}
SHAPES |= {"enc_emb": (len(LETTERS), SIZE), "dec_emb": (len(SOUNDS), SIZE)}
SHAPES |= {"fc_w": (len(SOUNDS), SIZE), "fc_b": (len(SOUNDS),)}


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def cell(of: dict[str, np.ndarray], side: str, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Computes `grucell` of g2p_en/g2p.py."""
    of_input, of_hidden = (
        np.split(of[f"{side}_w_{part}"] @ value + of[f"{side}_b_{part}"], 3) for part, value in (("ih", x), ("hh", h))
    )
    r, z = (1 / (1 + np.exp(-of_input[gate] - of_hidden[gate])) for gate in (0, 1))
    return (1 - z) * np.tanh(of_input[2] + r * of_hidden[2]) + z * h


def test_an_imported_model_computes_the_same(tmp_path: Path) -> None:
    of = weights()
    np.savez(tmp_path / "checkpoint.npz", **of)
    hidden = np.zeros(SIZE)
    for letter in [*"cafe", "<unk>", "</s>"]:
        hidden = cell(of, "enc", of["enc_emb"][LETTERS.index(letter)], hidden)
    theirs = []
    for sound in ["<s>", "K", "AE0"]:
        hidden = cell(of, "dec", of["dec_emb"][SOUNDS.index(sound)], hidden)
        theirs.append(of["fc_w"] @ hidden + of["fc_b"])
    expected = torch.from_numpy(np.stack(theirs)).float()
    assert_same(read(tmp_path / "checkpoint.npz", False), "Café!", "K AE0", expected[:, [1, *range(3, len(SOUNDS))]])


def test_missing_and_additional_weights_are_refused(tmp_path: Path) -> None:
    of = weights()
    np.savez(tmp_path / "more.npz", **of, attention=np.zeros(3))
    with pytest.raises(UserError, match="weights of parts that can't be imported: attention"):
        read(tmp_path / "more.npz", False)
    del of["fc_b"]
    np.savez(tmp_path / "less.npz", **of)
    with pytest.raises(UserError, match="it has no weights fc_b"):
        read(tmp_path / "less.npz", False)


def test_the_option_segmented_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--segmented is for subwords"):
        read(tmp_path, True)


def test_a_path_that_is_no_archive_of_plain_arrays_is_refused(tmp_path: Path) -> None:
    objects = tmp_path / "objects.npz"
    np.savez(objects, enc_emb=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("enc_emb")
    for path in (objects, tmp_path / "text.npz"):
        with pytest.raises(UserError, match=r"no archive of plain arrays"):
            read(path, False)
    np.savez(tmp_path / "checkpoint.npz", **weights())
    with pytest.raises(UserError, match=r"is a folder: name one of its checkpoints: checkpoint\.npz, objects\.npz"):
        read(tmp_path, False)
    with pytest.raises(UserError, match=r"absent\.npz: can't be read"):
        read(tmp_path / "absent.npz", False)
