"""What a sample is: a trading day with all stocks that were listed on it.

Replace it with your own, together with `commands/prepare.py`.

The rows of the prepared dataset are the days of each stock, one stock after the other. The sample
of a day is a span of `window` rows for each stock. A row depends on its day and earlier days only,
except for `target`.

Shapes: `D` days, `S` stocks, `R` rows, `F` features, `P` horizons, `B` samples, `G` graphs, `k`
neighbours. `K` is the number of seats, which hold the stocks of a day, and `L` the number of days
that a correlation looks back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .engine import interfaces
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.store import Store, StoreWriter
from .prepare.scaling import Scaler
from .settings import WORKLOAD, Settings

FEATURES = ("return", "range", "body", "size", "volume", "week", "month")
# The feature with the daily value of each target.
DAILY = {"return": 0, "range": 1, "volatility": 3}
WEEK = 5  # trading days
MONTH = 22
VOLUME_DAYS = 20
STOCKS_AT_ONCE = 128  # stocks whose correlations with all others are in memory at a time
DAYS_AT_ONCE = 16
STILL = 1e-9  # a smaller variance, as a fraction of the sum of squares, is rounding


Facts = dict[str, Any]
Metrics = dict[str, float]
Arrays = dict[str, np.ndarray]


class Samples(interfaces.Samples):
    """The days of one split. It may also have `host` and `orders` of its base."""

    def __init__(self, store: Store, settings: Settings, split: str):
        first, last = store.splits[split]
        self.store = store
        self.first = first
        self.facts = store.facts
        # Own edges are not computed from returns.
        self.rebuild = settings.graph_builder.use_in_training and "edges" not in store.facts
        # (samples, 2): the number of the day's graph, and the graph's day
        self.days = store.arrays["days"].rows()[first:last]
        # (samples, K): the row of each stock, −1 for an empty seat
        self.seats = store.arrays["seats"].rows()[first:last]
        # (R,): the stock of each row
        self.stocks = store.arrays["stock"].rows()

    def __len__(self) -> int:
        return len(self.days)

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        """Return the spans of each stock's window, target, number and neighbours on these days."""
        window = self.facts["window"]
        present = indices >= 0
        seats = self.seats[indices].astype(np.int64)
        rows = np.where(present[:, None], seats, -1)  # (B, K)
        listed = rows >= 0
        days = self.days[indices].astype(np.int64)
        spans = {
            "features": Spans(np.where(listed, rows - window + 1, -1), window),
            "target": Spans(rows, 1),
            "stock": Spans(rows, 1, listed.astype(np.int64)),
        }

        if self.rebuild:
            first_days = np.where(present, days[:, 1], -1)
            spans["returns"] = Spans(first_days, self.facts["correlation_days"])
        else:
            first_row_of_graph = days[:, :1] * len(self.facts["tickers"])
            neighbor_rows = first_row_of_graph + self.stocks[rows]
            spans["neighbors"] = Spans(np.where(listed, neighbor_rows, -1), 1)
        return spans

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return `features` (B, K, T, F), `target` (B, K, P), `listed` (B, K) and `neighbors`.

        `neighbors` (B, K, k) are numbers of seats, −1 for none.
        """
        stored_stock, lengths = rows["stock"]
        listed = lengths > 0
        absent = len(self.facts["tickers"])
        stock = stored_stock[:, :, 0].long().masked_fill(~listed, absent)  # (B, K)
        if self.rebuild:
            neighbors = self._rebuilt(rows["returns"].values, stock)
        else:
            stored = rows["neighbors"].values[:, :, 0]
            has_neighbors = listed.unsqueeze(2)
            neighbors = stored.long().masked_fill(~has_neighbors, -1)
        return {
            "features": rows["features"].values,
            "target": rows["target"].values[:, :, 0],
            "listed": listed,
            "neighbors": _as_seats(neighbors, stock, absent),
        }

    def _rebuilt(self, returns: Tensor, stock: Tensor) -> Tensor:
        """Compute the neighbours (B, K, k) of each stock, −1 for none."""
        neighbors = correlated(returns, self.facts["neighbors"], self.facts["overlap"])
        days, _, count = neighbors.shape
        nobody = neighbors.new_full((days, 1, count), -1)  # neighbours of an empty seat
        neighbors = torch.cat([neighbors, nobody], 1)
        place = stock.unsqueeze(2).expand(-1, -1, count)
        return neighbors.gather(1, place)


def _as_seats(neighbors: Tensor, stock: Tensor, absent: int) -> Tensor:
    """Return the seats (B, K, k) of the stocks `neighbors`, −1 for stocks without a seat today.

    stock: the stock of each seat (B, K), `absent` for empty seats.
    """
    seats = torch.arange(stock.shape[1], device=stock.device)
    seat_of_stock = stock.new_full((len(stock), absent + 1), -1)
    seat_of_stock.scatter_(1, stock, seats.expand_as(stock))
    seat_of_stock[:, absent] = -1
    is_nobody = neighbors < 0
    stocks = neighbors.masked_fill(is_nobody, absent)
    neighbor_seats = seat_of_stock.gather(1, stocks.flatten(1))
    return neighbor_seats.view_as(neighbors)


def correlated(returns: Tensor, count: int, overlap: int) -> Tensor:
    """Return the `count` stocks most correlated with each, (…, S, count) int64, −1 if too few.

    returns: (…, L, S), NaN if missing. A correlation uses only days on which both stocks have a
    return, and needs `overlap` of them. A return that never changes has no correlation.
    """
    known = ~returns.isnan()
    returns = returns.double().where(known, 0.0)
    num_stocks = returns.shape[-1]
    num_best = min(count, num_stocks)
    neighbors = []
    for first in range(0, num_stocks, STOCKS_AT_ONCE):
        block = slice(first, first + STOCKS_AT_ONCE)
        strength = _pairwise(returns, known.double(), overlap, block)
        # No stock is its own neighbour.
        strength.diagonal(first, -2, -1).fill_(-1)
        best = strength.topk(num_best, -1)
        neighbors.append(best.indices.masked_fill(best.values < 0, -1))
    of_all = torch.cat(neighbors, -2)
    return functional.pad(of_all, (0, count - num_best), value=-1)


def _pairwise(returns: Tensor, days: Tensor, overlap: int, block: slice) -> Tensor:
    """Return absolute correlations of a block of stocks with all stocks (…, s, S).

    returns (…, L, S): 0 if missing. days (…, L, S): 1 if known, else 0. A correlation uses the days
    on which both stocks have returns. It is −1 if there are fewer than `overlap` such days, or if a
    return never changes.
    """
    block_returns = returns[..., block]
    block_days = days[..., block]
    shared_days = block_days.mT @ days
    enough = shared_days >= max(overlap, 2)
    shared_days.clamp_(min=1)

    total, variance, moves = _spread(block_returns, days, shared_days)
    of_others = _spread(returns, block_days, shared_days.mT)
    other_total, other_variance, other_moves = (values.mT for values in of_others)

    covariance = block_returns.mT @ returns
    covariance -= total * other_total / shared_days
    scale = (variance * other_variance).sqrt()
    strength = covariance.abs() / scale
    is_known = enough & moves & other_moves
    return torch.where(is_known, strength, -1.0)


def _spread(returns: Tensor, days: Tensor, shared_days: Tensor) -> tuple[Tensor, ...]:
    """Return sums and squared deviations of returns (…, L, S), and whether the returns change.

    They use the days (…, L, T) of other stocks; `shared_days` (…, S, T) is their number.
    """
    total = returns.mT @ days
    squares = returns.square().mT @ days
    variance = squares - total**2 / shared_days
    moves = variance > STILL * squares
    return total, variance, moves


class Stock(NamedTuple):
    """The data of one stock by date."""

    dates: np.ndarray  # (n,) datetime64[D], rising
    prices: np.ndarray  # (n, 4) open, high, low, close
    adjusted: np.ndarray  # (n,) close, adjusted for dividends and splits
    volume: np.ndarray  # (n,) NaN where unknown
    own: Sequence[np.ndarray] = ()  # the columns (n,) of --features, NaN where unknown


class Plan(NamedTuple):
    """The choices that `prepare` makes by its flags."""

    target: str = "range"
    horizons: tuple[int, ...] = (1,)
    window: int = 20
    neighbors: int = 10
    refresh: int = 30  # calendar days between two graphs
    correlation_days: int = 120
    overlap: int = 30


class Timeline(NamedTuple):
    """The days of all stocks, which of them are samples, and their stocks and graphs."""

    calendar: np.ndarray  # (D,) datetime64[D]: days on which any stock has a row
    places: list[np.ndarray]  # of each stock: the index of each of its days in the calendar
    days: np.ndarray  # (samples,) index of each sample in the calendar
    seats: np.ndarray  # (samples, seats): the row of each stock, −1 where a seat is empty
    graph: np.ndarray  # (samples,) number of each sample's graph
    graph_days: np.ndarray  # (G,) index in the calendar: a graph uses the days up to it


def describe_days(stock: Stock, kind: str) -> np.ndarray:
    """Return the features (n, F) of a stock's days, from each day and earlier ones."""
    opening, high, low, close = np.log(stock.prices.T)
    adjusted = np.log(stock.adjusted)
    returns = np.diff(adjusted, prepend=adjusted[:1])

    volume = np.log1p(stock.volume)
    known_share = _mean_of_last(~np.isnan(volume), VOLUME_DAYS)
    usual = _mean_of_last(np.nan_to_num(volume), VOLUME_DAYS)
    usual /= np.maximum(known_share, 1e-9)
    unusual = np.nan_to_num(volume - usual)

    features = [returns, high - low, close - opening, np.abs(returns), unusual]
    daily = features[DAILY[kind]]
    for days in (WEEK, MONTH):
        mean = _mean_of_last(daily, days)
        features.append(mean)
    return np.stack([*features, *stock.own], 1)


