"""Options that are the fields of a request: flags, bounds, help and checks are its model's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from duewheel.api.model import RequestFields, problems_of
from duewheel.api.requests import DueTimeFields
from duewheel.cli.options import Command, one_of
from duewheel.errors import ConfigError

R = TypeVar("R", bound=RequestFields)
# In the order of the help.
OF_NEW_TIMER = (
    *("topic", "value", "key", "headers", "deliver_at", "delay", "level", "id", "tag"),
    *("expires_at", "if_pending", "timer_topic"),
)
# Where it is not the field's name. An option `--topic` could be the timer topic.
_FLAG_OF = {"headers": "header", "duration": "for", "topic": "target"}
_IN_RULES = {*DueTimeFields.model_fields, "cron", "zone", "every"}  # in texts of several fields
OF_PENDING_TIMERS = ("topic", "id", "key", "tag", "level", "timer_topic", "since", "until")

Options = dict[str, Any]  # click's, by parameter: the model that is made of them has the types


def with_fields(
    model: type[RequestFields],
    *names: str,
    required: Collection[str] = (),
    **helps: str,
) -> Callable[[Command], Command]:
    """Adds an option for each of these fields, under the name of the field.

    Args:
        names: in the order of the help.
        required: those without which the command is refused.
        helps: other texts than the model's.
    """
    schema = _properties(model)

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            field = schema[_alias(model, name)]
            if name == "headers":
                options: Options = {"multiple": True, "help": "name=value; may be repeated"}
            else:
                options = {"type": _type(field), "help": field.get("description")}
            options |= {"required": name in required}
            if name in helps:
                options["help"] = helps[name]
            command = click.option(_flag(model, name), name, **options)(command)
        return command

    return decorate


def with_request(argument: str, model: type[RequestFields]) -> Callable[[Command], Command]:
    """Replaces the options of a model's fields by one argument, before Kafka is asked."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def checked(**options: Any) -> Any:
            others = {k: v for k, v in options.items() if k not in model.model_fields}
            return command(**{argument: request_of(model, options)}, **others)

        return checked

    return decorate


def request_of(model: type[R], options: Options) -> R:
    """Makes a request of the options of its fields.

    Raises:
        ConfigError: names the options that are wrong.
    """
    given = (name for name in model.model_fields if options.get(name) is not None)
    fields = {_alias(model, name): options[name] for name in given}
    if "headers" in fields:
        fields["headers"] = list(map(_header, fields["headers"]))
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(
            "; ".join(_problem_text(model, *each) for each in problems_of(error.errors()))
        ) from None


def _problem_text(model: type[RequestFields], field: str, text: str) -> str:
    if field:
        return f"{_as_flag(field.partition('.')[0])}: {text}"
    for name in _IN_RULES & model.model_fields.keys():
        text = re.sub(rf"\b{name}\b", _flag(model, name), text)
    return text


def _flag(model: type[RequestFields], name: str) -> str:
    return _as_flag(_alias(model, name))


def _as_flag(alias: str) -> str:
    return f"--{_FLAG_OF.get(alias, alias).replace('_', '-')}"


@functools.cache  # a schema takes milliseconds of each command
def _properties(model: type[RequestFields]) -> Options:
    properties: Options = model.model_json_schema()["properties"]
    return properties


def _alias(model: type[RequestFields], name: str) -> str:
    return str(model.model_fields[name].validation_alias or name)


def _type(field: Options) -> click.ParamType[Any] | None:
    kinds = field.get("anyOf", [field])
    if "enum" in kinds[0]:
        return one_of(*kinds[0]["enum"])
    if all(each.get("type") in {"integer", "null"} for each in kinds):
        return click.IntRange(kinds[0].get("minimum"), kinds[0].get("maximum"))
    return None


def _header(text: str) -> dict[str, str]:
    name, given, value = text.partition("=")
    if not given:
        raise ConfigError(f"--header {text}: write it as name=value")
    return {"name": name, "value": value}
