"""Makes Spark find `format("duewheel")`: it imports each top-level module named `pyspark_…` and
looks for a `DefaultSource`.
"""

try:
    from duewheel.adapters.spark import DuewheelSource as DefaultSource
except ImportError:  # a pyspark before 4.1: the error would hide the sources of other packages, too
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