def _mean_of_last(values: np.ndarray, count: int) -> np.ndarray:
    """Return the mean (n,) of the last `count` values up to each one."""
    # Each sum is computed from its own terms, so that rounding errors do not add up.
    sums = np.convolve(values, np.ones(count))[: len(values)]
    lengths = np.arange(1, len(values) + 1)
    lengths = lengths.clip(max=count)
    return sums / lengths


def panel(
    writer: StoreWriter, stocks: dict[str, Stock], plan: Plan, edges: np.ndarray | None = None
) -> Arrays:
    """Write features, targets, seats and graphs of the stocks, and return them.

    edges: own edges, as `read_edges` returns them; by default, graphs are computed from returns.

    A sample is a day on which at least one stock has a whole window. `dates` are these days, as
    days since 1970.
    """
    timeline = _make_timeline(stocks, plan)
    # `returns` starts with L − 1 empty rows, so that the L rows from row d on end with day d.
    padding = plan.correlation_days - 1
    returns = np.full((padding + len(timeline.calendar), len(stocks)), np.nan, np.float32)
    features = []
    targets = []
    numbers = []
    for number, stock in enumerate(stocks.values()):
        place = timeline.places[number]
        described = describe_days(stock, plan.target)
        features.append(described.astype(np.float32))
        targets.append(_targets(described, place, plan).astype(np.float32))
        numbers.append(np.full(len(place), number, np.int32))
        returns[padding + place[1:], number] = described[1:, 0]

    days = np.stack([timeline.graph, timeline.graph_days[timeline.graph]], 1)
    arrays = {
        "features": np.concatenate(features),
        "target": np.concatenate(targets),
        "stock": np.concatenate(numbers),
        "seats": timeline.seats,
        "days": days.astype(np.int32),
        "returns": returns,
        "neighbors": _graphs(returns, timeline, plan, edges),
        "dates": timeline.calendar[timeline.days].astype(np.int64),
    }
    for name, values in arrays.items():
        writer.append(name, values)
    return arrays


