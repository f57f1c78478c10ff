"""Numbers for a page: with real minus signs and thin spaces between thousands."""

from __future__ import annotations


def number(value: float | None, digits: int) -> str:
    """Format a number with this many decimals; None as a dash."""
    if value is None:
        return "–"
    return f"{value:,.{digits}f}".replace("-", "−").replace(",", "\u2009")


def percent(value: float | None) -> str:
    """Format a fraction as a percentage; None as a dash."""
    return "–" if value is None else f"{100 * value:.2f}%"


def plus_minus(
    value: float | None, error: float | None, digits: int, as_percent: bool = False
) -> str:
    """Format a number followed by its standard error in a smaller font."""
    if value is None:
        return "–"
    scale, unit = (100.0, "%") if as_percent else (1.0, "")
    text = number(scale * value, digits) + unit
    return text if error is None else f"{text} <small>± {scale * error:.{digits}f}</small>"


def size(n_bytes: float) -> str:
    """Format bytes in decimal units: 1_234_567 as ``1.23 MB``."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while n_bytes >= 999.5 and power < len(units) - 1:
        n_bytes /= 1000
        power += 1
    return f"{n_bytes:.3g} {units[power]}"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days."""
    if seconds < 119.5:
        return f"{round(seconds, 2):.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours / 24:.1f} days"


def power(value: float) -> str:
    """Format a number, with powers of ten in place of exponents: 1e-05 as 10⁻⁵."""
    text = f"{value:g}"
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    raised = f"{int(exponent)}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digits == "1" else f"{digits}·10{raised}"


def readable(name: str) -> str:
    """Format the name of an objective or a noise: its underscores become spaces, not those of its
    parameters."""
    name, bracket, parameters = name.partition("(")
    return name.replace("_", " ") + bracket + parameters
