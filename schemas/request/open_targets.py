"""Whether a timer topic is open for a target: the only place with the rule.

It is open for its own target, and for those that its list of names and patterns matches. Without a
list it is open for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int32
from duewheel.schemas.name_patterns import for_arrow

_pa: Any = pa
_pc: Any = pyarrow.compute


def closed_targets(
    target: pa.DictionaryArray[Any, Any],
    list_of: Int32,
    lists: Sequence[str | None],
    own: Int32,
    named: Sequence[str],
) -> Bool:
    """Selects the rows whose topic is not open for their target. A null target is a defect of its
    own.

    Args:
        list_of: of each row, the index of its topic's list.
        lists: regular expressions; None: of a topic without a list.
        own: of each row, the index of its topic's own target, or -1.
        named: the topics' own targets. They are no part of a list: 1,000 topics with a target each
            would have 1,000 lists.
    """
    names = target.dictionary
    name_of = np.asarray(_pc.fill_null(target.indices, len(names)))
    is_open = np.ones(len(list_of), np.bool_)
    # Each list is matched against the names that its own topics request: one producer may request
    # any number. The last verdict is for no name.
    for place, regex in enumerate(lists):
        if regex is not None:
            rows = np.flatnonzero(list_of == place)
            verdicts = np.ones(len(names) + 1, np.bool_)
            verdicts[name_of[rows]] = False
            some = np.flatnonzero(~verdicts[:-1])
            own_names = names.take(_pa.array(some))
            verdicts[some] = np.asarray(_pc.match_substring_regex(own_names, for_arrow(regex)))
            verdicts[-1] = True
            is_open[rows] = verdicts[name_of[rows]]
    own_place = _pc.index_in(names, value_set=_pa.array(named, names.type))
    of_names = np.append(np.asarray(_pc.fill_null(own_place, len(named))), len(named))
    closed: Bool = ~(is_open | (of_names[name_of] == own))
    return closed