def _make_timeline(stocks: dict[str, Stock], plan: Plan) -> Timeline:
    """A stock has a seat on each day on which it has a whole window."""
    calendar = np.unique(np.concatenate([stock.dates for stock in stocks.values()]))
    places = [np.searchsorted(calendar, stock.dates) for stock in stocks.values()]
    num_days = np.concatenate([np.arange(len(place)) for place in places])  # before each row
    rows = np.flatnonzero(num_days >= plan.window - 1)
    days, sample = np.unique(np.concatenate(places)[rows], return_inverse=True)

    # The seats of a day are taken in the order of the stocks.
    num_stocks = np.bincount(sample)
    by_sample = np.argsort(sample, kind="stable")
    first = np.cumsum(num_stocks) - num_stocks
    seat = np.arange(len(rows)) - np.repeat(first, num_stocks)
    seats = np.full((len(days), num_stocks.max()), -1, np.int32)
    seats[sample[by_sample], seat] = rows[by_sample]

    # Periods count from 1970, so that they do not depend on the first day of the data.
    period = calendar.astype(np.int64) // plan.refresh
    opens = np.flatnonzero(np.diff(period, prepend=period[0] - 1))
    graph = np.searchsorted(opens, days, "right") - 1
    used, graph = np.unique(graph, return_inverse=True)
    return Timeline(calendar, places, days, seats, graph, opens[used])


