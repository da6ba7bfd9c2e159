"""Repositories of models, whose folders are served as they change: REPOSITORY/NAME/VERSION/, a bundle each.

NAME/serving.toml is the policy; without the file the latest version is served:

    stable = "latest"       # or a version; requests that name no version
    canary = "8"            # a share of these
    canary_percent = 5
    shadow = "9"            # gets the requests that the stable version has answered; the answers are only compared
    shadow_percent = 100
    named = ["3"]           # for requests that name it

A new version is loaded alongside those that answer: its engine starts in processes of its own, is warmed up and passes
its golden examples. Then the catalogue's routes are exchanged at once: new requests get the new version. Requests that
have a lease of the old version end there, and its engine ends after them. A version that is refused changes nothing.
"""

import asyncio
import errno
import logging
import os
import re
import stat
import tomllib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from attendant.runtime.bundle.manifest import MANIFEST_NAME, NAME_PATTERN, Section
from attendant.runtime.bundle.reading import read_file
from attendant.runtime.errors import UserError, one_line
from attendant.runtime.files import reading_error
from attendant.server.catalogue import Catalogue, Retirement, Routes, ServedModel
from attendant.server.credentials import State, state_of
from attendant.server.engine.loading import in_daemon_thread
from attendant.server.engine.pool import WorkerLost
from attendant.server.errors import Draining, LoadRefused, NotReady, UnknownModel
from attendant.server.lifecycle import Lifecycle
from attendant.server.metrics import Metrics
from attendant.server.polling import begin, checking

log = logging.getLogger(__name__)

POLICY_NAME: Final = "serving.toml"
LATEST: Final = "latest"
MAX_POLICY_BYTES: Final = 65_536
NAME: Final = re.compile(NAME_PATTERN)
LABEL: Final = re.compile(r"(?=.{1,64}\Z)\d+([._-]\d+)*", re.ASCII)
"""Numbers, so that the latest is known: 7, 1.10, 2026-11-22. Folders with other names are ignored."""

NO_VERSION: Final = "it has no stable version: a folder that is named by numbers, and neither canary nor shadow"

IN_NO_REPOSITORY: Final = "is in no repository"

MAX_FILES = 64  # Files of a version that are checked for changes: a bundle has fewer, and is refused if it has more.


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder at one moment.

    Attributes:
        versions: label -> the state of its files; the earliest version first.
        policy: the state of its serving.toml; empty if there is none.
        unreadable: why its versions can't be listed; empty if they can.
    """

    path: Path
    versions: Mapping[str, State]
    policy: State
    unreadable: str


def is_repository(path: Path) -> bool:
    """Returns whether a folder contains models, and is not a bundle itself."""
    try:
        if not path.is_dir() or (path / MANIFEST_NAME).exists():
            return False
        return any(folder.versions or folder.unreadable for folder in look_into(path).values())
    except (OSError, UserError):
        return False  # opened as a bundle, it is refused with the reason


def look_into(repository: Path) -> dict[str, ModelFolder]:
    """Returns the models of a repository by name. Raises UserError: it can't be read."""
    try:
        models = _folders(repository, NAME)
    except OSError as error:
        raise UserError(f"the repository {repository} can't be read: {reading_error(error)}") from None
    return {model.name: _model_folder(model) for model in models}


def _model_folder(model: Path) -> ModelFolder:
    versions: dict[str, State] = {}
    unreadable = ""
    try:
        versions = {folder.name: _state_of_files(folder) for folder in _versions(model)}
    except OSError as error:  # other models change nevertheless
        unreadable = f"{model} can't be read: {reading_error(error)}"
    return ModelFolder(model, versions, (state_of(model / POLICY_NAME),), unreadable)


def _versions(model: Path) -> list[Path]:
    """Returns the folders of a model's versions, the earliest first."""
    return sorted(_folders(model, LABEL), key=_order)


def _folders(path: Path, pattern: re.Pattern[str]) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if pattern.fullmatch(inner.name) and _is_folder(inner))


