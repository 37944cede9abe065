"""Cancels and reschedules of a run, and the faults that affect only them.

They draw from a generator of their own: a seed without them runs as if they did not exist.

    repeated requests        very many requests of one id, and timers of it between them
    reply topic missing      for a while it does not exist, or some of its partitions take no writes
    keep                     some of the timers among them keep a pending one
    cut short                a timer partition loses its end, and that is accepted
    settings outlived        answers wait for a user's transaction for so long that the settings
                             which held before are forgotten, and then the directory is lost
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypedDict

from tests.simulation import misfortunes, operators
from tests.simulation.cancel_judge import REPLIES
from tests.simulation.seam import Plan
from tests.simulation.timers import TARGET_PARTITIONS, Timer
from tests.simulation.world import World

from duewheel.schemas.batches import ANY_OFFSET

_ASKED_AT_MOST = 300  # of one id
_KINDS = ("cancel", "reschedule", "")


class Asked(TypedDict):
    """Id and request of a record; see Timer."""

    named: bytes | None
    request: str
    named_offset: int


NOTHING: Asked = {"named": None, "request": "", "named_offset": ANY_OFFSET}


class Requests:
    """What is asked for in one run.

    Attributes:
        any: whether anything is.
        world: the shard whose turn it is.
    """

    def __init__(self, seed: int, world: World, likely: float, *, cuts: bool) -> None:
        """`cuts`: whether timer partitions may lose their ends, and what any client wrote there."""
        self._rng = rng = Random(-seed - 1)
        self.world = world
        self.any = rng.random() < likely
        self._chance = {
            name: often if self.any and rng.random() < probability else 0.0
            for name, probability, often in (
                ("asked again and again", 0.15, 0.15),
                ("reply topic away", 0.3, 0.1),
                ("cut short", 0.3 if cuts else 0.0, 0.12),
                ("settings outlived", 0.1, 0.08),
            )
        }
        self._left = rng.choice((30, 30, 80, _ASKED_AT_MOST))
        # Chance of its own, too.
        self._keeps = Random(f"keeps {seed}")
        self._keep_share = self._keeps.choice((0.0, 0.2, 0.5, 0.9))
        self._named: tuple[int, bytes] | None = None  # partition and id that is asked for again

    @property
    def known(self) -> dict[str, float]:
        """Chances of what befalls them, for who wants to read it."""
        return {name: chance for name, chance in self._chance.items() if chance}

    def begin(self) -> None:
        """In most runs the shard is at work before anything is written: it knows where Kafka's
        partitions end, and no request waits for that.
        """
        if self.any and self._rng.random() < 0.7:
            for _ in range(4):
                self.world.step_dequeue({})
                self.world.step_ingest({})

    def befalls(self, plan_of: Callable[[], Plan]) -> tuple[str, Callable[[], None]] | None:
        """What is to happen now, if anything is; `plan_of`: draws what goes wrong in a command."""
        befalls = {
            "asked again and again": self._ask_again,
            "reply topic away": self._move_replies,
            "cut short": lambda: operators.cut_short(self.world, self._rng, plan_of()),
            "settings outlived": lambda: self._outlive_settings(plan_of()),
        }
        for name, chance in self._chance.items():
            if chance and self._rng.random() < chance:
                return name, befalls[name]
        return None

    def asked(self, number: int) -> Asked:
        """Id and request of the next record of a partition: mostly of timers that are there."""
        rng = self._rng
        if not self.any:
            return NOTHING
        known = self._known(number)
        if not known or rng.random() < 0.4:
            return NOTHING
        timer_id = rng.choice(known[-8:]).timer_id
        return self._of_id(timer_id, known, rng.choices(_KINDS, (4, 3, 1))[0])

    def _known(self, number: int) -> list[Timer]:
        """Users' timers of a partition; those of other clients are left alone."""
        copies = self.world.kafka.partitions[number].copies()
        return [copy.timer for copy in copies if copy.timer.content is None]

    def _of_id(self, timer_id: bytes, known: list[Timer], request: str) -> Asked:
        """With this id; some requests name one timer by its offset, not always one of the id."""
        rng, named_offset = self._rng, ANY_OFFSET
        if request and known and rng.random() < 0.25:
            of_id = [timer.origin for timer in known if timer.timer_id == timer_id]
            named_offset = rng.choice([*of_id, *of_id, known[-1].origin])
        if request != "cancel" and self._keeps.random() < self._keep_share:
            request, named_offset = "keep", ANY_OFFSET
        return {"named": timer_id, "request": request, "named_offset": named_offset}

    def _ask_again(self) -> None:
        world, rng = self.world, self._rng
        if not world.shard.progress:
            return
        if self._named is None:
            number = rng.randrange(len(world.kafka.partitions))
            self._named = number, b"asked for again"
        number, timer_id = self._named
        now_ms, wheel = world.clock.true_ms, world.setup.wheel
        weights = rng.choice(((1, 8, 1), (5, 3, 2), (1, 2, 8)))
        count = min(self._left, rng.choice((5, 15, 40)) * min(world.setup.rows_max, 8))
        self._left -= count
        known = self._known(number)
        for request in rng.choices(_KINDS, weights, k=count):
            due_ms = now_ms + rng.randint(0, 3 * wheel.window_ms // 2)
            asked = self._of_id(timer_id, known, request)
            world.kafka.write(number, due_ms, now_ms, rejected=False, **asked)

    def _outlive_settings(self, plan_of: Plan) -> None:
        world, rng = self.world, self._rng
        kafka, wheel = world.kafka, world.setup.wheel
        if not world.shard.progress or kafka.slow:
            return
        now_ms, number = kafka.clock.true_ms, rng.randrange(len(kafka.partitions))
        known = [timer.timer_id for timer in self._known(number)]
        for timer_id in rng.choices([*known[-8:], b"nobody's"], k=rng.randint(1, 3)):
            kafka.write(
                number, now_ms, now_ms, rejected=False, **self._of_id(timer_id, [], "cancel")
            )
        kafka.write_slowly(number, [now_ms + wheel.window_ms], commit=rng.random() < 0.5)
        self._run_on((wheel.window_ms + wheel.margin_ms) // wheel.precision_ms + rng.randint(1, 6))
        operators.reconfigure(world, plan_of)
        self._run_on(rng.randint(0, 3))
        misfortunes.lose_disk(world)

    def _run_on(self, slots: int) -> None:
        """The shard does what it can, and time passes."""
        for _ in range(slots):
            self.world.step_ingest({})
            self.world.step_dequeue({})
            self.world.clock.pass_ms(self.world.setup.wheel.precision_ms)

    def _move_replies(self) -> None:
        kafka, rng = self.world.kafka, self._rng
        if REPLIES in kafka.absent or any(name == REPLIES for name, _ in kafka.down):
            self.answers_may_come()
        elif rng.random() < 0.5:
            kafka.absent |= {REPLIES}
        else:
            numbers = rng.sample(range(TARGET_PARTITIONS), rng.randint(1, TARGET_PARTITIONS))
            kafka.down |= {(REPLIES, number) for number in numbers}

    def answers_may_come(self) -> None:
        """The reply topic is there and takes writes."""
        kafka = self.world.kafka
        kafka.absent -= {REPLIES}
        kafka.down = frozenset(each for each in kafka.down if each[0] != REPLIES)

    def quiet_down(self) -> None:
        """No more befalls them; a reply topic that is away may stay so."""
        if self._rng.random() < 0.5:
            self.answers_may_come()
