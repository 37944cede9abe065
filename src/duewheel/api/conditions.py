"""The problems of a shard in sentences: the fact, and its consequence for timers.

The page of `duewheel serve` shows these: the first one, the others on request. The sentences are
beside the facts (shard.py), and beside the reasons for not being ready (reasons.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import get_args

from pydantic import BaseModel, Field

from duewheel.api.fact import Kind, facts_of, in_words
from duewheel.api.model import Result
from duewheel.api.reasons import REASONS, WITHOUT_FILES

_UNKNOWN = "The shard is not ready."  # by a later version


class Condition(Result):
    """Something that is wrong, or unusual."""

    name: str
    kind: Kind = Field(description="plain: nothing is wrong")
    text: str = Field(description="the fact, and what it means for timers")
    detail: str = Field(description="may change each second, or be empty")


def of_reasons(reasons: Mapping[str, str]) -> list[Condition]:
    """Conditions by the reasons of a shard that is not ready: causes first."""
    texts = {name: each.sentence for name, each in {**WITHOUT_FILES, **REASONS}.items()}
    known = [name for name in texts if name in reasons]
    return [
        Condition(name=name, kind="bad", text=texts.get(name, _UNKNOWN), detail=reasons[name])
        for name in dict.fromkeys([*known, *reasons])
    ]


def of_facts(view: BaseModel, key: str = "") -> Iterator[Condition]:
    """Conditions by the facts of a view, which is the entry `key` of a table."""
    for name, each, found in facts_of(view):
        if not (found == each.when if each.when else found):
            continue
        entries = found.items() if isinstance(found, Mapping) else [(key, found)]
        for (entry, value), (kind, text) in product(entries, each.sentences):
            yield Condition(
                name="_".join(filter(None, (each.named or name, entry))),
                kind=kind,
                text=in_words(text, view, entry, value),
                detail=value if entry and isinstance(value, str) else "",
            )


def ranked(conditions: Iterable[Condition]) -> list[Condition]:
    """Sorts conditions: the gravest first, and among these causes before symptoms."""
    kinds = get_args(Kind)
    return sorted(
        conditions,
        key=lambda each: (
            kinds.index(each.kind),
            each.name in REASONS and REASONS[each.name].is_symptom,
        ),
    )
