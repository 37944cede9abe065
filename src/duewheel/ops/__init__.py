"""The operations of commands and of the HTTP API. They know neither: requests and results are
models of `api`. A subject has the same name here as in `api`, `cli` and `serve`:

timers, schedules       pending ones, read from the mapped files of the shard; changes of schedules
changes                 records in a timer topic that send, cancel or replace timers
file_import, relay      timers from the lines of a file, from the rows of a database
dead_letters, receipts  searches of their topics; the replay
topics                  those of a shard, made or checked; one made, or read
shard                   status, readiness, pause, promotion
reconfigure, reshard    other settings, another number of shards
recovery                the preview of a start; the timers of a lost cluster

Below them:

files                   opens and checks the files of a shard, without a lock
connection, log_reader  Kafka, and one of duewheel's own topics
pages, named_timer_topic, source_records
                        parts of several subjects
"""
