"""The seams of a simulated actor: object store, catalog pointers, lock and index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from lock import HeldLease, Lease, LeaseUnavailableError
from lock.lease import RESUME_TIMEOUT_MS
from resolver.index.base import IndexBinding
from resolver.index.follow import RowsToPut, changes_to_follow
from resolver.index_keeper import LocalIndexKeeper, TargetHead
from tableformat.catalog.base import Identifier
from tableformat.catalog.pointers import PointerSwap
from tableformat.environment import Environment
from tableformat.errors import AlreadyExistsError, StoreUnavailableError
from tableformat.store.base import ObjectInfo
from tests.support.lying_lock import GrantAllLock, GrantedLease
from tests.support.memory_catalog import MemoryPointers
from tests.support.memory_index import MemoryIndex
from tests.support.memory_store import MemoryObjectStore, _MemoryOutput
from tests.support.sim_world import Actor, Crash, Halt, Profile, World

LEASE_MS = 8_000


class SimStore:
    """An actor's way to the shared store: slow, failing before or after the effect.

    What a read finds may be damaged for a while: the copy that answers is not the only one.
    """

    def __init__(self, actor: Actor, shared: MemoryObjectStore) -> None:
        self._actor = actor
        self._shared = shared

    def get(self, location: str, *, offset: int = 0, length: int | None = None) -> bytes:
        self._before("get", location)
        return self._copy_of(location).get(location, offset=offset, length=length)

    def size_bytes(self, location: str) -> int:
        self._before("size", location)
        return self._copy_of(location).size_bytes(location)

    def put(self, location: str, data: bytes | memoryview) -> None:
        self._before("put", location)
        again = partial(self._deliver, location, bytes(data))
        if self._strikes("store late", self._profile.store_late):
            self._actor.world.later(again)
            raise StoreUnavailableError("simulated: no answer, lands later", location=location)
        self._shared.put(location, data)
        if self._strikes("store twice", self._profile.store_twice):
            self._actor.world.later(again)
        self._after("put", location)

    def open_input(self, location: str) -> Any:
        self._before("open", location)
        return self._copy_of(location).open_input(location)

    def open_output(self, location: str) -> Any:
        return _MemoryOutput(self, location)  # type: ignore[arg-type] # it only calls `put`

    def list_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        self._before("list", prefix)
        return self._shared.list_prefix(prefix)

    def delete(self, locations: Sequence[str]) -> None:
        self._before("delete", " ".join(locations))
        if self._strikes("store late", self._profile.store_late):
            self._actor.world.later(partial(self._shared.delete, list(locations)))
            raise StoreUnavailableError("simulated: no answer, lands later")
        self._shared.delete(locations)
        if self._strikes("store twice", self._profile.store_twice):
            self._actor.world.later(partial(self._shared.delete, list(locations)))
        self._after("delete", "")

    @property
    def _profile(self) -> Profile:
        return self._actor.world.profile

    def _strikes(self, fault: str, rate: float) -> bool:
        return self._actor.is_running_here and self._actor.world.strikes(fault, rate)

    def _deliver(self, location: str, data: bytes) -> None:
        with suppress(AlreadyExistsError):
            self._shared.put(location, data)

    def _copy_of(self, location: str) -> MemoryObjectStore:
        """The store to read an object from: another one while its copy is damaged."""
        world = self._actor.world
        rare = location.endswith((".avro", ".json"))  # and read all the time
        rate = 0.0 if location in world.unchecked else self._profile.damage
        if self._strikes("damage", rate * (1 if rare else 6)):
            world.damage(location, self._shared.get(location))
        copy = world.damaged_copy(location)
        if copy is None:
            return self._shared
        view = MemoryObjectStore()
        if copy.data is not None:
            view.put(location, copy.data)
        return view

    def _before(self, operation: str, location: str) -> None:
        actor = self._actor
        if actor.is_running_here:
            actor.world.hand_over(actor, f"{operation} {location}")
            if actor.world.strikes("store before", actor.world.profile.store_before):
                raise StoreUnavailableError("simulated 503", location=location)

    def _after(self, operation: str, location: str) -> None:
        actor = self._actor
        if actor.is_running_here:
            actor.world.hand_over(actor, f"{operation} done")
            if actor.world.strikes("store after", actor.world.profile.store_after):
                raise StoreUnavailableError("simulated lost answer", location=location)


class WatchedPointers(MemoryPointers):
    """The shared pointers; tells the oracle of every swap, within the swap."""

    def __init__(self) -> None:
        super().__init__()
        self.on_swap: Callable[[str], None] = lambda _: None

    def swap(self, identifier: Identifier, *, expected: str, new: str) -> bool:
        swapped = super().swap(identifier, expected=expected, new=new)
        if swapped:
            self.on_swap(new)
        return swapped

    def swap_all(self, swaps: Sequence[PointerSwap]) -> bool:
        swapped = super().swap_all(swaps)
        if swapped:
            self.on_swap(", ".join(each.new for each in swaps))
        return swapped


class SimPointers:
    """An actor's way to the shared pointers. Lost, late and doubled answers."""

    def __init__(self, actor: Actor, shared: WatchedPointers) -> None:
        self._actor = actor
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    def read(self, identifier: Identifier) -> str | None:
        actor = self._actor
        if actor.is_running_here:
            actor.world.hand_over(actor, "pointer read")
            if actor.world.strikes("pointer read", actor.world.profile.store_before):
                raise StoreUnavailableError("simulated catalog 503")
        return self._shared.read(identifier)

    def swap(self, identifier: Identifier, *, expected: str, new: str) -> bool:
        return self._deliver(
            partial(self._shared.swap, identifier, expected=expected, new=new), new
        )

    def swap_all(self, swaps: Sequence[PointerSwap]) -> bool:
        names = ", ".join(each.new for each in swaps)
        return self._deliver(partial(self._shared.swap_all, swaps), names)

    def _deliver(self, land: Callable[[], bool], new: str) -> bool:
        actor, world, profile = self._actor, self._actor.world, self._actor.world.profile
        world.hand_over(actor, "swap")
        if world.strikes("swap before", profile.swap_before):
            raise StoreUnavailableError("simulated catalog 503, nothing done")
        if world.strikes("swap late", profile.swap_late):
            world.later(lambda: (land(), None)[1])
            raise TimeoutError("simulated: no answer, lands later")
        swapped = land()
        world.log(f"swap {swapped} {new}")
        if world.strikes("swap twice", profile.swap_twice):
            swapped = land()
        world.hand_over(actor, "swap done")
        if world.strikes("swap lost", profile.swap_lost):
            raise ConnectionResetError("simulated: the answer was lost")
        return swapped


