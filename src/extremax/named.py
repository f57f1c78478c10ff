"""Objects that have names: from a name, a text, an object or JSON to a new object, and back to JSON
and text.

Text is a name, or a name with parameters in the form of a Python call:

    tree(n_components=64, lambda_=0.1)
    mixture(parts=(tree(n_components=64), frequency), weights=(0.9, 0.1))

It is parsed and never evaluated. Values are numbers, strings (with or without quotation marks),
True, False, None, lists and tuples of values, and other such objects.
"""

from __future__ import annotations

import ast
import keyword
from typing import Any, TypeVar

from sklearn.base import BaseEstimator, clone

from extremax.errors import ArgumentError, ModelFileError

Kind = TypeVar("Kind", bound=BaseEstimator)

# Longer texts are no description; Python's parser would recurse through them.
_LONGEST = 2_000


def make_named(base: type, kinds: dict[str, type[Kind]], given: Any) -> Kind:
    """An object of one of these kinds from its name, with or without parameters, an object (which
    is cloned), or the result of `describe_named`."""
    if isinstance(given, base):
        return clone(given)
    word = base.__name__.lower()
    parameters = dict(given) if isinstance(given, dict) else {word: given}
    if isinstance(given, str):
        parameters = parse_named(base, given)
    name = parameters.pop(word, None)
    if not isinstance(name, str) or name not in kinds:
        names, article = ", ".join(map(repr, kinds)), "an" if word[0] in "aeiou" else "a"
        raise ArgumentError(
            f"{word} must be one of {names} or {article} {base.__name__}, got {given!r}"
        )
    kind, defaults = kinds[name], kinds[name]().get_params(deep=False)
    for key, value in parameters.items():
        if key not in defaults:
            accepted = ", ".join(f"{key}={default!r}" for key, default in defaults.items())
            raise ArgumentError(
                f"{kind.__name__} has no parameter {key!r} = {value!r}; "
                + (f"it has, with these defaults, {accepted}" if defaults else "it has none")
            )
        if isinstance(value, bool) != isinstance(defaults[key], bool):
            verb = "must be" if isinstance(defaults[key], bool) else "must not be"
            raise ArgumentError(f"{key} of {kind.__name__} {verb} True or False, got {value!r}")
    return kind(**parameters)


def parse_named(base: type, text: str) -> dict[str, Any]:
    """The name and the parameters in a text, as one flat JSON object like `describe_named`'s."""
    word = base.__name__.lower()
    if "(" not in text:
        return {word: text.strip()}
    try:
        if len(text) > _LONGEST:
            raise SyntaxError
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            raise SyntaxError
        described: dict[str, Any] = _value(call, word)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            f"{word} must be a name or a name with parameters, such as name(parameter=0.1, "
            f"other='text'), got {text!r:.200}"
        ) from error
    return described


def _value(node: ast.expr, word: str) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        described: dict[str, Any] = {word: node.func.id}
        for given in node.keywords:
            if given.arg is None or given.arg in described:
                raise SyntaxError
            described[given.arg] = _value(given.value, word)
        return described
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, (ast.List, ast.Tuple)):
        values = (_value(element, word) for element in node.elts)
        return list(values) if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        number = _value(node.operand, word)
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.Constant) and isinstance(
        node.value, (int, float, str, bool, type(None))
    ):
        return node.value
    raise SyntaxError


def write_named(base: type, described: Any) -> str:
    """The text of a description, for `parse_named`."""
    word = base.__name__.lower()
    if isinstance(described, dict):
        parameters = {key: value for key, value in described.items() if key != word}
        written = ", ".join(f"{k}={write_named(base, v)}" for k, v in parameters.items())
        return f"{described[word]}({written})" if written else str(described[word])
    if isinstance(described, (list, tuple)):
        written = ", ".join(write_named(base, value) for value in described)
        if isinstance(described, list):
            return f"[{written}]"
        return f"({written},)" if len(described) == 1 else f"({written})"
    if isinstance(described, str) and described.isidentifier() and not keyword.iskeyword(described):
        return described
    return repr(described)


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
