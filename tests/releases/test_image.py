"""Tests of the images: their content, and that they serve or train with their configuration, and end.

debootstrap makes their base, so no registry is needed; Debian's buildah builds without an engine. They run in their
own namespaces: as process 1, as their numeric user, on a read-only root file system.
"""

import functools
import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from attendant.server.bench.command import addresses
from attendant_client import AttendantClient
from tests.paths import ROOT

MISSING = [name for name in ("buildah", "debootstrap", "unshare") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(MISSING), reason=f"there is no {', '.join(MISSING)}: apt-get install buildah debootstrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap and namespaces need root"),
]
MAX_BYTES = {"server-cpu": 250_000_000, "server-gpu": 2_500_000_000, "trainer": 5_500_000_000}
SERVERS = ["server-cpu", "server-gpu"]
FREE_PARTS = 4
"""Number of copies of an image's content during its build, packed and unpacked."""

USER = 10001


@dataclass(frozen=True)
class Image:
    """A built image: the configuration of its container, the digests of its layers, its mounted file system."""

    config: dict[str, Any]
    layers: list[str]
    root: Path


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yields the command, with its own store that has `localhost/base`."""
    folder = tmp_path_factory.mktemp("buildah")
    command = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
    system = folder / "base"
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", "bookworm", system)
    # The image must trust a proxy between this machine and the index, as this machine does.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", system / "etc/ssl/certs/ca-certificates.crt")
    container = run(*command, "from", "scratch")
    run(*command, "add", "--quiet", container, system, "/")
    run(*command, "commit", "--quiet", "--rm", container, "localhost/base")
    shutil.rmtree(system)
    yield command
    run(*command, "rm", "--all")
    run(*command, "rmi", "--all", "--force")


def built(buildah: list[str], target: str, name: str) -> Image:
    build = [*buildah, "build", "--isolation", "chroot", "--format", "docker", "--build-arg", "BASE=localhost/base"]
    options = f"TARGET={target}", f"IMAGE={name}", f"BUILD={' '.join(build)}", "SOURCE_DATE_EPOCH=1750000000"
    run("make", "image", *options)
    inspected = json.loads(run(*buildah, "inspect", "--type", "image", name))["Docker"]
    container = run(*buildah, "from", name)
    return Image(inspected["config"], inspected["rootfs"]["diff_ids"], Path(run(*buildah, "mount", container)))


@pytest.fixture(scope="module")
def images(buildah: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Image]:
    """Returns a function that builds a target at its first use."""

    @functools.cache
    def image(target: str) -> Image:
        needed = FREE_PARTS * MAX_BYTES[target]
        if shutil.disk_usage(tmp_path_factory.getbasetemp()).free < needed:
            pytest.skip(f"{target} takes {needed / 1e9:.0f} GB of disk while it is built")
        return built(buildah, target, f"localhost/{target}")

    return image


@pytest.mark.parametrize("target", MAX_BYTES)
def test_images_are_small_and_hold_no_shell(images: Callable[[str], Image], target: str) -> None:
    image = images(target)
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    print(f"{target}: {size / 1e6:.0f} MB in {len(files)} files")
    assert size < MAX_BYTES[target]
    names = {path.name for path in files}
    assert not names & {"sh", "bash", "dash", "apt", "dpkg", "pip", "gcc", "ldconfig", "su", "mount"}
    assert not [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)]
    assert any("torch" in path.parts for path in files) == (target == "trainer")
    copyrights = {path.parent.name for path in files if path.name == "copyright"}
    assert {"libc6", "libstdc++6"} <= copyrights
    assert copyrights <= {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}


def test_an_image_built_again_is_the_same(buildah: list[str], images: Callable[[str], Image]) -> None:
    again = built(buildah, "server-cpu", "localhost/again")
    assert again.layers == images("server-cpu").layers


@contextmanager
def container(
    image: Image, command: list[str], *, volume: Path = ROOT / "models/g2p-en", **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """Runs a command as process 1, on a root file system that is read-only except for the volume.

    The volume is a bundle, or the trainer's work.
    """
    root, folder = image.root, image.config["WorkingDir"]
    variables = dict(variable.split("=", 1) for variable in image.config["Env"])
    for name in ("proc", "dev"):
        (root / name).mkdir(exist_ok=True)
    enter = f"""
    mount --bind {root} {root}
    cd {root}
    mount --bind {volume} {variables.get("ATTENDANT_BUNDLES", folder).strip("/")}
    mount --bind /dev dev
    mount -t proc proc proc
    mount -o remount,bind,ro {root}
    exec unshare --root={root} --wd={folder} --setgid={USER} --setuid={USER} /opt/attendant/bin/"$@"
    """
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


@pytest.mark.parametrize("target", SERVERS)
async def test_server_images_serve_and_end_on_sigterm(images: Callable[[str], Image], target: str) -> None:
    image = images(target)
    command = [*image.config["Entrypoint"], "--provider", "cpu", "--port", "0", "--metrics-port", "0"]
    with container(image, command, ATTENDANT_HOST="127.0.0.1", OMP_NUM_THREADS="1") as process:
        assert process.stdout is not None
        output = ""
        while not (ports := addresses(output)):
            line = process.stdout.readline()
            assert line, output
            output += line
        (server,) = psutil.Process(process.pid).children()
        assert server.uids().effective == server.gids().effective == USER
        assert f"NSpid:\t{server.pid}\t1\n" in Path(f"/proc/{server.pid}/status").read_text()
        with pytest.raises(OSError, match="Read-only file system"):
            Path(f"/proc/{server.pid}/root/written").touch()
        async with AttendantClient(ports["serving"]) as client:
            assert (await client.generate("phoneme")).best.text == "F OW1 N IY0 M"
        check = image.config["Healthcheck"]["Test"][1:]
        with container(image, [ports["serving"] if word.startswith("127.") else word for word in check]) as checking:
            assert checking.wait(60) == 0
        server.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(30) == 0, rest


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_a_server_without_its_gpu_ends_with_a_line(images: Callable[[str], Image]) -> None:
    image = images("server-gpu")
    with container(image, image.config["Entrypoint"], ATTENDANT_HOST="127.0.0.1") as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    (line,) = output.splitlines()
    assert "provider cuda is not available here" in line


def test_the_trainer_trains_and_exports(images: Callable[[str], Image], tmp_path: Path) -> None:
    shutil.copy(ROOT / "recipes/reverse/recipe.toml", tmp_path / "reverse.toml")
    os.chown(tmp_path, USER, USER)
    for command in (
        ["train", "reverse.toml", "--output", "run", "--set", "training.max_steps=5"],
        ["export", "run", "--output", "bundle"],
    ):
        with container(images("trainer"), ["attendant", *command], volume=tmp_path) as process:
            output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    assert (tmp_path / "bundle/manifest.json").stat().st_uid == USER