class SimLock(GrantAllLock):
    """Honest: one holder of a name at a time, until the lease runs out by the world's clock. Else:
    a liar."""

    def __init__(self, world: World) -> None:
        super().__init__(tokens="same" if world.profile.lock == "same" else "rising")
        self._world = world
        self._newest: dict[str, Lease] = {}
        self._until_ms: dict[str, float] = {}
        self.lost = self._is_lost
        self.is_honest = world.profile.lock == "honest"

    def _is_lost(self, lease: Lease) -> bool:
        if self.is_honest:
            return self._newest[lease.name] is not lease
        return self._world.strikes("lease taken", 0.02)

    def take(self, name: str, task: str, token_floor: int = 0) -> Lease:
        """A lease, if nobody has one."""
        if self.is_honest and self._world.now_ms < self._until_ms.get(name, 0.0):
            raise LeaseUnavailableError("held by another", lock=name)
        lease = self.acquire(name, task=task, token_floor=token_floor)
        self._newest[name] = lease
        self._until_ms[name] = self._world.now_ms + LEASE_MS
        return lease

    def free(self, lease: Lease) -> None:
        """End one's own lease."""
        if self._newest[lease.name] is lease:
            self._until_ms[lease.name] = 0.0

    @contextmanager
    def hold(self, name: str, *, task: str, **options: Any) -> Iterator[HeldLease]:
        held = SimLease(self, self.take(name, task, options.get("token_floor", 0)))
        try:
            yield held
        except (Crash, Halt):
            raise  # the dead release nothing
        except BaseException:
            self.free(held.lease)
            raise
        self.free(held.lease)


class SimLease(GrantedLease):
    """Given up in a pause, so that others have their turn."""

    _manager: SimLock
    _is_paused = False

    def pause(self) -> None:
        if not self._is_paused:
            super().pause()
            self._manager.free(self._lease)
            self._is_paused = True

    def resume(self, *, timeout_ms: int = RESUME_TIMEOUT_MS) -> None:
        self._lease = self._manager.take(self.name, "resumed", self.token)
        self._lost = self._is_paused = False


class MemoryIndexKeeper(LocalIndexKeeper):
    """`IndexKeeper` over `MemoryIndex`, with the follow logic of the real one."""

    _index: Any

    def __init__(self, environment: Environment, index: MemoryIndex | None = None) -> None:
        super().__init__(environment, Path("memory-index"))
        self._index = index
        if index is not None:
            index.runtime = environment.runtime

    @property
    def index(self) -> MemoryIndex | None:
        """What a restarted process finds."""
        found: MemoryIndex | None = self._index
        return found

    def close(self) -> None:
        """Nothing is open."""

    def die(self) -> None:
        """With its process."""

    def at_end(self, head: TargetHead) -> MemoryIndex | None:
        """The index, to be looked into."""
        del head
        return self.index

    def _opened(self, wanted: IndexBinding) -> Any:
        return None if self.rebuild else self._index

    def _build(self, head: TargetHead) -> Any:
        wanted = head.wanted
        empty = wanted.at(snapshot_id=None, sequence_number=0)
        index = MemoryIndex.create(empty, runtime=self.environment.runtime)
        rows = [RowsToPut(each.file, each.read) for each in head.sources()]
        index.apply(index.prepare(changes_to_follow((), rows, head.reader.key)), wanted)
        self._index = index
        self.rebuild = False
        return index