def _is_folder(path: Path) -> bool:
    """Returns True also for a folder that can't be reached now: it has not been removed."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _order(folder: Path) -> tuple[list[int], str]:
    return [int(number) for number in re.split("[._-]", folder.name)], folder.name


def _state_of_files(folder: Path) -> State:
    """Returns the state of a bundle's files and of the folders that contain them."""
    paths = [folder]
    for path in paths:
        # A folder that can't be read is refused when it is loaded.
        with suppress(OSError):
            if path.is_dir() and len(paths) < MAX_FILES:
                paths += sorted(path.iterdir())
    return tuple(map(state_of, paths[:MAX_FILES]))


class Policy(Section):
    """The content of a serving.toml."""

    stable: str = LATEST
    canary: str | None = None
    canary_percent: float = Field(0.0, ge=0, le=100)
    shadow: str | None = None
    shadow_percent: float = Field(100.0, ge=0, le=100)
    named: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_a_share(self) -> "Policy":
        if self.canary is not None and "canary_percent" not in self.model_fields_set:
            raise ValueError("canary_percent is unset, must be 0 to 100 where there is a canary")
        return self

    def stable_choices(self, labels: Sequence[str]) -> list[str]:
        """Returns the versions that may be the stable one, the best first.

        Args:
            labels: of the existing versions, the earliest first.
        """
        if self.stable != LATEST:
            return [self.stable]
        return [label for label in reversed(labels) if label not in (self.canary, self.shadow)]


def read_policy(path: Path) -> Policy:
    """Reads a serving.toml; without the file, the policy is the latest version.

    Raises:
        UserError: it can't be read, or has invalid content.
    """
    try:
        # Links are followed, e.g. in a volume of Kubernetes. `read_file` refuses a FIFO, which would block.
        text = read_file(Path(os.path.realpath(path, strict=True)), MAX_POLICY_BYTES).decode("utf-8-sig")
        return Policy.model_validate(tomllib.loads(text))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return Policy()
        raise UserError(f"{path} can't be read: {reading_error(error)}") from None
    except ValidationError as error:
        raise UserError(f"{path}: {one_line(_problem(error.errors()[0]))}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {one_line(str(error))}") from None


MUST_BE: Final = {"string_type": 'a version in quotes, e.g. "3"', "tuple_type": 'a list of versions, e.g. ["3"]'}


def _problem(error: ErrorDetails) -> str:
    """Returns the description of an error of a policy: the field, the value and the remedy."""
    where, kind = ".".join(map(str, error["loc"])), error["type"]
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "extra_forbidden":
        return f"{where} is no field, must be one of {', '.join(Policy.model_fields)}"
    return f"{where} is {error['input']!r}, must be {MUST_BE.get(kind, 'a number from 0 to 100')}"


StartVersion = Callable[..., Awaitable[ServedModel]]
"""Opens the bundle in a folder, starts its engine, and waits until it is ready.

Args: the path, the label; by keyword `name`, which the manifest must have; `num_models`, that share the threads;
`on_available` and `on_death` of EngineClient. Raises UserError or WorkerLost if the version can't be served.
"""


class Entry(NamedTuple):
    """A version that is in a repository, or is served.

    Attributes:
        reason: why it is not served, in words that any caller may read.
        repository: the name of the repository's folder; empty if the model is in none.
    """

    name: str
    label: str
    reason: str = ""
    repository: str = ""


@dataclass(slots=True, eq=False)
class _Version:
    """A version, and the state of its engine.

    Attributes:
        state: of its files when it was loaded.
        dead: the engine has failed for good.
    """

    label: str
    state: State
    available: bool = True
    dead: bool = False
    loaded: ServedModel | None = None

    @property
    def model(self) -> ServedModel:
        assert self.loaded is not None, "only versions that have been loaded are served"
        return self.loaded


@dataclass(slots=True)
class _Model:
    """A model in a repository.

    Attributes:
        live: label -> version, of those that are served.
        refused: label, or the policy's file -> the state in which it was refused, and why.
        unloaded: an administrator has ended it.
    """

    stable: _Version | None = None
    live: dict[str, _Version] = field(default_factory=dict)
    refused: dict[str, tuple[State, str]] = field(default_factory=dict)
    unloaded: bool = False


