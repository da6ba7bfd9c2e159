"""How many servers, of how many workers and rows, for a rate of requests at a bound of their latency; and the price."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from attendant.server.bench.load import Load
from benchmarks.capacity.costs import Costs
from benchmarks.capacity.simulation import Lengths, Setting, simulate

NUM_REQUESTS = 2000
"""Of a simulated load: twenty of them are above the 99th percentile."""

WARM_UP_PART = 0.25
NUM_HALVINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A fleet of servers that are alike.

    Attributes:
        rate: requests per second that each of them answers within the bound.
        num_cores: of all servers together: a core for each worker, and what the server's process takes.
        price: of a million sentences.
    """

    setting: Setting
    rate: float
    num_servers: int
    num_cores: float
    price: float


def p99(costs: Costs, setting: Setting, lengths: Lengths, rate: float) -> float:
    """In seconds, of Poisson arrivals at a server. Those at each of a fleet are Poisson too where a balancer chooses at
    random; one that takes turns, or looks for the shortest queue, makes waits shorter.
    """
    seconds = NUM_REQUESTS / rate
    load = Load(kind="open", rate=rate, seconds=seconds)
    return simulate(costs, setting, lengths, load, warm_up=WARM_UP_PART * seconds).latency(0.99)


def most(costs: Costs, setting: Setting, lengths: Lengths, p99_seconds: float) -> float:
    """Requests per second that a server answers with a 99th percentile within the bound; 0: not even one at a time."""
    low, high = 0.0, bound(costs, setting, lengths)
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p99(costs, setting, lengths, middle) <= p99_seconds else (low, middle)
    return low


def bound(costs: Costs, setting: Setting, lengths: Lengths) -> float:
    """Requests per second that no such server can exceed: its process, or its workers with full batches at no cost but
    their steps.
    """
    mean_steps = sum(steps for _, steps in lengths) / len(lengths)
    per_row = costs.step.at(setting.max_rows, costs.step.widths[0]) / setting.max_rows
    of_workers = setting.num_workers / (per_row * setting.beam_size * mean_steps)
    return min(of_workers, 1 / costs.call_seconds if costs.call_seconds else math.inf)


def planned(
    costs: Costs, settings: Iterable[Setting], lengths: Lengths, *, rate: float, p99_seconds: float, core_hour: float
) -> list[Plan]:
    """A plan for each setting that can answer within the bound at all."""
    plans = []
    for setting in settings:
        if not (of_one := most(costs, setting, lengths, p99_seconds)):
            continue
        num_servers = math.ceil(rate / of_one)
        num_cores = num_servers * setting.num_workers + rate * costs.call_seconds
        price = num_cores * core_hour / 3600 / rate * 1e6
        plans.append(Plan(setting=setting, rate=of_one, num_servers=num_servers, num_cores=num_cores, price=price))
    return plans
