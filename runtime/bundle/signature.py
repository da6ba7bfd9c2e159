"""model.sig: a bundle's signature, by the library `model-signing` (OpenSSF's Model Signing, Sigstore's bundles).

Digests show that a bundle is complete, a signature that the owner of a key signed it. The extra `signing` installs the
library. Keys and certificates are the operator's own files: no network is used.
"""

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from attendant.runtime.bundle.bundle import Bundle, BundleRefused, BundleUnreadable, files_of, open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, SIGNATURE_NAME
from attendant.runtime.bundle.reading import MIB, Unfit, read_file
from attendant.runtime.errors import UserError, one_line
from attendant.runtime.files import new_file, reading_error

MAX_BYTES: Final = MIB  # Limit of a signature, and of a file in PEM.

PUBLIC_KEY, CERTIFICATE = "PUBLIC KEY", "CERTIFICATE"
UNFIT: Final = {
    PUBLIC_KEY: "it is not ECDSA on P-256, P-384 or P-521, or the bundle is signed under a certificate",
    CERTIFICATE: "the bundle is signed by a key without a certificate",
}


def open_signed_bundle(path: Path, trusted: Sequence[Path], *, by_name: bool = False) -> Bundle:
    """Opens a bundle that one of these keys, or a certificate of one of these authorities, has signed.

    Args:
        trusted: files in PEM, each with a public key (ECDSA on P-256, P-384 or P-521) or with certificates of
            authorities. If empty, the bundle need not be signed.
        by_name: it must have been signed in a folder of the same name, which is the version in a repository. So a
            signed version can't take the place of another.

    Raises:
        BundleRefused: it is refused, not signed, or signed by another key.
        UserError: a file of `trusted` has neither, or the extra is not installed.
    """
    if not trusted:
        return open_bundle(path)
    _, others = files_of(path)
    try:
        signature = read_file(path / SIGNATURE_NAME, MAX_BYTES)
    except FileNotFoundError:
        raise BundleRefused(path, [f"{SIGNATURE_NAME} is missing: the bundle is not signed"]) from None
    except OSError as error:
        raise BundleUnreadable(path, SIGNATURE_NAME, error) from error
    except Unfit as error:
        raise BundleRefused(path, [f"{SIGNATURE_NAME} can't be read: {error}"]) from error
    if others:
        raise BundleRefused(path, others)
    reasons = [one_line(reason) for file in trusted if (reason := _refusal(path, signature, file))]
    if len(reasons) == len(trusted):
        raise BundleRefused(path, [f"{SIGNATURE_NAME}: {reason}" for reason in reasons])
    bundle = open_bundle(path)
    # The library has read the folder by itself: the bundle that was opened must be the one that it verified.
    name, digest = _signed(signature)
    if digest != hashlib.sha256(bundle.manifest.to_text().encode()).hexdigest():
        raise BundleRefused(path, [f"{SIGNATURE_NAME}: not of this {MANIFEST_NAME}"])
    if by_name and name != path.resolve().name:
        raise BundleRefused(path, [f"{SIGNATURE_NAME}: signed as {name}; sign it in a folder of this name"])
    return bundle


def _refusal(path: Path, signature: bytes, trusted: Path) -> str:
    """Returns why this is not a signature by the trusted file; empty if it is."""
    kind = pem_kind(trusted)
    verifying = _library().verifying.Config()
    with tempfile.NamedTemporaryFile() as copied:
        copied.write(signature)
        copied.flush()
        try:
            if kind == PUBLIC_KEY:
                verifying.use_elliptic_key_verifier(public_key=trusted)
            else:
                verifying.use_certificate_verifier(certificate_chain=[trusted])
            verifying.verify(path, Path(copied.name))
        # Any exception that an untrusted signature causes means that it is not verified.
        except Exception as error:
            # The library reads an attribute that a key of another kind, or a signature of the other form, lacks.
            reason = UNFIT[kind] if isinstance(error, AttributeError) else str(error) or type(error).__name__
            return f"{trusted} does not vouch for it: {reason}"
    return ""


