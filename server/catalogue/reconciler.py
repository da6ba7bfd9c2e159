"""Reconciles the served versions with the repositories' folders while the server runs.

A new version is loaded beside those that answer: its engine starts in processes of its own, is warmed up and passes its
golden examples. Then the catalogue's routes are exchanged at once: requests that come now get the new version, those
that have come end on the old one, whose engine ends after them. A version that is refused changes nothing.
"""

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from attendant.runtime.errors import UserError
from attendant.server.catalogue.folders import POLICY_NAME, ModelFolder, Policy, look_into, read_policy
from attendant.server.catalogue.models import Catalogue, Routes, ServedModel, Shadow
from attendant.server.credentials import State
from attendant.server.engine.client import EngineClient
from attendant.server.engine.loading import in_daemon_thread
from attendant.server.errors import Draining, LoadRefused, UnknownModel
from attendant.server.metrics import Metrics

HELD_SECONDS: Final = 30.0
"""How often a version that is held for longer is looked for among Python's circles of references."""


class Retirement:
    """The engines that are about to end; iterated over, each of them.

    Who holds a `ServedModel` may still submit requests to it, so its engine ends when nobody holds it any more and the
    last of its requests has been answered.
    """

    def __init__(self) -> None:
        self._ending: dict[EngineClient, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[EngineClient]:
        return iter(tuple(self._ending))

    def add(self, model: ServedModel) -> None:
        """Ends a version's engine, some time."""
        loop, unheld = asyncio.get_running_loop(), asyncio.Event()
        weakref.finalize(model, loop.call_soon_threadsafe, unheld.set).atexit = False
        runner, metrics = model.runner, model.metrics

        async def end() -> None:
            while not unheld.is_set():
                try:
                    await asyncio.wait_for(unheld.wait(), HELD_SECONDS)
                except TimeoutError:
                    gc.collect()
            await runner.finished()
            runner.stop()
            metrics.unwatch(runner)
            del self._ending[runner]

        self._ending[runner] = asyncio.create_task(end())


log = logging.getLogger(__name__)


class StartVersion(Protocol):
    """Opens a bundle and starts its engine."""

    async def __call__(
        self,
        path: Path,
        label: str,
        *,
        name: str,
        num_models: int,
        on_available: Callable[[bool], None],
        on_death: Callable[[], None],
    ) -> ServedModel:
        """Waits until the engine is ready.

        Args:
            name: what the model must be called in its manifest.
            num_models: that the budget of threads is shared out among.
            on_available, on_death: of EngineClient.

        Raises:
            UserError, RuntimeError: why it can't be served.
        """


class Entry(NamedTuple):
    """A version that stands in a repository, or is served.

    Attributes:
        reason: why it is not served, in words for everybody.
        repository: the name of the repository's folder; empty if the model is in none.
    """

    name: str
    label: str
    reason: str = ""
    repository: str = ""


@dataclass(slots=True)
class _Engine:
    """The state of a version's engine. The engine's callbacks hold this instead of the version, which has to end."""

    available: bool = True
    dead: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Version:
    label: str
    state: State
    model: ServedModel
    engine: _Engine


@dataclass(slots=True)
class _Model:
    """What is known of a model in a repository.

    Attributes:
        live: label -> version, of those that are served.
        refused: label, or the policy's file -> the state in which it was refused, and why.
        unloaded: an administrator has said that it is not to be served.
    """

    stable: _Version | None = None
    live: dict[str, _Version] = field(default_factory=dict)
    refused: dict[str, tuple[State, str]] = field(default_factory=dict)
    unloaded: bool = False


class Reconciler:
    """Owns the versions that come from repositories: starts them, puts them into the catalogue, and lets them end.

    Attributes:
        repositories: folders.
        ending: the engines of versions that are served no more.
    """

    def __init__(
        self,
        repositories: Sequence[Path],
        catalogue: Catalogue,
        metrics: Metrics,
        start: StartVersion,
        *,
        make_shadow: Callable[[ServedModel, ServedModel, float], Shadow],
        on_available: Callable[[str, bool], None],
        on_death: Callable[[str], None],
    ) -> None:
        """Looks at nothing yet.

        Args:
            make_shadow: of a stable version, the one that it is compared with, and the share of the requests.
            on_available: called when a model's stable version has lost its last engine for the time being, or has one.
            on_death: called once the engines of a model's stable version have failed for good.
        """
        self.repositories = repositories
        self.ending = Retirement()
        self._catalogue = catalogue
        self._metrics = metrics
        self._start = start
        self._make_shadow = make_shadow
        self._on_available = on_available
        self._on_death = on_death
        self._models: dict[str, _Model] = {}
        # What the models in force were made from, and what the last look has found.
        self._taken: dict[str, ModelFolder] = {}
        self._seen: dict[str, ModelFolder] = {}
        # The names that stand in several places now, and why that is wrong.
        self._conflicts: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._others: frozenset[str] = frozenset()
        self._under_way: set[asyncio.Task[None]] = set()

    async def look(self, others: Collection[str]) -> int:
        """Looks for the first time; returns the number of models that are there.

        Args:
            others: names of models that are served from bundles of their own.

        Raises:
            UserError: a repository can't be read, or has a model of a name that is served from elsewhere.
        """
        self._others = frozenset(others)
        self._taken = self._seen = await self._look()
        for why in self._conflicts.values():
            raise UserError(why)
        return len(self._seen)

    async def open(self) -> None:
        """Loads what was seen.

        Raises:
            UserError: no version of any model can be served.
        """
        async with self._changing:
            for name, folder in self._taken.items():
                await self._reconcile(name, folder)
        if self.repositories and not any(model.live for model in self._models.values()):
            refused = ((name, *one) for name, model in self._models.items() for one in model.refused.items())
            why = [f"{name}/{label}: {reason}" for name, label, (_, reason) in refused]
            names = ", ".join(map(str, self.repositories))
            raise UserError(f"nothing in the repository {names} can be served; a bundle stands in NAME/VERSION/", why)

    @contextmanager
    def following(self, seconds: float) -> Iterator[None]:
        """Looks at the repositories every so many seconds, and takes changes that are at rest; 0: never."""
        if self.repositories and seconds:
            self._begin(self._follow(seconds))
        try:
            yield
        finally:
            for task in self._under_way:
                task.cancel()

    async def reload(self) -> None:
        """Takes all changes that are there now, without waiting until they are at rest."""
        try:
            async with self._changing:
                self._seen = await self._look()
                await self._take_changes()
        except UserError as error:
            log.warning("the repositories are not reloaded", extra={"reason": str(error)})

    async def _follow(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                async with self._changing:
                    await self._take_changes()
            except UserError as error:
                log.warning("the repositories are not followed now", extra={"reason": str(error)})
            except Exception:
                log.exception("a look at the repositories has failed, and the next one follows")

    async def load(self, name: str) -> None:
        """Brings a model to what its folder says now, whatever was refused or unloaded before.

        Whoever asks for it may go: it is loaded all the same.

        Raises:
            UnknownModel: it has no folder in a repository.
            LoadRefused: something of it can't be served; what was served before is served on.
            Draining
        """
        if self._catalogue.closing.is_set():
            raise Draining
        await asyncio.shield(self._begin(self._load(name)))

    async def _load(self, name: str) -> None:
        try:
            async with self._changing:
                folders = await self._look()
                if name in self._conflicts:
                    raise UserError(self._conflicts[name])
                if name not in folders:
                    raise UnknownModel(name, list(folders))
                model = self._model(name)
                model.unloaded = False
                model.refused.clear()
                await self._reconcile(name, folders[name])
                self._taken = self._taken | {name: folders[name]}
        except UserError as error:
            raise LoadRefused(str(error)) from None
        if model.refused:
            raise LoadRefused("; ".join(f"{label}: {why}" for label, (_, why) in model.refused.items()))

    async def unload(self, name: str) -> None:
        """Serves a model no more, until it is loaded by name; requests that have come are answered.

        Raises:
            UnknownModel: it is not served from a repository.
        """
        async with self._changing:
            if not (name in self._models and self._models[name].live):
                raise UnknownModel(name, [name for name, model in self._models.items() if model.live])
            self._drop(name)
            self._models[name].unloaded = True

    def index(self) -> list[Entry]:
        """All versions in the repositories, as they were found by the last look that was taken."""
        return [
            Entry(name, label, self._reason(self._model(name), label), folder.path.absolute().parent.name)
            for name, folder in self._taken.items()
            for label in dict.fromkeys((*folder.versions, *self._model(name).live))
        ]

    def _reason(self, model: _Model, label: str) -> str:
        if label in model.live:
            return ""
        if model.unloaded:
            return "unloaded"
        return "refused: the server's log says why" if label in model.refused else "no policy asks for it"

    async def _look(self) -> dict[str, ModelFolder]:
        """The models of all repositories. One whose name is elsewhere too is left as it was, and told once."""
        found: dict[str, ModelFolder] = {}
        conflicts: dict[str, str] = {}
        for repository in self.repositories:
            for name, folder in (await in_daemon_thread(partial(look_into, repository))).items():
                if name in found or name in self._others:
                    why = f"two models are named {name}, one of them in {folder.path}; requests choose by it"
                    conflicts[name] = why
                else:
                    found[name] = folder
        for name, why in conflicts.items():
            if self._taken.get(name) is None:
                found.pop(name, None)
            else:
                found[name] = self._taken[name]
            if name not in self._conflicts:
                log.error("not loaded", extra={"model": name, "reason": why})
        self._conflicts = conflicts
        return found

    async def _take_changes(self) -> None:
        folders = await self._look()
        for name in sorted(folders.keys() | self._taken.keys()):
            now = folders.get(name)
            # Whatever is still being written changes between two looks.
            if now != self._taken.get(name) and now == self._seen.get(name):
                await self._reconcile(name, now)
                self._taken = {key: one for key, one in (self._taken | {name: now}).items() if one is not None}
        self._seen = folders

    async def _reconcile(self, name: str, folder: ModelFolder | None) -> None:
        """Serves a model as its folder says, as far as that can be served."""
        model = self._model(name)
        if folder is None or model.unloaded:
            self._drop(name)
            return
        model.refused = {what: refused for what, refused in model.refused.items() if what in folder.versions}
        try:
            policy = await in_daemon_thread(partial(read_policy, folder.path / POLICY_NAME))
        except UserError as error:
            self._refuse(name, POLICY_NAME, folder.policy, error)
            return
        taken: list[_Version] = []
        for label in policy.stable_choices(list(folder.versions)):
            if (stable := await self._version(name, label, folder)) is not None:
                break
        else:
            stable = model.stable
        for label in filter(None, (policy.canary, policy.shadow, *policy.named)):
            if (version := await self._version(name, label, folder)) is not None:
                taken.append(version)
        if stable is not None:
            self._serve(name, policy, stable, taken)

    async def _version(self, name: str, label: str, folder: ModelFolder) -> _Version | None:
        """The version of that label: as it is now; else, where that is refused, as it is served; None: neither."""
        model, state = self._model(name), folder.versions.get(label)
        live = model.live.get(label)
        if live is not None and live.engine.dead:
            live = None
        if state is None:
            self._refuse(name, label, (), UserError(f"there is no folder {folder.path / label}"))
            return None
        if live is not None and live.state == state:
            return live
        if label in model.refused and model.refused[label][0] == state:
            return live
        engine = _Engine()
        try:
            served = await self._start(
                folder.path / label,
                label,
                name=name,
                num_models=len(self._seen.keys() | self._others),
                on_available=partial(self._engine_available, name, engine),
                on_death=partial(self._engine_died, name, engine),
            )
        except (UserError, RuntimeError, OSError) as error:
            self._refuse(name, label, state, error)
            return live
        self._metrics.model_loads.labels(name, "served").inc()
        return _Version(label, state, served, engine)

    def _refuse(self, name: str, what: str, state: State, why: Exception) -> None:
        self._model(name).refused[what] = state, str(why)
        self._metrics.model_loads.labels(name, "refused").inc()
        log.error("not loaded", extra={"model": name, "what": what, "reason": str(why)})

    def _serve(self, name: str, policy: Policy, stable: _Version, others: Sequence[_Version]) -> None:
        """Exchanges the routes of a model; the versions that are not among them end when nobody asks them any more."""
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
            shadow = self._make_shadow(stable.model, routes.shadow, policy.shadow_percent / 100)
            stable.model.shadows.append(shadow)
        if stable is not model.stable:
            stable.model.metrics.watch_drift(stable.model.manifest.reference_of(stable.model.precision))
        model.stable, model.live = stable, live
        self._catalogue.put(routes)
        self._on_available(name, stable.engine.available)
        roles = [f"{one.label} ({one.manifest.version}) {routes.role_of(one)}" for one in routes.all()]
        log.info("model served", extra={"model": name, "versions": ", ".join(roles)})
        for version in dict.fromkeys((*before, *others)):
            if version not in live.values():
                self.ending.add(version.model)

    def _drop(self, name: str) -> None:
        """Serves a model no more; requests that have come are answered."""
        model = self._model(name)
        if model.stable is None:
            return
        before, model.stable, model.live = model.live, None, {}
        self._catalogue.drop(name)
        self._on_available(name, True)  # nobody waits for it
        self._metrics.set_ready(name, False)
        log.info("model not served any more", extra={"model": name})
        for version in before.values():
            version.model.shadows.clear()
            self.ending.add(version.model)

    def _engine_available(self, name: str, engine: _Engine, available: bool) -> None:
        engine.available = available
        stable = self._model(name).stable
        if stable is not None and stable.engine is engine:
            self._on_available(name, available)

    def _engine_died(self, name: str, engine: _Engine) -> None:
        """Without its stable version a model can't be served; any other one is given up."""
        engine.dead = True
        model = self._model(name)
        if model.stable is not None and model.stable.engine is engine:
            self._on_death(name)
            return
        for version in model.live.values():
            if version.engine is engine:
                self._refuse(name, version.label, version.state, RuntimeError("its engines have failed for good"))
                self._begin(self._reconcile_again(name))

    async def _reconcile_again(self, name: str) -> None:
        async with self._changing:
            await self._reconcile(name, self._taken.get(name))

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def _model(self, name: str) -> _Model:
        return self._models.setdefault(name, _Model())
