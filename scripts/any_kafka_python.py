"""A pytest plugin: the publisher takes the kafka-python that is there, whatever its version.

try_kafka_python.py beside it names it, to see what another release needs.
"""

import kafka

from duewheel.kafka.ledger import producer_internals

producer_internals.SUPPORTED_VERSION = kafka.__version__