def _signed(signature: bytes) -> tuple[str, str]:
    """Returns the folder's name and the manifest's digest in a verified signature; empty if it has none."""
    payload = json.loads(base64.b64decode(json.loads(signature)["dsseEnvelope"]["payload"]))
    resources = payload["predicate"].get("resources", [])
    digests = [r["digest"] for r in resources if r["name"] == MANIFEST_NAME and r["algorithm"] == "sha256"]
    names = [subject["name"] for subject in payload.get("subject", [])]
    return str(names[0]) if len(names) == 1 else "", str(digests[0]) if len(digests) == 1 else ""


def sign_bundle(
    path: Path, key: Path, *, certificate: Path | None = None, chain: Sequence[Path] = (), password: str | None = None
) -> Path:
    """Signs all files of a bundle and returns the signature's file, model.sig in the same folder.

    Args:
        key: the private key, in PEM: ECDSA on P-256, P-384 or P-521.
        certificate: of that key, by an authority that verifiers trust.
        chain: certificates between it and that authority.

    Raises:
        UserError: the bundle is refused, the key or certificate is invalid, the extra is not installed, or the file
            can't be written.
    """
    open_bundle(path)
    for option, pem in (("--certificate", certificate), *(("--chain", each) for each in chain)):
        if pem is not None and pem_kind(pem) != CERTIFICATE:
            raise UserError(f"{option} {pem}: is a public key, must be a certificate in PEM")
    # A link's name is not the folder's, which verifiers may compare.
    folder = path.resolve()
    signing = _library().signing.Config()
    try:
        if certificate is None:
            # The library's annotation is `str`, but the function that it calls takes bytes.
            secret: Any = None if password is None else password.encode()
            signing.use_elliptic_key_signer(private_key=key, password=secret)
        else:
            # The library refuses an empty chain.
            between = [*chain] or [certificate]
            signing.use_certificate_signer(private_key=key, signing_certificate=certificate, certificate_chain=between)
    except Exception as error:  # the library's exceptions have no common base
        # Only keys of elliptic curves have the attribute that it reads.
        reason = "it is of another kind" if isinstance(error, AttributeError) else one_line(str(error))
        raise UserError(f"--key {key}: {reason}; a key is ECDSA on P-256, P-384 or P-521, in PEM") from error
    hashing = _library().hashing.Config().set_ignored_paths(paths=[SIGNATURE_NAME], ignore_git_paths=False)
    output = path / SIGNATURE_NAME
    with tempfile.TemporaryDirectory() as temporary:
        written = Path(temporary) / SIGNATURE_NAME
        signing.set_hashing_config(hashing).sign(folder, written)
        content = written.read_text(encoding="utf-8")
    # Written outside the bundle first: a server that opens it meanwhile refuses files that the manifest does not list.
    # A mounted bundle, or one in a folder of another user, has no such place.
    has_place = folder.parent.stat().st_dev == folder.stat().st_dev and os.access(folder.parent, os.W_OK)
    with new_file(output, folder.parent if has_place else None) as file:
        file.write(content)
    return output


def pem_kind(path: Path) -> str:
    """Returns the kind of a file in PEM: PUBLIC_KEY or CERTIFICATE. Raises UserError if it is neither."""
    try:
        text = read_file(path, MAX_BYTES).decode("ascii", "replace")
    except (OSError, Unfit) as error:
        raise UserError(
            f"{path} can't be read: {reading_error(error)}; name a public key or certificates, in PEM"
        ) from error
    for kind in (PUBLIC_KEY, CERTIFICATE):
        if f"-----BEGIN {kind}-----" in text:
            return kind
    raise UserError(f"{path} is neither a public key nor a certificate in PEM")


def _library() -> Any:
    try:
        import model_signing.hashing  # noqa: PLC0415  # takes most of a second, and is an extra
        import model_signing.signing  # noqa: PLC0415
        import model_signing.verifying  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            f"signatures need the extra `signing` ({error}): pip install 'attendant-seq2seq[signing]'"
        ) from error
    return model_signing
