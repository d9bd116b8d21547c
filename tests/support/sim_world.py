"""The simulated world: one random generator decides who runs, what time it is and what fails.

Actors are threads, but one runs at a time: at every seam operation the running actor hands the
baton to the one that the generator picks. So a run is a pure function of its seed. Threads that the
product starts itself (pools) only read: they neither hand over nor fail, and what one reads after
its actor has died is thrown away.
"""

from __future__ import annotations

import hashlib
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tableformat.errors import StoreUnavailableError
from tableformat.runtime import FailPoints, Runtime, snapshot_id_of

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
CLOCK_STEP = 0.002  # a hand-over
MEDDLERS = (
    "adder", "ager", "cdc", "foreign-compactor", "foreign-expirer", "forwarder", "picker",
    "retrier", "row-level",
)  # fmt: skip


ON_V2 = frozenset(
    {"ager", "foreign-compactor", "foreign-expirer", "main-row-level", "pruner", "tagger"}
)  # and without a staging branch
OF_ONE_FORMAT = frozenset({"foreign-compactor", "main-row-level"})  # not where it is upgraded
EXPIRERS = frozenset({"ager", "foreign-expirer"})


class Crash(BaseException):
    """The actor's process is gone. Whatever unwinding code asks of a seam raises it again."""


class Halt(BaseException):
    """The run is over."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a seed draws before it starts. Rates are per seam operation."""

    steps: int
    partition_by: tuple[str, ...]
    keys: int
    writers: int
    lock: str  # honest | rising | same
    has_expirer: bool
    has_operator: bool
    skew: bool
    keeps_index: bool
    store_before: float
    store_after: float
    swap_before: float
    swap_lost: float  # the effect happened, the answer is lost
    swap_late: float  # the effect happens later, the answer is lost
    swap_twice: float  # the transport delivers twice; the answer is the second one's
    point_error: float
    crash: float
    delay: float
    has_compactor: bool
    has_cleaner: bool
    has_statements: bool
    changes_schema: bool
    changes_spec: bool
    starts_narrow: bool  # `id` and `amount` are int, and may become long
    store_late: float  # no answer; the put or delete lands later
    store_twice: float  # delivered again later
    has_sink: bool  # stages numbered batches, each until it is known to be there
    damage: float  # the copy that is read is damaged, for a while
    flink: str | None  # vectors | positions: how a foreign writer deletes rows of its own commit
    meddlers: tuple[str, ...]  # of `MEDDLERS`: who moves branches and rewrites files, too
    keeps_row_ids: bool  # the foreign compactor keeps them
    rewrites: bool  # publishes write staged rows once more
    leaves_out: bool = False  # writers leave columns out of rows
    v2: str | None = None  # partition | file: of a v2 table, the granularity of its deletes
    index: str = "memory"  # or disk: the real one, with tiny blocks and shards
    upserts: tuple[tuple[int, ...], ...] = ()  # sets of fields that a tool deletes by on main
    declares_key: bool = True
    upgrades: bool = False  # to v3, some time
    computes: bool = False  # the table has a stored computed column

    @property
    def expires(self) -> bool:
        return self.has_expirer or not EXPIRERS.isdisjoint(self.meddlers)

    @property
    def rolls_back(self) -> bool:
        return self.has_operator or not {"forwarder", "undoer"}.isdisjoint(self.meddlers)

    @property
    def forgets(self) -> bool:
        """Whether history may go that icefold's expiry would keep."""
        return (self.rolls_back and self.expires) or "foreign-expirer" in self.meddlers

    def computing(self, rng: random.Random) -> Profile:
        """The same with a stored computed column, without other tools, which do not compute it."""
        leaves_out = rng.random() < 0.5
        return replace(
            self,
            computes=True,
            flink=None,
            meddlers=(),
            leaves_out=leaves_out,
            changes_schema=self.changes_schema and not leaves_out,
            changes_spec=self.changes_spec and not leaves_out,
        )

    def on_v2(self, rng: random.Random) -> Profile:
        """The same on a v2 table, without what needs v3; it may be upgraded on the way."""
        granularity, upgrades = rng.choice(["partition", "file"]), rng.random() < 0.4
        return replace(
            self,
            v2=granularity,
            has_statements=self.has_statements and upgrades,
            changes_schema=False,
            starts_narrow=False,
            rewrites=False,
            flink=None,
            meddlers=tuple(
                each
                for each in self.meddlers
                if each in ON_V2 and not (upgrades and each in OF_ONE_FORMAT)
            ),
            keeps_row_ids=False,
            upgrades=upgrades,
        )

    @property
    def is_in_place(self) -> bool:
        """Whether nobody stages: the resolver works on `main` alone."""
        return bool(self.upserts) and not self.writers

    def in_place(self, rng: random.Random) -> Profile:
        """The same with a tool that commits equality deletes to main, often without who stages.

        Its sets of fields hold the columns that the table is partitioned by, mostly: else its
        deletes would have to be global.
        """
        region = self.partition_by == ("region",)
        first = (1, 2) if region else rng.choice([(1,), (1,), (1, 2)])
        others = rng.choice([(), (), ((2,),), ((1, 2),), ((3,),), ((1,), (2, 3))])
        changed = replace(
            self,
            upserts=(first, *(each for each in others if each != first)),
            declares_key=rng.random() < 0.6,
            leaves_out=False,
        )
        if rng.random() < 0.35:
            return replace(changed, meddlers=tuple(sorted({*self.meddlers, "upserter"})))
        kept = {each for each in self.meddlers if each in ON_V2} | {"upserter"}
        return replace(
            changed,
            writers=0,
            has_sink=False,
            flink=None,
            meddlers=tuple(sorted(kept)),
        )

    @staticmethod
    def draw(rng: random.Random, steps: int) -> Profile:
        calm = rng.random() < 0.25

        def rate(*choices: float) -> float:
            value = rng.choice(choices)
            return 0.0 if calm else value

        roll = rng.random()
        partition_by = rng.choice([(), (), ("bucket(2, id)",), ("region",)])
        return Profile(
            steps=steps,
            partition_by=partition_by,
            keys=rng.choice([3, 6, 12]),
            writers=rng.choice([2, 2, 3]),
            lock="honest" if roll < 0.6 else "rising" if roll < 0.8 else "same",
            has_expirer=rng.random() < 0.4,
            has_operator=rng.random() < 0.3,
            skew=rng.random() < 0.2,
            keeps_index=rng.random() < 0.7,
            store_before=rate(0.0, 0.002, 0.02),
            store_after=rate(0.0, 0.002, 0.02),
            swap_before=rate(0.0, 0.05),
            swap_lost=rate(0.0, 0.05, 0.2),
            swap_late=rate(0.0, 0.05, 0.2),
            swap_twice=rate(0.0, 0.05),
            point_error=rate(0.0, 0.0, 0.01, 0.03),
            crash=rate(0.0, 0.002, 0.01),
            delay=rate(0.0, 0.01),
            has_compactor=rng.random() < 0.6,
            has_cleaner=rng.random() < 0.4,
            has_statements=rng.random() < 0.6,
            # Later draws go to the end: what a seed drew before stays what it was.
            changes_schema=(changes := rng.random() < 0.4),
            changes_spec=(moves := rng.random() < 0.35),
            starts_narrow=rng.random() < 0.6 and changes,
            # Position delete files here are of the unpartitioned spec.
            flink=rng.choice(
                [None, None, "vectors", "vectors" if partition_by or moves else "positions"]
            ),
            store_late=rate(0.0, 0.0, 0.002, 0.02),
            store_twice=rate(0.0, 0.01),
            damage=rate(0.0, 0.0, 0.002, 0.01),
            has_sink=rng.random() < 0.4,
            meddlers=_draw_meddlers(rng, moves=moves),
            keeps_row_ids=rng.random() < 0.6,
            rewrites=rng.random() < 0.4,
        )


