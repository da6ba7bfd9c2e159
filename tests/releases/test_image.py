"""The image `server-cpu`, built for real: what is in it, and that it serves, as its configuration says, and ends.

Its base is made by debootstrap, since no registry is asked; Debian's buildah builds without an engine. It runs in
namespaces of its own: as process 1, as its numeric user, on a root file system that nobody can write to.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from attendant_client import VERSION, AttendantClient
from tests.releases.conftest import ROOT

MISSING = [name for name in ("buildah", "debootstrap", "unshare") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(MISSING), reason=f"there is no {', '.join(MISSING)}: apt-get install buildah debootstrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap and namespaces need root"),
]
MIRROR = "http://deb.debian.org/debian"
MAX_BYTES = 250_000_000
USER = 10001


@dataclass(frozen=True)
class Image:
    """What was built.

    Attributes:
        config: as its container starts: User, Entrypoint, Env, Healthcheck and others.
        layers: their digests.
        root: its file system, mounted.
    """

    config: dict[str, Any]
    layers: list[str]
    root: Path


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command, with a store of its own that has `localhost/base`."""
    folder = tmp_path_factory.mktemp("buildah")
    command = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
    system = folder / "base"
    run(
        "debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", "bookworm", system, MIRROR
    )
    # Whatever stands between this machine and the index is trusted there as it is here.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", system / "etc/ssl/certs/ca-certificates.crt")
    container = run(*command, "from", "scratch")
    run(*command, "add", "--quiet", container, system, "/")
    run(*command, "commit", "--quiet", "--rm", container, "localhost/base")
    shutil.rmtree(system)
    yield command
    run(*command, "rm", "--all")
    run(*command, "rmi", "--all", "--force")


def built(buildah: list[str], name: str) -> Image:
    build = [*buildah, "build", "--isolation", "chroot", "--format", "docker", "--build-arg", "BASE=localhost/base"]
    run(
        "make",
        "image",
        "TARGET=server-cpu",
        f"IMAGE={name}",
        f"BUILD={' '.join(build)}",
        "SOURCE_DATE_EPOCH=1750000000",
    )
    inspected = json.loads(run(*buildah, "inspect", "--type", "image", name))["Docker"]
    container = run(*buildah, "from", name)
    return Image(inspected["config"], inspected["rootfs"]["diff_ids"], Path(run(*buildah, "mount", container)))


@pytest.fixture(scope="module")
def image(buildah: list[str]) -> Image:
    return built(buildah, "localhost/first")


def test_its_configuration(image: Image) -> None:
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["Entrypoint"] == ["attendant", "serve"]
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["Healthcheck"]["Test"][:3] == ["CMD", "attendant", "health"]
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_what_is_in_it(image: Image) -> None:
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    print(f"server-cpu: {size / 1e6:.0f} MB in {len(files)} files")
    assert size < MAX_BYTES
    names = {path.name for path in files}
    assert not names & {"sh", "bash", "dash", "apt", "dpkg", "pip", "gcc", "ldconfig", "su", "mount"}
    assert not [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)]
    assert not [path for path in files if "torch" in path.parts]
    copyrights = {path.parent.name for path in files if path.name == "copyright"}
    assert {"libc6", "libstdc++6"} <= copyrights
    assert copyrights <= {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}


def test_it_is_the_same_again(buildah: list[str], image: Image) -> None:
    assert built(buildah, "localhost/second").layers == image.layers


@contextmanager
def container(image: Image, command: list[str], **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """As process 1, on a root file system that is read-only, with the repository's model for its bundle."""
    root = image.root
    for name in ("proc", "dev"):
        (root / name).mkdir(exist_ok=True)
    enter = f"""
    mount --bind {root} {root}
    cd {root}
    mount --bind {ROOT}/models/g2p-en bundle
    mount --bind /dev dev
    mount -t proc proc proc
    mount -o remount,bind,ro {root}
    exec chroot --userspec={USER}:{USER} --groups= {root} /opt/attendant/bin/"$@"
    """
    variables = dict(one.split("=", 1) for one in image.config["Env"])
    variables["PATH"] += ":" + os.environ["PATH"]
    with subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", enter, "sh", *command],
        env=variables | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


async def test_it_serves_and_ends_when_it_is_told_to(image: Image) -> None:
    command = [*image.config["Entrypoint"], "--port", "0", "--metrics-port", "0"]
    with container(image, command, ATTENDANT_HOST="127.0.0.1", OMP_NUM_THREADS="1") as process:
        assert process.stdout is not None
        said = ""
        while not (found := re.search(r"serving on (\S+:\d+): ", said)):
            line = process.stdout.readline()
            assert line, said
            said += line
        (server,) = psutil.Process(process.pid).children()
        assert server.uids().effective == server.gids().effective == USER
        assert f"NSpid:\t{server.pid}\t1\n" in Path(f"/proc/{server.pid}/status").read_text()
        with pytest.raises(OSError, match="Read-only file system"):
            Path(f"/proc/{server.pid}/root/written").touch()
        async with AttendantClient(found[1]) as client:
            assert (await client.generate("phoneme")).best.text == "F OW N IY M"
        check = image.config["Healthcheck"]["Test"][1:]
        with container(image, [found[1] if one.startswith("127.") else one for one in check]) as checking:
            assert checking.wait(60) == 0
        server.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(30) == 0, rest
