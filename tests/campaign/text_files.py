"""Valid files of the text formats, with everything that the formats allow, and hostile ones."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from random import Random

from tests.campaign.reference import Options

_WORDS = (
    "red",
    "blue",
    "Straße",
    "日本",
    "\N{GRINNING FACE}",
    "e\u0301",
    "a\u00a0b",
    "\u2028",
    "x,y",
    "#",
)
_LABELS = ("dog", "my cat", "7", "Ünï", "-", "a:b", "x" * 60, "\N{GRINNING FACE}")
_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".xz": lambda data: lzma.compress(data, preset=0),
}
_EXTENSIONS = {
    "svmlight": (".svm", ".libsvm"),
    "xc": (".xc",),
    "tsv": (".tsv",),
    "fasttext": (".ft",),
    "sessions": (".sessions",),
}


def name_of(random: Random, format: str) -> str:
    """A file name, usually with an extension that says the format, sometimes compressed."""
    extension = random.choice(_EXTENSIONS[format]) if random.random() < 0.9 else ".txt"
    return "file" + extension + random.choice(("", "", "", ".gz", ".xz"))


def compress(name: str, data: bytes) -> bytes:
    """Compress the content of a file as its name says."""
    return _COMPRESSORS[name[-3:] if name.endswith((".gz", ".xz")) else ""](data)


def decompress(name: str, data: bytes) -> bytes:
    """The content of a file, decompressed as its name says."""
    if name.endswith(".gz"):
        return gzip.decompress(data)
    return lzma.decompress(data) if name.endswith(".xz") else data


def write_text(random: Random, format: str, options: Options) -> bytes:
    """The content of a valid file."""
    content = _WRITERS[format](random, options)
    if random.random() < 0.15:
        content = content.replace(b"\n", b"\r\n")
    if random.random() < 0.1:
        content = content.removesuffix(b"\n")
    return content


def _svmlight(random: Random, options: Options) -> bytes:
    lines = []
    for _ in range(random.randint(1, 12)):
        labels = ",".join(_integer(random) for _ in range(random.choice((0, 1, 1, 1, 3))))
        features = _features(random, 0 if options.zero_based else 1, 40)
        if not labels and not features:
            continue
        comment = random.choice(("", "", "", "# comment 3:4", "#"))
        blank = "" if features else random.choice(("", " "))
        lines.append(labels + (" " if features else blank) + features + comment)
        lines += random.choice(([], [], [], [""], ["# only a comment"], ["  "]))
    return "".join(line + "\n" for line in lines).encode()


def _integer(random: Random) -> str:
    number = random.choice((random.randint(0, 9), random.randint(-5, 10**6), 10**18 - 1))
    return random.choice(("", "", "0", "+"))[: number >= 0] + str(number)


def _features(random: Random, base: int, n_features: int) -> str:
    indices = random.sample(range(base, base + n_features), random.choice((0, 1, 3, 8)))
    if random.random() < 0.8:
        indices.sort()
    if base + n_features == 41 and random.random() < 0.03:
        indices.append(2**31 - 1)
    blank = random.choice((" ", " ", "  ", "\t"))
    return blank.join(f"{index}:{_value(random)}" for index in indices)


def _value(random: Random) -> str:
    value = random.choice((random.gauss(0, 1), random.gauss(0, 1e20), random.gauss(0, 1e-20)))
    form = random.choice(("{:.4f}", "{!r}", "{:e}", "{:.0f}.", "{:.30f}", "{:E}", "{:+.2g}"))
    return random.choice(
        (form.format(value), form.format(value), "0", ".5", "-.5e1", "1e38", "1e-45")
    )


def _xc(random: Random, options: Options) -> bytes:
    n_rows, n_features, n_classes = (
        random.randint(1, 10),
        random.randint(1, 30),
        random.randint(1, 20),
    )
    base = 1 if options.zero_based is False else 0
    lines = [f"{n_rows} {n_features} {n_classes}"]
    for _ in range(n_rows):
        count = random.choice((0, 1, 1, 2, 5))
        labels = ",".join(str(random.randrange(base, base + n_classes)) for _ in range(count))
        features = _features(random, base, n_features) if n_features >= 8 else ""
        lines.append(f"{labels} {features}" if features or random.random() < 0.5 else labels)
    lines += random.choice(([], [], ["", " "]))
    return "".join(line + "\n" for line in lines).encode()


def _tsv(random: Random, options: Options) -> bytes:
    lines = []
    for _ in range(random.randint(1, 12)):
        count = random.choice((0, 1, 1, 1, 2, 4))
        label = random.choice((",", ", ")).join(random.choice(_LABELS) for _ in range(count))
        line = f"{label}\t{_text(random)}"
        lines.append(_text(random).replace("\t", " ") if options.unlabeled and count == 0 else line)
        lines += random.choice(([], [], [], ["", " \t "]))
    return _with_mark(random, lines)


def _fasttext(random: Random, options: Options) -> bytes:
    lines = []
    for _ in range(random.randint(1, 12)):
        words = [_text(random) for _ in range(random.randint(0, 3))]
        count = random.choice((0, 1, 1, 1, 2, 4))
        labels = ["__label__" + random.choice(_LABELS).replace(" ", "_") for _ in range(count)]
        words = labels + words
        if random.random() < 0.2:
            random.shuffle(words)
        lines.append(random.choice((" ", " ", "\t")).join(words))
    return _with_mark(random, lines)


def _sessions(random: Random, options: Options) -> bytes:
    """Sessions, or pairs of a prefix and the next item."""
    items = [word for word in _WORDS if word.isprintable()]
    has_pairs = random.random() < 0.3
    lines = [] if has_pairs else ["red blue"]
    for _ in range(random.randint(1, 8)):
        blank = random.choice((" ", " ", "  ", "\v"))
        line = blank.join(random.choice(items) for _ in range(random.choice((0, 1, 2, 5, 30))))
        lines.append(f"{line}\t{random.choice(items)}" if has_pairs else line)
        lines += random.choice(([], [], [], ["", "  "]))
    return _with_mark(random, lines)


def _text(random: Random) -> str:
    blank = random.choice((" ", " ", "  ", "\t"))
    return blank.join(random.choice(_WORDS) for _ in range(random.choice((0, 1, 4, 12))))


def _with_mark(random: Random, lines: list[str]) -> bytes:
    mark = b"\xef\xbb\xbf" if random.random() < 0.1 else b""
    return mark + "".join(line + "\n" for line in lines).encode()


_WRITERS: dict[str, Callable[[Random, Options], bytes]] = {
    "svmlight": _svmlight,
    "xc": _xc,
    "tsv": _tsv,
    "fasttext": _fasttext,
    "sessions": _sessions,
}


def hostile_text(random: Random, format: str) -> bytes:
    """A file that was written to be difficult rather than damaged."""
    return random.choice(_HOSTILE[format])(random)


def _xc_headers(random: Random) -> bytes:
    header = random.choice(
        (
            *("3 10 4" + " " * 1100, " " * 1020 + "3 10 4", "3 10 4 ", "3\t10\t4", "003 010 004"),
            *("3 10 99999999999999999999", "3 10 9223372036854775807", "9" * 30 + " 10 4"),
            *("3 9999999999 4", "3 2147483647 4", "3 2147483648 4", "3 10", "3 10 4 5", "3 10 4.0"),
            *(
                "3 10 -4",
                "0 10 4",
                "0 0 0",
                "3 0 4",
                "3 10 0",
                "",
                "\u0663 10 4",
                "3 10 4 #",
                "１ 2 3",
            ),
            "9" * 1020 + " 1 1",
        )
    )
    return (header + "\n2,0 0:1 9:0.5\n 3:2\n1\n").encode()


def _long_line(random: Random) -> bytes:
    n = random.choice((10**3, 10**5))
    return b"1 " + b" ".join(b"%d:1" % i for i in range(1, n)) + b"\n2 1:3\n"


def _many_labels(random: Random) -> bytes:
    labels = ",".join(str(random.randrange(10**6)) for _ in range(10**4))
    return f"{labels} 1:1\n2 1:1\n".encode()


def _long_texts(random: Random) -> bytes:
    label, word = "x" * random.choice((1, 10**5)), "y " * random.choice((1, 10**5))
    return f"{label}\t{word}\nb\tc\n{label}2\tc\n__label__{label} {word}\n".encode()


def _long_sessions(random: Random) -> bytes:
    long = " ".join(str(random.randrange(50)) for _ in range(random.choice((10, 10**4))))
    return random.choice(("{0}\na\nb\n", "a b\n{0}\n{0}\n", "{0}\tx\n\ty\n")).format(long).encode()


def _only(random: Random) -> bytes:
    return random.choice(
        (b"", b"\n", b"\n" * 50, b"\x00" * 50, b"\xef\xbb\xbf", b"\t\n", b" ", b"#\n")
    )


_HOSTILE: dict[str, tuple[Callable[[Random], bytes], ...]] = {
    "svmlight": (_long_line, _many_labels, _only),
    "xc": (_xc_headers, _xc_headers, _only),
    "tsv": (_long_texts, _only),
    "fasttext": (_long_texts, _only),
    "sessions": (_long_sessions, _only),
}
