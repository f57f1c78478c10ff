"""Numbers as a page shows them: true minus signs, thin spaces between thousands."""

from __future__ import annotations


def number(value: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:,.{digits}f}".replace("-", "−").replace(",", "\u2009")


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}%"


def plus_minus(value: float | None, error: float | None, digits: int, share: bool = False) -> str:
    """A figure and, smaller, its standard error."""
    if value is None:
        return "–"
    scale, unit = (100.0, "%") if share else (1.0, "")
    text = number(scale * value, digits) + unit
    return text if error is None else f"{text} <small>± {scale * error:.{digits}f}</small>"


def size(n_bytes: float) -> str:
    """Decimal units, as disks are sold."""
    gigabytes = n_bytes / 1e9
    return f"{gigabytes:.2f} GB" if gigabytes < 9.995 else f"{gigabytes:.0f} GB"


def duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 119.5 else f"{seconds / 60:.0f} min"


def power(value: float) -> str:
    """1e-05 as 10⁻⁵, other numbers as they are."""
    text = f"{value:g}"
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    raised = f"{int(exponent)}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digits == "1" else f"{digits}·10{raised}"


def words(name: str) -> str:
    """The name of an objective or a noise, to be read."""
    return name.replace("_", " ")
