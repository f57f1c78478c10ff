"""Changed JSON and tensors of a saved model, with the checksums that belong to them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from safetensors.torch import load, save

from tests.campaign.mutations import mutate

MANIFEST = "manifest.json"
_TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 12, 13, 1000, 2**31, 2**40, 2**63, -(2**63), 10**400),
    *(0.5, -0.5, 1e-300, 1e38, 1e300, float("nan"), float("inf"), -float("inf"), -0.0, 2.0),
    *("", "x", "auto", "tree", "exact", "uniform", "sampled_softmax", "../x", "\ud800", "<U9"),
    *([], [1], [[]], [None], {}, {"x": 1}, {"noise": "uniform"}, {"array": [1]}, {"dict": {}}),
    *({"tuple": [1, 2]}, {"object": "tree", "arguments": {"dict": {}}}, {"object": "mixture"}),
)
Files = dict[str, bytes]


def sign(manifest: dict[str, Any]) -> bytes:
    """The bytes of a manifest with its own checksum in it."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    signed = json.dumps(rest | {"checksum": digest}, ensure_ascii=False, indent=1)
    return signed.encode(errors="surrogatepass")


def with_part(files: Files, part: str, content: bytes) -> Files:
    """The files of a model in which one part has another content, as its writer would name it."""
    manifest = json.loads(files[MANIFEST])
    digest = hashlib.sha256(content).hexdigest()
    name = f"{part}.{digest[:16]}.safetensors"
    kept = {n: c for n, c in files.items() if n != manifest["files"][part]["name"]}
    manifest["files"][part] = {"name": name, "bytes": len(content), "sha256": digest}
    return kept | {name: content, MANIFEST: sign(manifest)}


def forge_settings(
    random: Random, files: dict[str, bytes], other: dict[str, bytes]
) -> dict[str, bytes]:
    """Change one to three values of the manifest; ``other`` are the files of another model."""
    manifest = json.loads(files[MANIFEST])
    for _ in range(random.choice((1, 1, 1, 3))):
        places = [place for place in _places(manifest) if place != ("checksum",)]
        *path, key = random.choice(places)
        holder = manifest
        for step in path:
            holder = holder[step]
        edit = random.choice(("value", "value", "value", "scale", "delete", "add", "other"))
        if edit == "delete":
            del holder[key]
        elif edit == "add" and isinstance(holder, dict):
            holder[random.choice(("unknown", "n_components", "seed", "x?"))] = random.choice(
                _VALUES
            )
        elif edit == "scale" and type(holder[key]) in (int, float):
            holder[key] *= random.choice((-1, 2, 0.5, 10**6, 1e-6))
        elif edit == "other":
            holder[key] = _at(json.loads(other[MANIFEST]), (*path, key), holder[key])
        else:
            holder[key] = copy.deepcopy(random.choice(_VALUES))
    return files | {MANIFEST: sign(manifest)}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from _places(item, (*path, key))


def _at(value: Any, path: tuple[Any, ...], default: Any) -> Any:
    try:
        for step in path:
            value = value[step]
    except (LookupError, TypeError):
        return default
    return value


def forge_tensors(
    random: Random, files: dict[str, bytes], other: dict[str, bytes]
) -> dict[str, bytes]:
    """Change tensors of one part, or exchange the part with that of another model."""
    described = json.loads(files[MANIFEST])["files"]
    part = random.choice(sorted(described))
    theirs = json.loads(other[MANIFEST])["files"].get(part)
    if theirs and random.random() < 0.05:
        return with_part(files, part, other[theirs["name"]])
    content = files[described[part]["name"]]
    if random.random() < 0.1:
        return with_part(files, part, mutate(random, content, textual=False))
    tensors = load(content)
    for _ in range(random.choice((1, 1, 1, 2))):
        _change(random, tensors)
    return with_part(files, part, save({k: v.contiguous() for k, v in tensors.items()}))


def _change(random: Random, tensors: dict[str, torch.Tensor]) -> None:
    if not tensors or random.random() < 0.05:
        tensors["unknown"] = torch.zeros(random.choice(((), (3,), (0, 2))))
        return
    name = random.choice(sorted(tensors))
    if random.random() < 0.05:
        del tensors[name]
    elif random.random() < 0.1:
        # The same number of rows less everywhere: sizes that agree with each other.
        for key, tensor in tensors.items():
            if tensor.ndim and len(tensor) == (len(tensors[name]) if tensors[name].ndim else -1):
                tensors[key] = tensor[:-1].clone()
    else:
        tensors[name] = random.choice(_EDITS)(random, tensors[name].clone())


def _set(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    """Set one element, or all, to an extreme value."""
    if not tensor.numel() or tensor.dtype in (torch.bool, torch.complex64):
        return tensor.bool().logical_not()
    flat = tensor.view(-1)
    if tensor.dtype.is_floating_point:
        limits = torch.finfo(tensor.dtype)
        choices = [float("nan"), float("inf"), -float("inf"), limits.max, limits.min, limits.tiny]
        choices += [0.0, -1.0, 1e-38, 1e30, -1e30, 1e6, -100.0, random.gauss(0, 3)]
    else:
        bounds = torch.iinfo(tensor.dtype)
        near = int(flat[random.randrange(len(flat))])
        choices = [-1, 0, 1, 2, 11, 12, 13, 100, bounds.max, bounds.min, near, near + 1, near - 1]
    value = random.choice(
        [c for c in choices if tensor.dtype.is_floating_point or bounds.min <= c <= bounds.max]
    )
    if random.random() < 0.2:
        flat[:] = value
    else:
        flat[random.randrange(len(flat))] = value
    return tensor


def _retype(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(random.choice(_TYPES))


def _reshape(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    shapes: list[Callable[[], torch.Tensor]] = [
        lambda: tensor[None],
        lambda: tensor.reshape(-1),
        lambda: tensor.reshape(-1)[:1].reshape(()) if tensor.numel() else tensor,
        lambda: tensor.reshape(-1)[:0],
        lambda: tensor[:-1] if tensor.ndim else tensor[None],
        lambda: torch.cat([tensor, tensor[:1]]) if tensor.ndim else tensor.repeat(3),
        lambda: tensor.T if tensor.ndim == 2 else tensor.reshape(1, -1),
        lambda: tensor[..., :-1] if tensor.ndim else tensor,
        lambda: torch.cat([tensor, tensor], -1) if tensor.ndim else tensor,
        lambda: tensor.repeat(*(1,) * (tensor.ndim - 1), 1000) if tensor.ndim else tensor,
    ]
    return random.choice(shapes)()


def _reorder(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.ndim or len(tensor) < 2:
        return tensor
    order = list(range(len(tensor)))
    random.shuffle(order)
    return tensor[order]


def _randomize(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    if tensor.dtype.is_floating_point:
        scale = random.choice((0.1, 10.0, 1e5, 1e30))
        return scale * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    top = random.choice((2, 12, 100))
    return torch.randint(0, top, tensor.shape, generator=generator).to(tensor.dtype)


_EDITS: tuple[Callable[[Random, torch.Tensor], torch.Tensor], ...] = (
    *(_set, _set, _set, _set, _retype, _reshape, _reorder, _randomize),
)
