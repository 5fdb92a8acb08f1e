"""How reports look, by day and by night, on a screen and on paper."""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--page:#fff;
--card:#f6f8fa;--a:#0969da;--b:#bc4c00;--c:#1a7f37;--d:#8250df;--bad:#b91c1c}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--page:#0d1117;
--card:#151b23;--a:#58a6ff;--b:#f0883e;--c:#3fb950;--d:#bc8cff;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem;color:var(--ink);background:var(--page);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:0}
a{color:var(--a)}p{margin:.4rem 0}.soft{color:var(--soft)}.bad{color:var(--bad);font-weight:600}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.2rem 0;padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.6rem .9rem;
min-width:8.5rem}
.tiles b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem}
figcaption{font-weight:600;margin-bottom:.3rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.bar{fill:var(--a)}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.s0{stroke:var(--a)}.s1{stroke:var(--b);stroke-dasharray:6 3}
.s2{stroke:var(--c);stroke-dasharray:2 3}
.k0{fill:var(--a)}.k1{fill:var(--b)}.k2{fill:var(--c)}.dot{stroke:none}
.legend{display:flex;gap:1rem;font-size:.85rem;color:var(--soft)}
.legend svg{display:inline-block;width:1.6rem;height:.7rem;vertical-align:middle;
margin-right:.35rem}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
caption{text-align:left;color:var(--soft);padding:.2rem 0 .5rem}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{border-bottom:2px solid var(--line);white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th[scope=row]{font-weight:500;overflow-wrap:anywhere}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--soft)}
code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:var(--page);border:1px solid var(--line);border-radius:6px;padding:.6rem;
margin:.4rem 0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:20rem;overflow:auto}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem;
margin:1rem 0}
.name{overflow-wrap:anywhere}
footer{margin-top:3rem;border-top:1px solid var(--line);padding-top:.6rem}
@media print{body{max-width:none}details>*{display:block}pre{max-height:none}}
""".replace("\n", "")