def _draw_meddlers(rng: random.Random, *, moves: bool) -> tuple[str, ...]:
    """Mostly one or two. `moves`: the partition spec changes."""
    drawn = rng.sample(MEDDLERS, 3)[: rng.choice([0, 1, 1, 2, 2, 3])]
    if moves:
        # A delete file that is committed again reaches rows of the spec that it was written under.
        drawn = [each for each in drawn if each != "retrier"]
    if "retrier" in drawn:
        # A branch where a file stands twice is moved to main, or changed by position, by nobody.
        # What came to main with a snapshot of staging itself, and was rewritten there, is told by
        # no publish.
        beside = {"retrier", "adder", "ager", "cdc", "foreign-compactor"}
        drawn = [each for each in drawn if each in beside]
    if "foreign-expirer" in drawn:
        # What says that they brought a change is what that one takes (docs/resolving.md).
        drawn = [each for each in drawn if each not in {"adder", "forwarder", "picker"}]
    return tuple(sorted(drawn))


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """What reads of an object find until a step; `data` None: nothing."""

    until: int
    data: bytes | None


@dataclass(eq=False)
class Actor:
    """One simulated process; `life` counts its restarts."""

    world: World
    name: str
    body: Callable[[Actor], None]
    skew_ms: int = 0
    life: int = 0
    wake_ms: float = 0.0
    crashed: bool = False
    drawn: list[int] = field(default_factory=list)  # snapshot ids of the running operation
    on_draw: Callable[[int], None] = lambda _: None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.world.seed}/{self.name}")

    @property
    def is_running_here(self) -> bool:
        return self.thread is threading.current_thread()

    def new_runtime(self) -> Runtime:
        """The runtime of a new life."""
        self.life += 1
        points = FailPoints(observer=self.at_fail_point)
        ids = SimIds(self, random.Random(f"{self.world.seed}/{self.name}/{self.life}"))
        return Runtime(clock=SimClock(self), ids=ids, fail_points=points, side_by_side=False)

    def at_fail_point(self, name: str) -> None:
        if not self.is_running_here:
            return
        self.world.points[name, "hit"] += 1
        self.world.hand_over(self, name, point=name)
        if self.world.strikes("point error", self.world.profile.point_error, point=name):
            raise StoreUnavailableError("simulated trouble", point=name)

    def sleep(self, duration_ms: float) -> None:
        if self.is_running_here:
            self.wake_ms = self.world.now_ms + max(duration_ms, 0.0)
            self.world.hand_over(self, "sleep")


