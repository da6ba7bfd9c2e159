"""Writes deploy/grafana/attendant.json, the dashboard: python deploy/grafana/write_dashboard.py.

Grafana's own library makes it, so that it has the form that Grafana reads (10.1 and newer).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption, VariableRefresh

PATH = Path(__file__).with_name("attendant.json")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

MODEL: Final = '{model=~"$model"}'
NOT_OK: Final = '{model=~"$model", code!="OK"}'
OF_SERVERS: Final = "and on (instance) attendant_ready"
GPU: Final = "DCGM_FI_DEV"

SHARE, SECONDS, PER_SECOND, NUMBER, BYTES, WATTS = "percentunit", "s", "cps", "short", "bytes", "watt"


def rate(metric: str, *by: str, where: str = MODEL) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{where}[$__rate_interval]))"


def mean(histogram: str) -> str:
    return f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}"


def quantile(of: float, histogram: str, *by: str) -> str:
    return f"histogram_quantile({of}, {rate(f'{histogram}_bucket', 'le', *by)})"


def quantiles(histogram: str, name: str) -> dict[str, str]:
    return {f"{name} p{100 * of:.0f}": quantile(of, histogram) for of in (0.5, 0.99)}


def now(gauge: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({gauge}{MODEL})"


PHASES: Final = ("queue", "encode", "decode")

ROWS: Final[dict[str, dict[tuple[str, str], dict[str, str]]]] = {
    "Load and errors": {
        ("Requests", PER_SECOND): {"{{method}} {{code}}": rate("attendant_requests_total", "method", "code")},
        ("Not answered, of all", SHARE): {
            "{{code}}": f"{rate('attendant_requests_total', 'code', where=NOT_OK)} "
            f"/ on () group_left {rate('attendant_requests_total')}"
        },
        # Those that no method has seen have no model.
        ("Refused", PER_SECOND): {
            "{{reason}}": rate("attendant_rejected_total", "reason", where='{model=~"$model|"}'),
        },
        ("Waiting and running", NUMBER): {
            "waiting": now("attendant_requests_waiting"),
            "running": now("attendant_requests_running"),
            "bulk": now("attendant_bulk_requests"),
        },
    },
    "Latency": {
        ("Calls", SECONDS): {
            "{{method}} p50": quantile(0.5, "attendant_request_seconds", "method"),
            "{{method}} p99": quantile(0.99, "attendant_request_seconds", "method"),
        },
        ("Mean by phase", SECONDS): {phase: mean(f"attendant_{phase}_seconds") for phase in PHASES},
        ("By phase, 99th percentile", SECONDS): {
            phase: quantile(0.99, f"attendant_{phase}_seconds") for phase in PHASES
        },
        ("First token, and between two", SECONDS): {
            **quantiles("attendant_time_to_first_token_seconds", "first"),
            "between two": mean("attendant_inter_token_seconds"),
        },
        ("Slower than the objective, of all", SHARE): {
            "{{model}}": f"model:attendant_requests_slow:ratio_rate5m{MODEL}",
        },
        ("Engine, seconds per second", SHARE): {"{{phase}}": rate("attendant_step_seconds_sum", "phase")},
    },
    "Occupancy": {
        ("Rows in use", SHARE): {
            "{{model}}": f"model:attendant_occupancy:ratio{MODEL}",
            "{{instance}}, all models": "sum by (instance) (attendant_rows_running) "
            "/ max by (instance) (attendant_rows_limit)",
        },
        ("Rows per step", NUMBER): {"mean": mean("attendant_step_rows")},
        ("Padding waste", SHARE): {"of the attention": f"1 - {mean('attendant_batch_efficiency_ratio')}"},
        ("Seconds over those expected", NUMBER): {
            "p50": quantile(0.5, "attendant_prediction_ratio"),
            "p90": quantile(0.9, "attendant_prediction_ratio"),
        },
    },
    "Tokens": {
        ("Tokens", PER_SECOND): {
            "source": rate("attendant_source_tokens_total"),
            "target": rate("attendant_target_tokens_total"),
        },
        ("Tokens per request", NUMBER): {
            **quantiles("attendant_request_source_tokens", "source"),
            **quantiles("attendant_request_target_tokens", "target"),
        },
    },
    "Quality": {
        ("Drift", NUMBER): {"{{model}} {{signal}}": f"max by (model, signal) (attendant_drift_index{MODEL})"},
        ("Target over source", NUMBER): {"mean": mean("attendant_length_ratio")},
        ("Cut and unknown", SHARE): {
            "answers cut at the maximum length": f"{rate('attendant_hit_max_length_total')} "
            f"/ {rate('attendant_length_ratio_count')}",
            "source tokens unknown": f"{rate('attendant_unknown_tokens_total')} "
            f"/ {rate('attendant_source_tokens_total')}",
        },
        ("Attention", SHARE): {
            "entropy": mean("attendant_attention_entropy_ratio"),
            "left out": mean("attendant_coverage_deficit_ratio"),
        },
    },
    "Servers": {
        ("Processors", NUMBER): {
            "{{instance}}, without workers": f"rate(process_cpu_seconds_total[$__rate_interval]) {OF_SERVERS}",
        },
        ("Memory", BYTES): {"{{instance}}, without workers": f"process_resident_memory_bytes {OF_SERVERS}"},
        ("Ready, and engines started again", NUMBER): {
            "{{model}} ready": f"min by (model) (attendant_ready{MODEL})",
            "{{model}} restarts in 1 h": f"sum by (model) (increase(attendant_engine_restarts_total{MODEL}[1h]))",
        },
    },
    "GPU (dcgm-exporter)": {
        ("GPU use", SHARE): {"{{Hostname}} {{gpu}}": f"{GPU}_GPU_UTIL / 100"},
        ("GPU memory", BYTES): {"{{Hostname}} {{gpu}}": f"{GPU}_FB_USED * 1024 * 1024"},
        ("GPU power", WATTS): {"{{Hostname}} {{gpu}}": f"{GPU}_POWER_USAGE"},
    },
}
"""Row -> title and unit of each panel -> legend -> PromQL."""

STACKED: Final = {"Mean by phase", "Engine, seconds per second"}


def panel(title: str, unit: str, queries: Mapping[str, str]) -> timeseries.Panel:
    """Returns a panel. If its histograms are of requests, points link to their traces."""
    made = timeseries.Panel().title(title).unit(unit).min(0).datasource(SOURCE).span(6).height(7)
    made.legend(common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True))
    if title in STACKED:
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(20)
    for letter, (legend, expression) in zip("ABCDEF", queries.items(), strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).range().ref_id(letter)
        made.with_target(query.exemplar("_seconds_bucket" in expression))
    return made


def page() -> str:
    """Returns the dashboard as JSON."""
    built = (
        dashboard.Dashboard("Attendant")
        .uid("attendant")
        .tags(["attendant"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("model")
            .label("Model")
            .datasource(SOURCE)
            .query("label_values(attendant_bundle_info, model)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(VariableOption(text="All", value="$__all", selected=True))
        )
    )
    for title, panels in ROWS.items():
        built.with_row(dashboard.Row(title))
        for (panel_title, unit), queries in panels.items():
            built.with_panel(panel(panel_title, unit, queries))
    return json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
