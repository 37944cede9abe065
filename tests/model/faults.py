"""A run of the model: all faults, and all actions of an operator."""

from __future__ import annotations

from dataclasses import replace

from tests.model.files_model import RING, Directory
from tests.model.kafka_model import PartitionProgress, Windows
from tests.model.processes import WINDOWS, Instance, Processes, Shard


class Faults(Processes):
    """Each method makes one happen, somewhere."""

    def _kill(self) -> None:
        instance = self._someone()[1]
        which = self.random.randrange(3)
        if which != 1:
            instance.ingest = instance.directory.durable_taken = None
        if which != 0:
            instance.dequeue = None
            instance.follows = False

    def _lose_power(self) -> None:
        self.judge.is_exact = False
        instance = self._someone()[1]
        instance.kill()
        if instance.directory.close is not None:
            instance.directory.lose_power(self.random)
        self._note("power lost", instance)

    def _lose_disk(self) -> None:
        self._replace(self._shard(), Directory(self.number()))

    def _replace(self, shard: Shard, directory: Directory) -> None:
        """Another disk in the same place."""
        self.judge.is_exact = False
        shard.primary.kill()
        shard.shelf = [*shard.shelf[-3:], shard.primary.directory]
        shard.primary = Instance(directory)
        self._note("disk replaced", shard.primary)

    def _back_up(self) -> None:
        shard, instance = self._someone()
        shard.shelf = [*shard.shelf[-3:], instance.directory.copy()]

    def _restore(self) -> None:
        shard = self._shard()
        if shard.shelf:
            directory = shard.shelf.pop(self.random.randrange(len(shard.shelf)))
            directory.durable_taken = None
            self._replace(shard, directory)

    def _take_over(self) -> None:
        """Elsewhere, while this one still runs."""
        self.judge.is_exact = False
        shard = self._shard()
        shard.others = [*shard.others[-1:], shard.primary]
        shard.primary = Instance(Directory(self.number()))
        self._note("taken over", shard.primary)

    def _take_back(self) -> None:
        """By one that has lost the shard and whose ingest still runs."""
        shard = self._shard()
        if shard.others:
            back = shard.others.pop(self.random.randrange(len(shard.others)))
            shard.others.append(shard.primary)
            shard.primary = back
            back.dequeue = None
            self._note("taken back", back)

    def _stand_by(self) -> None:
        """In a new directory, or in one that has lost the shard."""
        shard = self._shard()
        if shard.standby is not None:
            return
        directory = Directory(self.number())
        if shard.others and self.random.random() < 0.5:
            former = shard.others.pop(self.random.randrange(len(shard.others)))
            former.kill()
            directory = former.directory
        shard.standby = Instance(directory)
        self._note("standby", shard.standby)

    def _promote(self) -> None:
        shard = self._shard()
        if shard.standby is not None and self.random.random() < 0.3:
            self.judge.is_exact = False
            shard.others = [*shard.others[-1:], shard.primary]
            shard.primary, shard.standby = shard.standby, None
            shard.primary.follows = False
            self._note("standby takes over", shard.primary)

    def _add_partition(self) -> None:
        if len(self.kafka.topic) < 5:
            self.judge.windows[len(self.kafka.topic)] = ((0, self.window),)
            self.kafka.topic.append([])

    def _are_too_far_apart(self, count: int) -> bool:
        """Whether the ring of a new shard would not take what its first partition has taken, while
        its last one is still to be delivered.
        """
        known = {
            number: p
            for shard in self.shards
            for number, p in self.kafka.progress[shard.name].partitions.items()
        }
        reach = self.now + max(WINDOWS)
        for index in range(count):
            slots = [p.r for number, p in known.items() if number % count == index]
            if slots and max(min(r + RING - 1, reach) for r in slots) - min(slots) >= RING:
                return True
        return False

    def _reshard(self) -> None:
        count = 3 - len(self.shards)
        if count > len(self.kafka.topic):
            return
        if self.clauses.partitions_apart_stay_apart and self._are_too_far_apart(count):
            return
        holding = any(self.kafka.held.get(shard.name) for shard in self.shards)
        if holding and self.clauses.partition_of_held_copies_stays:
            return
        self.judge.is_exact = False
        partitions: dict[int, PartitionProgress] = {}
        windows: dict[int, Windows] = {}
        for shard in self.shards:
            self.kafka.init_transactions(shard.name)
            progress = self.kafka.progress[shard.name]
            self.kafka.progress[shard.name] = replace(progress, owner=-1, epoch=progress.epoch + 1)
            partitions |= progress.partitions
            windows |= {p: progress.windows_of(p) for p in self._partitions(shard)}
        newest = max(p.r for p in partitions.values())
        for number in range(len(self.kafka.topic)):
            partitions.setdefault(number, PartitionProgress(newest, 0))
        self._reshards += 1
        old, self.shards = self.shards, []
        for index in range(count):
            mine = {number: p for number, p in partitions.items() if number % count == index}
            epochs = {number: windows[number] for number in mine}
            self.shards.append(self._new_shard(index, count, mine, epochs))
        for shard in old:  # they believe in their shard until they are told otherwise
            if shard.primary.dequeue is not None:
                self.random.choice(self.shards).others.append(shard.primary)
            if shard.standby is not None:  # its files may come to serve or follow another shard
                former = Instance(shard.standby.directory)
                self.random.choice(self.shards).others.append(former)
        self.trace.append(f"{self.now}: {count} shards: {partitions}")

    def _reconfigure(self) -> None:
        """All shards stop; the new window holds from offsets that no one has judged."""
        if any(self._not_ready(shard) for shard in self.shards):
            return
        window = self.random.choice(WINDOWS)
        for shard in self.shards:
            shard.primary.ingest = None
            dequeue, calm = shard.primary.dequeue, self._calm
            assert dequeue is not None
            self._calm = True
            dequeue.reconfigure(window, self._partitions(shard))
            self._calm = calm
            progress = self.kafka.progress[shard.name]
            self.judge.reconfigured({p: progress.windows_of(p) for p in self._partitions(shard)})
        self.window = window
        self.trace.append(f"{self.now}: reconfigured: {self.judge.windows}")

    def _stall(self) -> None:
        self._stalled = self.random.randint(1, 30)

    def _hold(self) -> None:
        """Dequeue of one shard is away while the others go on."""
        self._shard().held = self.random.randint(10, 120)

    def _target(self) -> None:
        self._down ^= {self.random.randrange(2)}

    def _leader(self) -> None:
        """A timer partition loses its leader, or has one again."""
        self.kafka.closed ^= {self.random.randrange(len(self.kafka.topic))}

    def _outage(self) -> None:
        """Time passes and nothing is delivered, but ingest may go on."""
        instance = self._someone()[1]
        instance.dequeue = None
        self.now += self.random.randint(3, 40)
        self.judge.now = self.now

    def _accept_loss(self) -> None:
        """Kafka loses the end of a partition, and that is accepted: the processes stand still, no
        copy of the directory of before is used again.
        """
        shard = self._shard()
        partition = self.random.choice(self._partitions(shard) or [0])
        instance, records = shard.primary, self.kafka.topic[partition]
        if partition not in self._partitions(shard) or not records or self._not_ready(shard):
            return
        dequeue, end = instance.dequeue, max(0, len(records) - self.random.randint(1, 8))
        assert dequeue is not None
        if not dequeue.is_loss_acceptable(partition, end):
            return
        if self.kafka.holds(shard.name, partition):
            return  # not modelled: copies that outlive their first copies
        self.judge.cut(partition, end)
        del records[end:]
        self._reshards += 1  # deals have numbers of their own
        calm, self._calm = self._calm, True
        dequeue.accept_loss(partition, end, self._reshards)
        self._calm = calm
        instance.kill()
        for each in self.shards:
            each.standby, each.others, each.shelf = None, [], []
        self._note(f"loss accepted: {partition}@{end}", instance)