@dataclass(slots=True)
class SimClock:
    """`Clock` of one actor: its wall clock may be wrong by up to a year, and jump."""

    actor: Actor

    def now_ms(self) -> int:
        return int(self.actor.world.now_ms) + self.actor.skew_ms

    def monotonic_ms(self) -> float:
        return self.actor.world.now_ms - START_MS

    def sleep_ms(self, duration_ms: float) -> None:
        self.actor.sleep(duration_ms)


@dataclass(slots=True)
class SimIds:
    """`IdSource` of one life of an actor."""

    actor: Actor
    rng: random.Random

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def snapshot_id(self) -> int:
        drawn = snapshot_id_of(self.uuid())
        self.actor.on_draw(drawn)
        return drawn

    def uniform(self, low: float, high: float) -> float:
        return self.rng.uniform(low, high)


def drawn_skew_ms(rng: random.Random) -> int:
    """How wrong a wall clock is: an hour at most, or, one time in four, a year."""
    far = YEAR_MS if rng.random() < 0.25 else HOUR_MS
    return rng.randint(-far, far)


class World:
    """Scheduler, time, faults and the event log of one seed."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed = seed
        self.profile = profile
        self.rng = random.Random(f"{seed}/world")
        self.now_ms = float(START_MS)
        self.steps = 0
        self.actors: list[Actor] = []
        self.damaged: dict[str, DamagedCopy] = {}
        self.unchecked: set[str] = set()  # other tools' files, whose damage nobody can see
        self.late: list[tuple[int, Callable[[], None]]] = []
        self.faults: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.points: Counter[tuple[str, str]] = Counter()  # (fail point, "hit" or fault)
        self.violation: str | None = None
        self.is_over = False
        self._over = threading.Semaphore(0)
        self._log = hashlib.sha256()
        self.trace: list[str] | None = None

    def log(self, text: str) -> None:
        self._log.update(text.encode() + b"\n")
        if self.trace is not None:
            self.trace.append(f"{self.steps:5} {text}")

    def log_hash(self) -> str:
        return self._log.hexdigest()

    def add(self, name: str, body: Callable[[Actor], None]) -> None:
        actor = Actor(self, name, body)
        if self.profile.skew:
            actor.skew_ms = drawn_skew_ms(self.rng)
        self.actors.append(actor)

    def strikes(self, fault: str, rate: float, *, point: str | None = None) -> bool:
        """Whether a fault happens here, now. `point`: the fail point where the actor is."""
        if self.is_over or rate == 0.0 or self.rng.random() >= rate:
            return False
        self.faults[fault] += 1
        if point is not None:
            self.points[point, fault] += 1
        self.log(f"fault {fault}")
        return True

    def later(self, land: Callable[[], None]) -> None:
        """Let an effect happen some steps from now."""
        self.late.append((self.steps + self.rng.randint(1, 60), land))

    def damage(self, location: str, data: bytes) -> None:
        """Damage the copy of an object that reads find, for up to 80 steps."""
        kind = self.rng.choice(["missing", "cut", "empty", *["flipped"] * 4])
        found: bytes | None = None
        if kind == "cut":
            found = data[: self.rng.randrange(len(data))]
        elif kind == "empty":
            found = b""
        elif kind == "flipped":
            at = self.rng.randrange(len(data))
            flipped = bytearray(data)
            flipped[at] ^= 1 << self.rng.randrange(8)
            found = bytes(flipped)
        self.outcomes[f"copies {kind}"] += 1
        self.log(f"{kind} {location}")
        self.damaged[location] = DamagedCopy(self.steps + self.rng.randint(1, 80), found)

    def damaged_copy(self, location: str) -> DamagedCopy | None:
        """What reads of an object find now; None: the object itself."""
        copy = self.damaged.get(location)
        return copy if copy is not None and self.steps <= copy.until else None

    def fail(self, text: str) -> None:
        """Record the first violation; the run ends at the next hand-over."""
        if self.violation is None:
            self.violation = text
            self.log(f"violation {text}")

    def hand_over(self, actor: Actor, label: str, *, point: str | None = None) -> None:
        """Every seam operation passes here: others may run, time passes, the actor may die."""
        if actor.crashed:
            raise Crash
        if self.is_over:
            raise Halt
        self.steps += 1
        self.now_ms += self.rng.random() * 20
        self.log(f"{actor.name} {label}")
        if self.steps >= self.profile.steps or self.violation is not None:
            self.is_over = True
            self._over.release()
            raise Halt
        self._land_late()
        if self.profile.skew and self.strikes("clock step", CLOCK_STEP):
            actor.skew_ms = drawn_skew_ms(self.rng)
        if self.strikes("delay", self.profile.delay, point=point):
            actor.wake_ms = max(actor.wake_ms, self.now_ms + self.rng.random() * 20_000)
        chosen = self._next()
        if chosen is not actor:
            chosen.go.release()
            actor.go.acquire()
            if self.is_over:
                raise Halt
        if self.strikes("crash", self.profile.crash, point=point):
            actor.crashed = True
            raise Crash

    def run(self) -> None:
        """Run all actors until the steps are used up or an invariant is broken."""
        for actor in self.actors:
            actor.thread = threading.Thread(target=self._live, args=(actor,), daemon=True)
            actor.thread.start()
        self._next().go.release()
        steps = -1
        while not self._over.acquire(timeout=300):
            if self.steps == steps:  # else the machine is slow
                self.fail("the run hangs: an actor waits outside the seams")
                self.is_over = True
                break
            steps = self.steps
        for actor in self.actors:
            actor.go.release()
            assert actor.thread is not None
            actor.thread.join(timeout=60)
        for _, land in self.late:
            land()
        self.late.clear()

    def _live(self, actor: Actor) -> None:
        actor.go.acquire()
        try:
            while not self.is_over:
                actor.crashed = False
                try:
                    actor.body(actor)
                except Crash:
                    actor.crashed = False
        except Halt:
            return
        except BaseException as error:
            self.fail(f"{actor.name} failed: {type(error).__name__}: {error}")
            if not self.is_over:
                self.is_over = True
                self._over.release()

    def _next(self) -> Actor:
        ready = [actor for actor in self.actors if actor.wake_ms <= self.now_ms]
        if not ready:
            first = min(self.actors, key=lambda actor: actor.wake_ms)
            self.now_ms = first.wake_ms
            return first
        return self.rng.choice(ready)

    def _land_late(self) -> None:
        due = [each for each in self.late if each[0] <= self.steps]
        if due:
            self.late = [each for each in self.late if each[0] > self.steps]
            for _, land in due:
                land()