class Reconciler:
    """Owns the versions that come from repositories: starts them, puts them into the catalogue, and lets them end.

    Attributes:
        ending: the engines of versions that are no longer served.
    """

    def __init__(
        self,
        repositories: Sequence[Path],
        catalogue: Catalogue,
        metrics: Metrics,
        start: StartVersion,
        lifecycle: Lifecycle,
    ) -> None:
        """Stores its parts; `look` reads the folders for the first time."""
        self.repositories = repositories
        self.ending = Retirement()
        self._catalogue = catalogue
        self._metrics = metrics
        self._start = start
        self._lifecycle = lifecycle
        self._models: dict[str, _Model] = {}
        # The folders from which the served models were made, and those that the last look has seen.
        self._taken: dict[str, ModelFolder] = {}
        self._seen: dict[str, ModelFolder] = {}
        # The names that are in several places now, and why that is wrong.
        self._conflicts: dict[str, str] = {}
        # Why the repositories can't be followed; empty if they can.
        self._unreadable = ""
        self._changing = asyncio.Lock()
        self._others: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self, others: Collection[str]) -> int:
        """Looks for the first time; returns the number of models.

        Args:
            others: names of models that are served from bundles of their own.

        Raises:
            UserError: a repository can't be read, or has a model of a name that is served from elsewhere.
        """
        self._others = frozenset(others)
        self._taken = self._seen = await self._look()
        for why in self._conflicts.values():
            raise UserError(why)
        return len(self._names())

    async def open(self) -> None:
        """Loads the versions that the first look has seen. Raises UserError: no version of any model can be served."""
        async with self._changing:
            for name, folder in self._taken.items():
                await self._reconcile(name, folder)
        if self.repositories and not any(model.live for model in self._models.values()):
            why = [
                f"{name}/{label}: {reason}"
                for name, model in self._models.items()
                for label, (_, reason) in model.refused.items()
            ]
            names = ", ".join(map(str, self.repositories))
            raise UserError(f"nothing in the repository {names} can be served; a bundle belongs in NAME/VERSION/", why)

    @contextmanager
    def following(self, seconds: float) -> Iterator[None]:
        """Checks the repositories every `seconds`, and takes changes that were the same in two checks. 0 disables."""
        follows = self.repositories and seconds
        with checking(seconds, self.follow) if follows else nullcontext():
            try:
                yield
            finally:
                for task in self._tasks:
                    task.cancel()

    async def follow(self, *, at_once: bool = False) -> None:
        """Takes the changes that were the same in two looks, or all changes at once."""
        try:
            async with self._changing:
                if at_once:
                    self._seen = await self._look()
                await self._take_changes()
            self._unreadable = ""
        except UserError as error:
            # Not at each look.
            if at_once or str(error) != self._unreadable:
                self._unreadable = str(error)
                log.warning("the repositories are not followed now", extra={"reason": self._unreadable})

    async def follow_now(self) -> None:
        """Takes all changes at once, unless the server ends before that."""
        if not self._catalogue.closing.is_set():
            await asyncio.wait([begin(self.follow(at_once=True), self._tasks)])

    async def load(self, name: str) -> None:
        """Brings a model to the state of its folder, even if that was refused or unloaded before.

        The model is loaded even if the caller is cancelled meanwhile.

        Raises:
            UnknownModel: it has no folder in a repository.
            LoadRefused: something of it can't be served; the versions served before stay.
            NotReady: the server has not loaded its first models yet.
            Draining
        """
        self._require_serving()
        loading = begin(self._load(name), self._tasks)
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            if loading.cancelled():  # by the end of `following`
                raise Draining from None
            raise

    def _require_serving(self) -> None:
        if not self._catalogue.is_open:
            raise NotReady
        if self._catalogue.closing.is_set():
            raise Draining

    async def _load(self, name: str) -> None:
        try:
            async with self._changing:
                folders = await self._look()
                if name in self._conflicts:
                    raise UserError(self._conflicts[name])
                if name not in folders:
                    raise UnknownModel(name, list(folders), IN_NO_REPOSITORY)
                model = self._model(name)
                model.unloaded = False
                model.refused.clear()
                await self._reconcile(name, folders[name])
                self._taken = self._taken | {name: folders[name]}
        except UserError as error:
            raise LoadRefused(str(error)) from None
        if model.refused:
            raise LoadRefused("; ".join(f"{label}: {why}" for label, (_, why) in model.refused.items()))
        if not model.live:
            raise LoadRefused(NO_VERSION)

    async def unload(self, name: str) -> None:
        """Ends a model until it is loaded by name; accepted requests are answered.

        Raises:
            UnknownModel: it is not served from a repository.
            NotReady, Draining: as `load`.
        """
        self._require_serving()
        async with self._changing:
            if not (name in self._models and self._models[name].live):
                served = [name for name, model in self._models.items() if model.live]
                raise UnknownModel(name, served, f"{IN_NO_REPOSITORY}, or is not served")
            self._drop(name)
            self._models[name].unloaded = True

    def index(self) -> list[Entry]:
        """Returns all versions in the repositories, as of the last look that was taken."""
        return [
            Entry(name, label, self._reason(self._model(name), label), folder.path.absolute().parent.name)
            for name, folder in self._taken.items()
            for label in dict.fromkeys((*folder.versions, *self._model(name).live))
        ]

    def _names(self) -> set[str]:
        """Returns the models in the repositories; a folder without versions is none."""
        return {name for folders in (self._taken, self._seen) for name, folder in folders.items() if folder.versions}

    def _reason(self, model: _Model, label: str) -> str:
        if label in model.live:
            return ""
        if model.unloaded:
            return "unloaded"
        is_refused = label in model.refused or POLICY_NAME in model.refused
        return "refused: the server's log has the reason" if is_refused else "no policy names it"

    async def _look(self) -> dict[str, ModelFolder]:
        """Returns the models of all repositories. A name that is in two places keeps its folder, and is logged once."""
        folders: dict[str, ModelFolder] = {}
        conflicts: dict[str, str] = {}
        for repository in self.repositories:
            for name, folder in (await in_daemon_thread(partial(look_into, repository))).items():
                if name in folders or name in self._others:
                    other = folders[name].path if name in folders else "a bundle of its own"
                    conflicts[name] = f"two models are named {name}, {other} and {folder.path}: serve one of them"
                else:
                    folders[name] = folder
        for name, why in conflicts.items():
            if self._taken.get(name) is None:
                folders.pop(name, None)
            else:
                folders[name] = self._taken[name]
            if name not in self._conflicts:
                log.error("not loaded", extra={"model": name, "reason": why})
        self._conflicts = conflicts
        return folders

    async def _take_changes(self) -> None:
        folders = await self._look()
        for name in sorted(folders.keys() | self._taken.keys()):
            now = folders.get(name)
            # Files that are still being written change between two looks.
            if now != self._taken.get(name) and now == self._seen.get(name):
                await self._reconcile(name, now)
                taken = self._taken | {name: now}
                self._taken = {key: folder for key, folder in taken.items() if folder is not None}
        self._seen = folders

    async def _reconcile(self, name: str, folder: ModelFolder | None) -> None:
        """Serves a model according to its folder, as far as that is possible."""
        model = self._model(name)
        if folder is None or model.unloaded:
            self._drop(name)
            return
        model.refused = {label: refused for label, refused in model.refused.items() if label in folder.versions}
        try:
            if folder.unreadable:
                raise UserError(folder.unreadable)
            policy = await in_daemon_thread(partial(read_policy, folder.path / POLICY_NAME))
        except UserError as error:
            self._refuse(name, POLICY_NAME, folder.policy, error)
            return
        choices = policy.stable_choices(list(folder.versions))
        if not choices:
            log.warning("not loaded", extra={"model": name, "reason": NO_VERSION})
        for label in choices:
            if (stable := await self._version(name, label, folder)) is not None:
                break
        else:
            stable = model.stable
        if stable is None:
            return
        others = [
            version
            for label in dict.fromkeys((policy.canary, policy.shadow, *policy.named))
            if label and label != stable.label and (version := await self._version(name, label, folder)) is not None
        ]
        self._serve(name, policy, stable, others)

    async def _version(self, name: str, label: str, folder: ModelFolder) -> _Version | None:
        """Returns the version in its present state, or as it is served if that is refused; None if neither exists."""
        model, state = self._model(name), folder.versions.get(label)
        live = model.live.get(label)
        if live is not None and live.dead:
            live = None
        if state is None:
            why = "there is no folder" if LABEL.fullmatch(label) else "its name must be numbers, e.g. 3 or 2026-11-22:"
            self._refuse(name, label, (), UserError(f"{why} {folder.path / label}"))
            return None
        if live is not None and live.state == state:
            return live
        if label in model.refused and model.refused[label][0] == state:
            return live
        version = _Version(label, state)
        try:
            version.loaded = await self._start(
                folder.path / label,
                label,
                name=name,
                num_models=len(self._names() | self._others | {name}),
                on_available=partial(self._engine_available, name, version),
                on_death=partial(self._engine_died, name, version),
            )
        except (UserError, WorkerLost) as error:
            self._refuse(name, label, state, error)
            return live
        self._metrics.model_loads.labels(name, "served").inc()
        return version

    def _refuse(self, name: str, item: str, state: State, why: Exception) -> None:
        """Notes and logs that a version, or the policy's file, is refused."""
        reason = " ".join(str(why).split())  # A refused bundle's message has a line for each difference.
        self._model(name).refused[item] = state, reason
        if self._model(name).stable is None:
            self._metrics.set_ready(name, False)
        self._metrics.model_loads.labels(name, "refused").inc()
        log.error("not loaded", extra={"model": name, "what": item, "reason": reason})

    def _serve(self, name: str, policy: Policy, stable: _Version, others: Sequence[_Version]) -> None:
        """Exchanges the routes of a model; versions that are no longer among them end after their last lease."""
        model = self._model(name)
        before = list(model.live.values())
        live = {version.label: version for version in (*others, stable)}
        by_label = {label: version.model for label, version in live.items() if version is not stable}
        routes = Routes(
            stable=stable.model,
            canary=by_label.get(policy.canary or ""),
            canary_share=policy.canary_percent / 100,
            shadow=by_label.get(policy.shadow or ""),
            named=tuple(by_label[label] for label in policy.named if label in by_label),
        )
        for version in (*before, *live.values()):
            version.model.shadows.clear()
        if routes.shadow is not None:
            stable.model.shadows.append((routes.shadow, policy.shadow_percent / 100))
        if stable is not model.stable:
            stable.model.metrics.watch_drift(stable.model.manifest.reference_of(stable.model.precision))
        model.stable, model.live = stable, live
        self._catalogue.put(routes)
        self._lifecycle.engine_available(name, stable.available)
        roles = [f"{served.label} ({served.manifest.version}) {routes.role_of(served)}" for served in routes.all()]
        log.info("model served", extra={"model": name, "versions": ", ".join(roles)})
        for version in dict.fromkeys((*before, *others)):
            if version not in live.values():
                self.ending.add(version.model)
        for version in live.values():
            if version.dead:  # since it was started, while others were loaded
                self._engine_died(name, version)

    def _drop(self, name: str) -> None:
        """Ends a model; accepted requests are answered."""
        model = self._model(name)
        before, stable, model.stable, model.live = model.live, model.stable, None, {}
        self._catalogue.drop(name)
        self._lifecycle.model_dropped(name)
        if stable is not None:
            stable.model.metrics.watch_drift(None)
            log.info("model not served any more", extra={"model": name})
        for version in before.values():
            version.model.shadows.clear()
            self.ending.add(version.model)

    def _engine_available(self, name: str, version: _Version, available: bool) -> None:
        version.available = available
        if self._model(name).stable is version:
            self._lifecycle.engine_available(name, available)

    def _engine_died(self, name: str, version: _Version) -> None:
        """Gives up a version. Without its stable version, the model can't be served."""
        version.dead = True
        model = self._model(name)
        if model.stable is version:
            self._lifecycle.engine_died(name)
        elif version in model.live.values():
            self._refuse(name, version.label, version.state, RuntimeError("its engines have failed for good"))
            begin(self._reconcile_again(name), self._tasks)

    async def _reconcile_again(self, name: str) -> None:
        async with self._changing:
            await self._reconcile(name, self._taken.get(name))

    def _model(self, name: str) -> _Model:
        return self._models.setdefault(name, _Model())
