"""`duewheel doctor`: examines this host and the cluster before they are relied on.

examination     runs all parts, one after the other
host, data_directory, registry
                this host, the disk of the shard, the way to the schema registry
servers         whether a bootstrap server logs a client in
cluster         the connection that the parts share
apis, brokers, clocks, rights, topics, targets, shard
                a part each: Kafka's answers, and the checks of them
trial, scratch  real transactions, in a topic of their own
findings        a finding, and the summary
remedies        those of failures, and the commands of Kafka that an operator copies
"""
