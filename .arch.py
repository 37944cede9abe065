p="docs/architecture.md";s=open(p).read()
def sub(a,b):
    global s
    if s.count(a)!=1: raise SystemExit((s.count(a),a))
    s=s.replace(a,b)
sub("""1. Leave out rows that must
wait. 2. Decide slots. 3. Append messages and log records, which are not committed yet. 4. Under
`engine.lock`: move rows whose slot was closed meanwhile. 5. Write the *commit page* (marks of every
partition, lengths of every file): the batch exists. 6. Link its runs into the wheel, up to the reach of the
ring, and mark the page as applied.
""","""1. Choose the placement
policy; in a standby, leave out rows that must wait. 2. Decide slots. 3. Append messages and log records,
which are not committed yet; load the timers that the cancels may match. 4. Under `engine.lock`: write rows
again whose slot was closed meanwhile; resolve the cancels, append outcomes and stopped records. 5. Write the
*commit page* (marks of every partition, lengths of every file): the batch exists. 6. Link its runs into the
wheel, up to the reach of the ring; mark the cancelled records, and the page as applied.
""")
sub("""and the progress is the last committed or the attempted one |""","""and the progress in Kafka is the last committed one, the attempted one, or another instance's: that ends this one |""")
sub("""`Position` has
the state of the delivery: close page, R and D.
""","""`Position` has
the state of the delivery: the close page, and R and D of each partition. A range without rows has no commit of
its own: the next one counts it as delivered.
""")
i=s.index("A batch that exceeds the memory would be planned"); j=s.index("## Rolls and parking")
s=s[:i]+"""`streaming/batch_plan.py` decides the size of a batch, and names every bound. A batch that exceeds the memory
would be planned again unchanged for ever. So each start records its first offsets and the rows of a batch
(`batch_attempt.py`). If it ends for lack of memory, or without a reason before the marks have moved by more
than one batch, the next start sets the checkpoint aside and plans batches of half the rows and half the bytes.
They grow again after some successful ones, up to the configured ones (`batch_size.py`). The planning process
reads the limit from its file before each batch.

A batch is planned by offsets, and only its tasks learn how many bytes these are. A task shares its bytes
equally among the topics that have unread offsets, and each topic's part equally among its partitions; what some
leave unused is shared again. A cancel counts for more than its bytes, as it costs the wheel more
(`byte_budget.py`). Once its bytes are used up, a task says where each partition has ended; the sink takes the
batch as ended there, or before a record that leads to too many hours beyond the ring, and the next one begins
there (`early_ends.py`).

"""+s[j:]
i=s.index("A transaction has a bounded number of rolled,"); j=s.index("A recurring timer ([recurring.md]")
s=s[:i]+"""A transaction has a bounded
number of topics and partitions, and of rolled, postponed and recurring rows (`wheel/dequeue/decode.py`): ingest
reads committed records, so copies in an open transaction delay the records that producers write behind them.

"""+s[j:]
sub("""A timer whose target partition takes no writes for now goes back the same way, at its place in the
transaction: it is *parked* (`wheel/dequeue/requeue.py`). Its copy keeps due time and origin, and adds an
instant before which it does not leave again, and the number of times it was parked; its slot is that of the
later of the two times, within the window.""","""A timer whose target partition takes no writes for now, or whose receipt has no place, goes back the same way,
at its place in the transaction: it is *parked* (`wheel/dequeue/requeue.py`). Its copy keeps due time and
origin, and adds an instant before which it does not leave again, and the number of times it was parked; its
slot is that of the later of the two times, within the window. If its timer topic does not take the copy, it
becomes a dead letter.""")
sub("""its copies are *held*: they are records of the state topic
beside the progress, in the same transaction, and the progress counts them (`checkpoints/held_copies.py`).
""","""its copies, chases and waiting
dead letters are *held*: they are records of the state topic beside the progress, in the same transaction, and
the progress counts them (`checkpoints/held_copies.py`).
""")
sub("""forbidden or compacted,
they wait in their timer topics like parked timers: unchanged, with four more headers, by which ingest
recognises them and does not parse them again.
""","""forbidden or compacted, they wait in their timer topics like parked timers: unchanged, with four more headers,
by which ingest recognises them and does not parse them again. If these topics are missing, too, the shard waits.
""")
sub("""Dequeue decides about the excess at delivery,
ingest never at placement: a slot must follow from the record alone. The rank of a row in the slot and a hash
of its key select the excess, so it is the same after a kill or a doubt (`wheel/policies/hot_slots.py`). The excess
becomes dead letters, or leaves like parked copies, with an instant, by the key again, before which a copy
does not return. A copy that was parked or spread is never in excess again.
""","""Dequeue decides about the excess at
delivery, ingest never at placement: a slot must follow from the record alone. The rank of a row in the slot and
a hash of its key, or of its id without one, select the excess, so it is the same after a kill or a doubt
(`wheel/policies/hot_slots.py`). The excess becomes dead letters, or leaves like parked copies, with an instant,
by the key again, before which a copy does not return. A copy that was parked or spread is never in excess.
""")
sub("""ingest waits it closes the files of dropped hours, or their blocks would stay allocated.
""","""ingest waits it closes the files of dropped hours, or their blocks would stay allocated. In a recovery it takes
all rows, as delivery waits for them.
""")
i=s.index("Every few seconds ingest syncs"); j=s.index("## Which topics are read")
s=s[:i]+"""Every `storage.durable_interval` ingest syncs the files that have grown, and records their lengths in the file
`durable` (`checkpoints/durable_checkpoint.py`). Once a minute dequeue unlinks the hours below both the committed
progress and that file, and the segments of the cancel log whose cancels all have a reply or chase
(`wheel/storage/garbage_collection.py`): it raises the bounds under the lock, then unlinks the files.

"""+s[j:]
sub("""Before every query, and
beside it, ingest lists the existing topics that fulfil the requirements
(`src/duewheel/kafka/topics/discovery.py`, `src/duewheel/runtime/topic_watch.py`). When the list changes, the
query ends""","""Before every query, and
beside it, ingest decides which topics it reads (`src/duewheel/kafka/topics/discovery.py`,
`src/duewheel/runtime/topic_watch.py`): the listed ones, without which it does not start, and those that match
the pattern, fulfil the requirements, fit into the shard's room and were not recreated. When they change, the
query ends""")
sub("""- A slot is closed only while the host is ahead by at most `dequeue.clock_skew_max`.""","""- A slot is closed only while the host is ahead by at most `dequeue.clock_skew_max`, and within a minute after such
  a commit.""")
