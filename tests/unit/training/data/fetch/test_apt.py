"""apt in a directory of its own, against tools that only write down how they are called."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.fetch.apt import Apt

TOOLS = {
    "apt-config": """case "$*" in
*Architecture*) echo amd64 ;;
*) cat <<END
Acquire::http::Proxy "http://proxy:3128";
Acquire::Languages "";
Acquire::Languages:: "none";
APT::Update::Post-Invoke:: "rm -rf /";
Dir::State "var/lib/apt";
END
;; esac""",
    "apt-get": """test -f "$APT_CONFIG" || exit 9
if test "$1" = download; then shift; for name in "$@"; do echo "$name" > "$name.deb"; done; fi""",
    "dpkg-deb": """case $1 in
--show) echo "$(basename $2 .deb) 1.2-3" ;;
--extract) mkdir -p $3; cp $2 $3/ ;;
esac""",
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the tools, some of them changed, the only ones there are besides the system's own."""

    def install(**changed: str | None) -> None:
        programs = tmp_path / "bin"
        programs.mkdir()
        for name, script in (TOOLS | {name.replace("_", "-"): script for name, script in changed.items()}).items():
            if script is not None:
                (programs / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
                (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(programs))

    return install


def test_packages_are_downloaded_and_unpacked(install: Callable[..., None], tmp_path: Path) -> None:
    install()
    apt = Apt(tmp_path)
    assert apt.architecture == "amd64"
    assert apt.download(["toy", "toy-fr"]) == {"toy": "1.2-3", "toy-fr": "1.2-3"}
    assert sorted(path.name for path in apt.root.iterdir()) == ["toy-fr.deb", "toy.deb"]


def test_the_machines_settings_hold_but_for_languages_hooks_and_places(
    install: Callable[..., None], tmp_path: Path
) -> None:
    install()
    Apt(tmp_path)
    lines = (tmp_path / "apt.conf").read_text().splitlines()
    assert 'Acquire::http::Proxy "http://proxy:3128";' in lines
    assert [line for line in lines if "Languages" in line] == ['Acquire::Languages "en";']
    assert not any("Invoke" in line for line in lines)
    assert [line for line in lines if line.startswith("Dir::State ")][-1] == f'Dir::State "{tmp_path}/state";'


def test_without_apt_it_says_where_to_go(install: Callable[..., None], tmp_path: Path) -> None:
    install(apt_config=None)
    with pytest.raises(UserError, match=r"apt-config is needed and not here: build this data set on Debian or Ubuntu"):
        Apt(tmp_path)


def test_what_apt_refuses_is_one_line(install: Callable[..., None], tmp_path: Path) -> None:
    install(apt_get='test "$1" = update && exit 0; echo "W: old" >&2; echo "E: Unable to locate toy" >&2; exit 100')
    apt = Apt(tmp_path)
    with pytest.raises(UserError, match=r"^`apt-get download` failed \(E: Unable to locate toy\): is there a network"):
        apt.download(["toy"])
