"""The style sheet of the page, a module so that the file for laptops has it too."""

from __future__ import annotations

from typing import Final

STYLE: Final = """\
/* The colours are those of the pictures (explain/picture/palette.py). */
:root {
  color-scheme: light dark;
  --canvas: #f4f6f8; --frame: #fff; --line: #d3dae1; --text: #1c2530; --dim: #566270; --accent: #6a3fa0;
  --good: #1d6f5c; --bad: #b03a24; --used: #5fb5a2; --lost: #d98a7a; --free: #e2e8ee;
}
@media (prefers-color-scheme: dark) {
  :root {
    --canvas: #0f141a; --frame: #181f27; --line: #313c48; --text: #e3e9ef; --dim: #98a5b3; --accent: #c3a5ec;
    --good: #6cc7b1; --bad: #ef8371; --used: #1d7265; --lost: #93493c; --free: #28323d;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--canvas); color: var(--text); font: 15px/1.45 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
header, main { max-width: 1280px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 18px; }
main { padding-bottom: 24px; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 16px; margin: 0 0 10px; }
h3 { font-size: 14px; margin: 14px 0 6px; overflow-wrap: anywhere; }
section { background: var(--frame); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin: 14px 0; }
.verdict { font-size: 17px; margin: 6px 0 0; overflow-wrap: anywhere; }
.verdict.good { color: var(--good); } .verdict.bad { color: var(--bad); }
.note { color: var(--dim); font-size: 13px; margin: 8px 0 0; }
.scroll { overflow-x: auto; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: 5px 14px 5px 0; vertical-align: top; font-weight: 400; }
thead th { color: var(--dim); font-size: 12.5px; border-bottom: 1px solid var(--line); min-width: 110px;
  max-width: 260px; overflow-wrap: anywhere; }
tbody th { min-width: 150px; }
tbody tr + tr > * { border-top: 1px solid color-mix(in srgb, var(--line) 55%, transparent); }
td { font-variant-numeric: tabular-nums; }
td.bad { color: var(--bad); font-weight: 600; }
.bars { display: grid; grid-template-columns: 220px 1fr 270px; gap: 6px 12px;
  align-items: center; font-size: 13.5px; }
.bars > span { overflow-wrap: anywhere; }
.bar { display: flex; height: 16px; border-radius: 4px; overflow: hidden; background: var(--free);
  border: 1px solid var(--line); }
.bar i { display: block; height: 100%; }
.used { background: var(--used); }
.lost { background: repeating-linear-gradient(-45deg, var(--lost) 0 5px, var(--free) 5px 8px); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; margin: 12px 0 0;
  color: var(--dim); font-size: 12.5px; }
.legend i { display: inline-block; width: 22px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; border: 1px solid var(--line); }
summary { cursor: pointer; padding: 4px 0; overflow-wrap: anywhere; }
.picture { overflow-x: auto; margin: 6px 0 14px; }
.picture svg { display: block; }
ul.why { margin: 0; padding-left: 18px; font-size: 13.5px; overflow-wrap: anywhere; }
@media (max-width: 720px) {
  header, main { padding-left: 12px; padding-right: 12px; }
  section { padding: 12px; }
  .bars { grid-template-columns: 1fr; gap: 2px; }
  .bars > span:nth-child(3n) { margin-bottom: 10px; color: var(--dim); }
}
"""