sub("""| change whether a configuration fits a progress | `DequeueConfig.require_fits` in `wheel/dequeue_config.py` |""","""| change whether a configuration fits a progress | `require_fits` in `checkpoints/ownership.py`; its settings: `DequeueConfig.slot_values` in `wheel/dequeue_config.py` |
| change the size of a batch of ingest | `streaming/batch_plan.py` |""")
sub("""| `src/duewheel/client/` | the client library for producers |""","""| `src/duewheel/client/`, `adapters/` | the client library for producers; Celery and Django by it |
| `src/duewheel/testing/` | the fixture for users' tests: the real wheel, with Kafka in memory |""")
sub("""    cli > serve > dev > prove > doctor > ops > runtime > audit > recurring > factory, client > java > streaming
        > kafka""","""    testing, adapters > cli > serve > dev > prove > doctor > ops > runtime > audit > recurring > factory, client
        > java > streaming > kafka""")
sub("""| Spark | `streaming/sink.py`,""","""| Spark | `streaming/batch_plan.py`, `sink.py`,""")
sub("""`src/duewheel/kafka/ledger/command_ledger.py` for records that a command writes |""","""`src/duewheel/kafka/ledger/command_ledger.py` and `ledger_run.py` for records that a command writes |""")
open(p,"w").write(s)
