"""The style sheet of the page: one column, readable on a phone and in the dark, nothing loaded from anywhere."""

from attendant.training.report.pictures.colors import variables

STYLE = f"""
:root{{color-scheme:light dark;{variables(dark=False)}--panel:#f5f7f9;--missed:#fbe3d3;--bad:#a63d00}}
@media (prefers-color-scheme:dark){{:root{{{variables(dark=True)}--panel:#1a2129;--missed:#4a2a14;--bad:#ffb184}}}}
*{{box-sizing:border-box}}
html{{scroll-behavior:smooth;-webkit-text-size-adjust:100%}}
body{{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans",sans-serif;overflow-wrap:break-word}}
header,main,footer,nav>ul{{max-width:68rem;margin:0 auto;padding:0 1.25rem}}
header{{padding-top:2.5rem;padding-bottom:1rem}}
h1{{font-size:2rem;line-height:1.15;margin:0 0 .4rem;letter-spacing:-.015em}}
header p{{margin:0;color:var(--faint)}}
nav{{position:sticky;top:0;z-index:1;background:var(--paper);border-bottom:1px solid var(--rule)}}
nav ul{{display:flex;gap:1.4rem;list-style:none;overflow-x:auto;white-space:nowrap;scrollbar-width:none}}
nav a{{display:block;padding:.65rem 0;color:var(--faint);text-decoration:none;font-size:.9rem}}
nav a:hover,nav a:focus-visible{{color:var(--ink)}}
section{{padding:2.2rem 0 .6rem;scroll-margin-top:2.4rem}}
section+section{{border-top:1px solid var(--rule)}}
h2{{font-size:1.35rem;line-height:1.25;margin:0 0 .9rem;letter-spacing:-.01em}}
h3{{font-size:1rem;margin:1.8rem 0 .7rem}}
main p{{max-width:46rem;margin:.7rem 0}}
.note{{color:var(--faint);font-size:.86rem;line-height:1.5}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:1.3rem 2rem;margin:0 0 1.2rem}}
.tiles div{{display:flex;flex-direction:column;border-top:2px solid var(--ink);padding-top:.55rem}}
.tiles dt{{font-size:.82rem;color:var(--faint)}}
.tiles .value{{margin:0;font-size:1.9rem;line-height:1.2;font-weight:600;font-variant-numeric:tabular-nums}}
.tiles .detail{{margin:0;font-size:.82rem;color:var(--faint)}}
.scroll{{overflow-x:auto;margin:1rem 0}}
table{{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}}
th,td{{text-align:left;padding:.38rem 1.2rem .38rem 0;vertical-align:baseline;border-bottom:1px solid var(--rule)}}
th{{color:var(--faint);font-weight:500;white-space:nowrap}}
.number{{text-align:right;white-space:nowrap}}
td:first-child{{font-weight:500}}
td:not(.number){{min-width:5.2rem}}
figure{{margin:0;min-width:0}}
figcaption{{font-size:.86rem;line-height:1.45;color:var(--faint);margin-top:.4rem}}
figcaption span{{display:block}}
svg,svg text{{font-family:inherit!important}}
.charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1.6rem 2rem;margin:1rem 0}}
.charts .scroll{{margin:0;overflow:visible}}
.charts svg{{display:block;width:100%;max-width:34rem;height:auto}}
.maps{{display:flex;flex-wrap:wrap;gap:1.8rem 2.4rem;align-items:flex-end;margin:1rem 0}}
.maps figure{{max-width:100%;width:min-content}}
.maps .scroll{{margin:0;overflow-x:auto}}
.maps svg{{display:block}}
.key{{display:flex;flex-wrap:wrap;gap:.3rem 1.5rem;list-style:none;padding:0;margin:.4rem 0 1rem;font-size:.88rem}}
.key b{{margin-right:.45rem}}
.samples{{display:grid;gap:.7rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr));align-items:start;margin:0;padding:0;list-style:none}}
.samples li{{background:var(--panel);border-radius:.4rem;padding:.7rem .95rem}}
.samples dl{{display:grid;grid-template-columns:6rem 1fr;gap:.15rem .8rem;margin:0;font-size:.92rem}}
.samples dt{{color:var(--faint);font-size:.82rem;line-height:1.7}}
.samples dd{{margin:0;min-width:0;overflow-wrap:anywhere}}
.samples p{{margin:.35rem 0 0;font-size:.82rem;color:var(--faint);font-variant-numeric:tabular-nums}}
mark{{background:var(--missed);color:var(--bad);border-radius:.2rem;padding:.05em .18em;
text-decoration:underline;text-decoration-thickness:1px;text-underline-offset:.2em}}
details{{margin:1rem 0}}
summary{{cursor:pointer;font-size:.92rem;color:var(--faint)}}
summary:hover{{color:var(--ink)}}
summary h3{{display:inline;color:var(--ink)}}
pre{{background:var(--panel);border-radius:.4rem;padding:1rem;overflow-x:auto;font:.84rem/1.5 ui-monospace,Menlo,
Consolas,monospace}}
footer{{padding-top:1.2rem;padding-bottom:3rem;font-size:.82rem;color:var(--faint)}}
@media (max-width:34rem){{
header{{padding-top:1.6rem}}h1{{font-size:1.6rem}}.samples dl{{grid-template-columns:1fr;gap:0}}
.samples dd+dt{{margin-top:.35rem}}.tiles{{grid-template-columns:1fr 1fr;gap:1rem}}.tiles .value{{font-size:1.55rem}}}}
@media print{{nav{{display:none}}section{{break-inside:avoid-page}}details:not([open])>*{{display:revert}}}}
"""
