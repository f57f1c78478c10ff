"""The CSS of the report: one column, light and dark, no external resources."""

CSS = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #222222; --soft: #5c5c5c; --pale: #dcdcdc;
}
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181a; --ink: #e4e4e1; --soft: #a5a5a0; --pale: #3a3d40; }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 Charter, "Bitstream Charter", "Iowan Old Style", Palatino, Georgia, serif;
  font-variant-numeric: lining-nums tabular-nums;
}
main { max-width: 61rem; margin: 0 auto; padding: 3rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; font-weight: 600; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; font-weight: 600; margin: 2.5rem 0 .5rem; }
p { max-width: 44rem; margin: .6rem 0; }
.sizes { color: var(--soft); font-size: .9rem; margin-top: 0; }
section, figure, details { margin: 2rem 0 0; }
table, svg text, figcaption, p.caption {
  font-family: system-ui, -apple-system, "Segoe UI", Inter, "Helvetica Neue", Arial, sans-serif;
}
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; line-height: 1.35; }
table.final { width: 100%; }
p.caption, figcaption {
  color: var(--soft); font-size: .82rem; line-height: 1.45; max-width: 47rem;
}
p.caption { margin: 0 0 .7rem; }
p.caption b, figcaption b { color: var(--ink); font-weight: 600; }
th { font-weight: 600; text-align: left; vertical-align: bottom; }
th, td { padding: .26rem .45rem; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
thead { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); }
tbody { border-bottom: 1.5px solid var(--ink); }
.n { text-align: right; }
.best { font-weight: 650; }
td small { color: var(--soft); font-weight: 400; font-size: .85em; }
.reference td { color: var(--soft); border-top: 1px solid var(--pale); }
figure { margin-left: 0; margin-right: 0; }
figure svg { display: block; width: 100%; height: auto; min-width: 34rem; }
svg text {
  font-family: system-ui, -apple-system, "Segoe UI", Inter, "Helvetica Neue", Arial, sans-serif
    !important;
}
figcaption { margin-top: .4rem; }
summary { cursor: pointer; font-weight: 600; }
details table { margin-top: .8rem; }
ul { padding-left: 1.2rem; max-width: 44rem; font-size: .92rem; }
code { font-size: .88em; }
@media print { main { padding: 0; } details { display: none; } }
"""
