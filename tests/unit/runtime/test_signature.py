"""Tests of signatures: a trusted key or authority must sign a bundle, and under the name that is served."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from attendant.runtime.bundle.bundle import BundleRefused, open_bundle
from attendant.runtime.bundle.manifest import SIGNATURE_NAME
from attendant.runtime.bundle.signature import open_signed_bundle, sign_bundle
from attendant.runtime.errors import UserError
from tests.certificates import Authority, new_authority
from tests.faults.crafting import field

pytest.importorskip("model_signing", reason="the extra `signing` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # raised when the library is imported

Keys = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def bundle(tiny_bundle_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle_path, tmp_path / "bundle"))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Returns a function that writes a new private key and its public key."""

    def make(name: str, password: bytes | None = None) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        private.write_bytes(_private(key, password))
        public.write_bytes(_public(key))
        return private, public

    return make


def _private(key: Any, password: bytes | None = None) -> bytes:
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))


def _public(key: Any) -> bytes:
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(serialization.Encoding.PEM, info))


def test_a_bundle_signed_by_a_trusted_key_is_opened(bundle: Path, keys: Keys) -> None:
    (private, public), (_, other) = keys("ours"), keys("other")
    assert sign_bundle(bundle, private) == bundle / SIGNATURE_NAME
    assert open_signed_bundle(bundle, [other, public]).manifest == open_bundle(bundle).manifest
    with pytest.raises(BundleRefused, match=r"model\.sig: .*other\.pub does not vouch for it"):
        open_signed_bundle(bundle, [other])


def test_an_encrypted_key_needs_its_passphrase(bundle: Path, keys: Keys) -> None:
    private, public = keys("ours", b"secret")  # type: ignore[call-arg]
    with pytest.raises(UserError, match="--key"):
        sign_bundle(bundle, private)
    with pytest.raises(UserError, match="--key"):
        sign_bundle(bundle, private, password="wrong")
    sign_bundle(bundle, private, password="secret")
    open_signed_bundle(bundle, [public])


@pytest.mark.parametrize("key", [rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate()])
def test_a_key_of_another_kind_is_refused(bundle: Path, keys: Keys, tmp_path: Path, key: Any) -> None:
    (tmp_path / "key.pem").write_bytes(_private(key))
    with pytest.raises(UserError, match=r"--key .*key\.pem: it is of another kind; a key is ECDSA on P-256"):
        sign_bundle(bundle, tmp_path / "key.pem")
    sign_bundle(bundle, keys("ours")[0])
    (tmp_path / "trusted.pub").write_bytes(_public(key))
    with pytest.raises(BundleRefused, match=r"trusted\.pub does not vouch for it: it is not ECDSA on P-256"):
        open_signed_bundle(bundle, [tmp_path / "trusted.pub"])


def test_a_wrong_certificate_is_named(bundle: Path, keys: Keys) -> None:
    private, public = keys("ours")
    with pytest.raises(UserError, match=r"--certificate .*ours\.pub: is a public key, must be a certificate"):
        sign_bundle(bundle, private, certificate=public)
    with pytest.raises(UserError, match=r"none\.crt can't be read: No such file"):
        sign_bundle(bundle, private, certificate=public.with_name("none.crt"))


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_bundle_is_signed_through_a_link_and_in_a_folder_of_another_user(
    bundle: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    private, public = keys("ours")
    monkeypatch.setattr("attendant.runtime.bundle.signature.os.access", lambda *_: is_writable)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:  # another file system
        link = Path(other) / "current"
        link.symlink_to(bundle)
        sign_bundle(link, private)
    open_signed_bundle(bundle, [public], by_name=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "ours.pem", "ours.pub"]


def test_a_version_that_was_signed_is_not_served_as_another(bundle: Path, keys: Keys) -> None:
    private, public = keys("ours")
    sign_bundle(bundle, private)
    open_signed_bundle(bundle, [public], by_name=True)
    other = bundle.rename(bundle.with_name("9"))
    open_signed_bundle(other, [public])
    with pytest.raises(BundleRefused, match=r"model\.sig: signed as bundle; "):
        open_signed_bundle(other, [public], by_name=True)


def test_an_unsigned_bundle_is_refused(bundle: Path, keys: Keys) -> None:
    _, public = keys("ours")
    with pytest.raises(BundleRefused, match=r"model\.sig is missing: the bundle is not signed"):
        open_signed_bundle(bundle, [public])
    open_signed_bundle(bundle, [])


@pytest.mark.parametrize("spoil", [field("limits", "max_beam_size", value=7), lambda bundle: (bundle / "x").touch()])
def test_a_bundle_changed_after_it_was_signed_is_refused(
    bundle: Path, keys: Keys, spoil: Callable[[Path], None]
) -> None:
    private, public = keys("ours")
    sign_bundle(bundle, private)
    spoil(bundle)
    with pytest.raises(BundleRefused, match="does not vouch for it"):
        open_signed_bundle(bundle, [public])


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"x" * 2_000_000])
def test_an_invalid_signature_file_is_refused(bundle: Path, keys: Keys, content: bytes) -> None:
    _, public = keys("ours")
    (bundle / SIGNATURE_NAME).write_bytes(content)
    with pytest.raises(BundleRefused, match=r"model\.sig"):
        open_signed_bundle(bundle, [public])
    open_signed_bundle(bundle, [])


@pytest.mark.parametrize("content", [b"", b"-----BEGIN EC PRIVATE KEY-----\n"])
def test_a_trusted_file_that_is_neither_key_nor_certificate_is_refused(
    bundle: Path, keys: Keys, tmp_path: Path, content: bytes
) -> None:
    private, _ = keys("ours")
    sign_bundle(bundle, private)
    (tmp_path / "trusted.pem").write_bytes(content)
    with pytest.raises(UserError, match=r"trusted\.pem is neither a public key nor a certificate"):
        open_signed_bundle(bundle, [tmp_path / "trusted.pem"])


def test_a_bundle_certified_by_a_trusted_authority_is_opened(
    bundle: Path, authority: Authority, keys: Keys, tmp_path: Path
) -> None:
    own, public = keys("ours")
    sign_bundle(bundle, own)
    with pytest.raises(BundleRefused, match="the bundle is signed by a key without a certificate"):
        open_signed_bundle(bundle, [authority.certificate])
    certificate, private = authority.issue("signer", "signer.example")
    sign_bundle(bundle, private, certificate=certificate)
    open_signed_bundle(bundle, [authority.certificate])
    with pytest.raises(BundleRefused, match=r"other/authority\.pem does not vouch for it"):
        open_signed_bundle(bundle, [new_authority(tmp_path / "other").certificate])
    with pytest.raises(BundleRefused, match="or the bundle is signed under a certificate"):
        open_signed_bundle(bundle, [public])
