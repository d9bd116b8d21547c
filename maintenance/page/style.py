"""The page's style sheet: light and dark, from the reader's own setting; prints in light."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;
--page:#f7f7f4;--card:#fff;--ink:#14140f;--soft:#55544f;--faint:#85837c;--grid:#e8e7e1;
--axis:#c3c2b7;--line:#e3e2dc;--track:#f0efea;--good:#0a7a3d;--warn:#9a5b00;--bad:#b42318;
--good-bg:#e4f4ea;--warn-bg:#fdf1dc;--bad-bg:#fde8e6;--tip:#1d1d1a;--tip-ink:#fff;
--c1:#2a6fd0;--c2:#12936a;--c3:#d99100;--c4:#7a5bd0;--c5:#d6453f;--c6:#5d6b7a}
@media screen and (prefers-color-scheme:dark){:root{
--page:#121211;--card:#1b1b19;--ink:#f5f4ef;--soft:#bdbbb1;--faint:#8b897f;--grid:#2b2b28;
--axis:#45443f;--line:#2b2b28;--track:#262623;--good:#5fd394;--warn:#f0b35a;--bad:#ff8a80;
--good-bg:#12301f;--warn-bg:#33260f;--bad-bg:#3a1815;--tip:#f5f4ef;--tip-ink:#14140f;
--c1:#5b9bf0;--c2:#2fb98a;--c3:#e0a32e;--c4:#a48cf0;--c5:#f0736c;--c6:#93a1b0}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 24px 48px}
header{display:flex;flex-wrap:wrap;gap:8px 20px;align-items:baseline;margin-bottom:22px}
h1{font-size:27px;line-height:1.25;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:15.5px;margin:0;letter-spacing:-.005em}
header p{margin:0;color:var(--soft);flex-basis:100%}
.chip{display:inline-flex;gap:6px;align-items:center;border-radius:999px;padding:3px 12px;
font-size:13px;font-weight:600;white-space:nowrap;align-self:center}
.good{color:var(--good);background:var(--good-bg)}.warn{color:var(--warn);background:var(--warn-bg)}
.bad{color:var(--bad);background:var(--bad-bg)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:14px;
margin:0 0 14px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tile{padding:14px 16px;margin:0}
.tile dt{color:var(--soft);font-size:13px}
.tile dd{margin:2px 0 0;font-size:25px;font-weight:650;letter-spacing:-.015em;line-height:1.25}
.tile dd+dd{font-size:13px;font-weight:400;color:var(--faint);letter-spacing:0;margin-top:3px}
.grid{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}
@media (max-width:900px){.grid{grid-template-columns:minmax(0,1fr)}main{padding:20px 14px}}
.card{padding:16px 18px 12px;margin:0;min-width:0}
.wide{grid-column:1/-1}
figcaption p,.card>p{margin:1px 0 8px;color:var(--soft);font-size:13.5px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 6px;padding:0;list-style:none;
font-size:13px;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px}
.key{width:11px;height:11px;border-radius:3px;display:inline-block}
.k1{background:var(--c1)}.k2{background:var(--c2)}.k3{background:var(--c3)}.k4{background:var(--c4)}
.k5{background:var(--c5)}.k6{background:var(--c6)}
.kmark{width:0;height:0;border-left:5px solid transparent;border-right:5px solid transparent;
border-top:8px solid var(--c4)}
svg{display:block;width:100%;height:auto;overflow:visible;font:12px system-ui,sans-serif}
line.grid{stroke:var(--grid)}line.axis{stroke:var(--axis)}
.tick{fill:var(--faint);font-variant-numeric:tabular-nums}.value{fill:var(--ink)}
.track{fill:var(--track)}.bars svg{max-width:760px}
.l1,.l2,.l3,.l4,.l5,.l6{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.l2{stroke-dasharray:7 4}
.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}
.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}.l6{stroke:var(--c6)}
.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}
.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}
.a1{fill:var(--c1);opacity:.11}.a2{fill:var(--c2);opacity:.11}.a3{fill:var(--c3);opacity:.11}
.mark{fill:var(--c4)}.markline{stroke:var(--c4);stroke-dasharray:2 4;opacity:.45}
.hit>rect{fill:transparent}.tip{opacity:0;pointer-events:none}.hit:hover .tip{opacity:1}
.cursor{stroke:var(--axis)}.dot{stroke:var(--card);stroke-width:2}
.box{fill:var(--tip);opacity:.94}.tip text{fill:var(--tip-ink)}.tip .head{opacity:.72}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12.5px}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
tr:last-child td{border-bottom:0}
th:last-child,td:last-child{padding-right:0}td:last-child{min-width:9em}.n:last-child{min-width:0}
.n{text-align:right;white-space:nowrap}.w{white-space:nowrap}
details{margin:6px 0 4px;font-size:13px}
summary{cursor:pointer;color:var(--soft);width:max-content;border-radius:6px}
summary:focus-visible{outline:2px solid var(--c1);outline-offset:3px}
details .scroll{max-height:260px;overflow:auto;margin-top:6px}
.empty{color:var(--faint);padding:26px 0 30px;text-align:center}
.problem{border-color:var(--bad)}
a{color:var(--c1)}
@media (max-width:560px),print{.tick,.value{font-size:19px}.odd{display:none}
.at{transform:translateY(7px)}.days{transform:translateY(15px)}svg{margin-bottom:10px}}
@media screen and (max-width:560px){.stack thead{display:none}.stack tr{display:block;padding:7px 0;
border-bottom:1px solid var(--line)}.stack tr:last-child{border-bottom:0}
.stack td{display:block;padding:0;border:0;text-align:left;white-space:normal}
.stack td:first-child{font-weight:600}
.stack td[data-head]::before{content:attr(data-head) " ";color:var(--soft)}}
@media print{@page{margin:14mm}:root{color-scheme:light;--page:#fff}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:10pt}main{max-width:none;padding:0}
.card,.tile{break-inside:avoid}.grid{grid-template-columns:repeat(2,minmax(0,1fr))}
.tiles{grid-template-columns:repeat(3,1fr)}
.scroll{overflow:visible;max-height:none}details,.tip{display:none}}
footer{margin-top:22px;color:var(--faint);font-size:13px;overflow-wrap:anywhere}
"""