def _targets(features: np.ndarray, place: np.ndarray, plan: Plan) -> np.ndarray:
    """Return the targets (n, P) of a stock's days; place: their indices (n,) in the calendar."""
    # Use the calendar, so that a horizon across a missing day has no target.
    since = place - place[0]
    daily = np.full(since[-1] + 1, np.nan)
    first_known = 0 if plan.target == "range" else 1  # a stock's first day has no return
    values = features[:, DAILY[plan.target]]
    daily[since[first_known:]] = values[first_known:]
    futures = np.stack(_futures(daily, plan), 1)
    return futures[since]


def _futures(daily: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """Return the target of each horizon (days,), NaN if one of the days ahead is missing.

    The target is the sum of returns, the mean range, or the root mean square of returns.
    """
    futures = {}
    total = np.zeros_like(daily)
    for ahead in range(1, max(plan.horizons) + 1):
        coming = np.full_like(daily, np.nan)
        coming[:-ahead] = daily[ahead:]
        if plan.target == "volatility":
            total = total + coming**2
            futures[ahead] = np.sqrt(total / ahead)
        else:
            total = total + coming
            futures[ahead] = total
            if plan.target == "range":
                futures[ahead] = total / ahead
    return [futures[ahead] for ahead in plan.horizons]


def _graphs(
    returns: np.ndarray, timeline: Timeline, plan: Plan, edges: np.ndarray | None
) -> np.ndarray:
    """Return the neighbours (G·S, k) of each stock for the graphs of the timeline."""
    graphs = []
    for day in timeline.graph_days:
        if edges is None:
            past = torch.from_numpy(returns[day : day + plan.correlation_days])
            graphs.append(correlated(past, plan.neighbors, plan.overlap).numpy())
        else:
            begun = edges[:3, edges[3] <= timeline.calendar[day].astype(int)]
            graphs.append(strongest(begun, returns.shape[1], plan.neighbors))
    return np.concatenate(graphs).astype(np.int32)


def strongest(edges: np.ndarray, num_stocks: int, count: int) -> np.ndarray:
    """Return the `count` stocks with the largest weights of edges to each stock, −1 if too few.

    edges: from, to and weight (3, n). A later one of two stocks replaces an earlier one.
    """
    source, target = edges[:2].astype(int)
    strength = np.zeros((num_stocks, num_stocks))
    strength[target, source] = np.abs(edges[2])
    np.fill_diagonal(strength, 0)  # the model adds the edge of a stock to itself
    best = np.argsort(-strength, 1, kind="stable")[:, :count]
    exists = np.take_along_axis(strength, best, 1) > 0
    return np.where(exists, best, -1)


def _scales(key: str, names: Iterable[Any], scaler: Scaler) -> list[Facts]:
    """Return name, mean and standard deviation of each column; 1 if the column is constant."""
    scales = []
    for name, mean, std in zip(names, *scaler.scale(), strict=True):
        scale = {key: name, "mean": float(mean), "std": float(std or 1)}
        scales.append(scale)
    return scales


def describe(
    arrays: Arrays, tickers: list[str], plan: Plan, train: slice, own: Iterable[str] = ()
) -> Facts:
    """Return the metadata that a model is built from, computed from the training days only.

    own: names of the columns of --features.
    """
    seats = arrays["seats"][train]
    names = [*FEATURES, *own]
    features = Scaler(len(names))
    num_horizons = len(plan.horizons)
    target = Scaler(num_horizons)
    for day in range(0, len(seats), DAYS_AT_ONCE):
        rows = seats[day : day + DAYS_AT_ONCE]
        rows = rows[rows >= 0]
        features.add(arrays["features"][rows])
        target.add(arrays["target"][rows])
    if not np.all(target.count):
        remedy = "use more days, or shorter horizons"
        raise UserError("no training day has a target", "--horizons", remedy)

    facts = plan._asdict()
    del facts["horizons"]
    facts["tickers"] = tickers
    facts["features"] = _scales("name", names, features)
    horizons = _scales("days", plan.horizons, target)
    facts["target"] = {"kind": plan.target, "horizons": horizons}
    return facts


def _targets_of(store: Store, split: str) -> np.ndarray:
    """Return the targets (n, P), float64, of every stock and day of a split, NaN if unknown."""
    first, last = store.splits[split]
    seats = store.arrays["seats"].rows()[first:last]
    target = store.arrays["target"].rows()[seats[seats >= 0]]
    return target.astype(np.float64)


def finish(metrics: Metrics, store: Store, split: str, sums: Batch) -> Metrics:
    """Add `r2`: 1 − squared error ÷ variance of the split's targets, over all horizons."""
    target = _targets_of(store, split)
    deviation = target - np.nanmean(target, 0)
    variance = float(np.nanmean(deviation**2))
    if variance > 0 and "mse_original" in metrics:
        return {**metrics, "r2": 1 - metrics["mse_original"] / variance}
    return metrics


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of the mean of the training targets."""
    horizons = store.facts["target"]["horizons"]
    mean = [horizon["mean"] for horizon in horizons]
    std = [horizon["std"] for horizon in horizons]
    error = (_targets_of(store, split) - mean) / std
    return float(np.nanmean(error**2))


def split_days(sizes: list[int], ahead: int) -> dict[str, list[int]]:
    """Return the borders of the splits, without days whose targets reach into the next split."""
    train_end, validation_end, test_end = accumulate(sizes)
    gap = ahead if sizes[2] else 0
    return {
        "train": [0, train_end - ahead],
        "validation": [train_end, validation_end - gap],
        "test": [validation_end, test_end],
    }


def synthesize(folder: Path, settings: Settings) -> None:
    """Write 32 synthetic stocks over 900 days, which are always the same."""
    stocks = _made_up_stocks(32, 900)
    plan = Plan(neighbors=6)
    with StoreWriter(folder, WORKLOAD) as writer:
        arrays = panel(writer, stocks, plan)
        days = len(arrays["dates"]) - 1  # the last day has no target
        held_out = days * 15 // 100
        sizes = [days * 7 // 10, held_out, held_out]
        writer.splits = split_days(sizes, 1)
        writer.source = {"kind": "synthetic"}
        train = slice(*writer.splits["train"])
        writer.facts = describe(arrays, list(stocks), plan, train)


def _made_up_stocks(stocks: int, days: int) -> dict[str, Stock]:
    """Generate stocks with sectors, a market, and changing volatility; some start or end early."""
    prices, volume = _made_up_market(stocks, days)
    dates = np.datetime64("2015-01-01") + np.arange(days)
    made = {}
    for number in range(stocks):
        listed = slice(0, days)
        if number % 8 == 6:
            listed = slice(0, 700)
        elif number % 8 == 7:
            listed = slice(200, days)
        of_stock = prices[listed, number]
        name = f"stock {number:02d}"
        made[name] = Stock(dates[listed], of_stock, of_stock[:, 3], volume[listed, number])
    return made


def _made_up_market(stocks: int, days: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate prices (days, stocks, 4) and volume (days, stocks)."""
    random = np.random.default_rng(21)
    sector = np.arange(stocks) % 4
    log_scale = _calm_and_wild(random, sector, days)
    scale = 0.01 * np.exp(log_scale)
    factors = random.standard_normal((days, 5))
    common = 0.6 * factors[:, :1] + 0.6 * factors[:, 1 + sector]
    noise = random.standard_normal((days, stocks))
    returns = scale * (common + 0.5 * noise)

    close = 50 * np.exp(np.cumsum(returns, 0))
    opening = close * np.exp(-returns)
    reach = np.abs(random.standard_normal((days, stocks, 2)))
    above = np.exp(scale * reach[:, :, 0])
    below = np.exp(-scale * reach[:, :, 1])
    high = np.maximum(opening, close) * above
    low = np.minimum(opening, close) * below
    prices = np.stack([opening, high, low, close], 2)
    noise = random.standard_normal((days, stocks))
    volume = np.exp(13 + log_scale + 0.3 * noise)
    return prices, volume


def _calm_and_wild(random: np.random.Generator, sector: np.ndarray, days: int) -> np.ndarray:
    """Generate the log scale of returns (days, stocks), persistent and correlated in sectors."""
    stocks = len(sector)
    log_scale = np.zeros((days, stocks))
    for day in range(1, days):
        shock = random.standard_normal(4)[sector]
        shock += random.standard_normal(stocks)
        log_scale[day] = 0.9 * log_scale[day - 1] + 0.15 * shock
    return log_scale
