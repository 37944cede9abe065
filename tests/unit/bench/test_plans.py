from __future__ import annotations

import pytest
from tests.bench.plans import SessionPlan, Sizes, full_plans, is_chosen, short_plans


@pytest.mark.parametrize("plans", [short_plans, full_plans])
def test_no_two_workloads_have_one_name(plans: object) -> None:
    assert callable(plans)
    names = [name for plan in plans(Sizes(1.0)) for name in plan.workloads]
    assert len(names) == len(set(names))


def test_workloads_are_chosen_by_whole_words() -> None:
    assert is_chosen("steady 1000", ["steady 1000"])
    assert is_chosen("steady 10000", ["spike", "steady"])
    assert not is_chosen("steady 10000", ["steady 1000"])
    assert is_chosen("any", None)


def test_a_session_is_for_those_that_have_something_to_do() -> None:
    compared = SessionPlan({"spike": lambda _: None})
    assert compared.is_for("rocketmq")
    assert not compared.only(lambda name: name == "idle").is_for("duewheel")
    assert not SessionPlan(compared.workloads, {"roll_window": "10s"}).is_for("rocketmq")
    assert SessionPlan(compared.workloads, {}).is_for("duewheel")
