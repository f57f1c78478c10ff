"""Objects that have names: from a name, an object or JSON to a new object, and back to JSON."""

from __future__ import annotations

from typing import Any, TypeVar

from sklearn.base import BaseEstimator, clone

from extremax.errors import ArgumentError, ModelFileError

Kind = TypeVar("Kind", bound=BaseEstimator)


def make_named(base: type, kinds: dict[str, type[Kind]], given: Any) -> Kind:
    """An object of one of these kinds from its name, an object (which is cloned), or the result of
    `describe_named`."""
    if isinstance(given, base):
        return clone(given)
    word = base.__name__.lower()
    parameters = dict(given) if isinstance(given, dict) else {word: given}
    name = parameters.pop(word, None)
    if not isinstance(name, str) or name not in kinds:
        names, article = ", ".join(map(repr, kinds)), "an" if word[0] in "aeiou" else "a"
        raise ArgumentError(
            f"{word} must be one of {names} or {article} {base.__name__}, got {given!r}"
        )
    defaults = kinds[name]().get_params(deep=False)
    for key, value in parameters.items():
        if key not in defaults or isinstance(value, bool) != isinstance(defaults[key], bool):
            raise ArgumentError(f"{kinds[name].__name__} has no parameter {key!r} = {value!r}")
    return kinds[name](**parameters)


def describe_named(
    base: type, kinds: dict[str, type[Kind]], made: Kind, parameters: dict[str, Any]
) -> dict[str, Any]:
    """The name of an object and these parameters, as one flat JSON object."""
    for name, kind in kinds.items():
        if type(made) is kind:
            return {base.__name__.lower(): name, **parameters}
    place = f"{base.__module__.rpartition('.')[0]}.{base.__name__.upper()}S"
    raise ModelFileError(
        f"{type(made).__name__} is not in {place}, so a saved model could not be loaded again; add "
        f"the class to {place.rpartition('.')[2]} before saving"
    )
