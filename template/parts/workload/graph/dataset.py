"""What a sample is: a trading day with all stocks that were listed then. Replace it with your own,
together with `commands/prepare.py`.

The rows of the store are days of one stock, stock after stock; a day's sample is a span of `window` rows
for each stock. Nothing in a row is later than its day, except `target`.

Shapes: `D` days, `S` stocks, `R` rows, `F` features, `P` horizons, `B` samples, `K` seats for stocks of
a day, `G` graphs, `k` neighbours, `L` days that a correlation looks back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .engine.errors import UserError
from .engine.seams import Batch, Rows, Spans
from .engine.store import Store, StoreWriter
from .scaling import Scaler
from .settings import WORKLOAD

FEATURES = ("return", "range", "body", "size", "volume", "week", "month")
DAILY = {"return": 0, "range": 1, "volatility": 3}  # the feature that is a target's value of one day
WEEK, MONTH = 5, 22  # trading days
VOLUME_DAYS = 20
# Of graphs that are made at once; cells are those of stocks × stocks, and more stocks come in blocks.
GRAPHS_AT_ONCE, CELLS_AT_ONCE, STOCKS_AT_ONCE = 16, 1 << 17, 64
DAYS_AT_ONCE = 16
STILL = 1e-9  # a variance that is this share of the squares is rounding


class Samples:
    """The days of one split. See `engine.seams.Samples`."""

    def __init__(self, store: Store, settings: Any, split: str):
        self.store = store
        self.first, self.last = first, last = store.splits[split]
        self.facts, self.rebuild = store.facts, settings.graph_builder.use_in_training
        self.days = store.arrays["days"].rows()[first:last]  # (samples, 2): the day's graph, the graph's day
        self.seats = store.arrays["seats"].rows()[first:last]  # (samples, K): row of each stock, −1 for none
        self.stocks = store.arrays["stock"].rows()  # (R,): which stock a row is of

    def __len__(self) -> int:
        return len(self.days)

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        window, stocks = self.facts["window"], len(self.facts["tickers"])
        rows = np.where((indices >= 0)[:, None], self.seats[indices], -1).astype(np.int64)  # (B, K)
        listed = (rows >= 0).astype(np.int64)
        rows, days = rows.clip(min=0), self.days[indices].astype(np.int64)
        one = Spans(rows, listed, 1)
        spans = {
            "features": Spans((rows - window + 1) * listed, listed * window, window),
            "target": one,
            "stock": one,
        }
        if self.rebuild:
            back = self.facts["correlation_days"]
            return {**spans, "returns": Spans(days[:, 1], (indices >= 0) * np.int64(back), back)}
        return {**spans, "neighbors": Spans((days[:, :1] * stocks + self.stocks[rows]) * listed, listed, 1)}

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`features` (B, K, T, F), `target` (B, K, P), `listed` (B, K), `neighbors` (B, K, k) seats or −1."""
        features, listed = rows["features"].values, rows["features"].lengths > 0
        absent = len(self.facts["tickers"])
        stock = rows["stock"].values[:, :, 0].long().masked_fill(~listed, absent)  # (B, K)
        if self.rebuild:
            found = correlated(rows["returns"].values, self.facts["neighbors"], self.facts["overlap"])
            found = torch.cat([found, found.new_full((len(found), 1, found.shape[2]), -1)], 1)
            found = found.gather(1, stock.unsqueeze(2).expand(-1, -1, found.shape[2]))
        else:
            found = rows["neighbors"].values[:, :, 0].long().masked_fill(~listed.unsqueeze(2), -1)
        # From stocks to seats; a stock without a seat today is nobody's neighbour.
        chairs = torch.arange(stock.shape[1], device=stock.device).expand_as(stock)
        seat = stock.new_full((len(stock), absent + 1), -1).scatter_(1, stock, chairs)
        seat[:, absent] = -1
        chosen = seat.gather(1, found.masked_fill(found < 0, absent).flatten(1)).view_as(found)
        target = rows["target"].values[:, :, 0]
        return {"features": features, "target": target, "listed": listed, "neighbors": chosen}


def correlated(returns: Tensor, count: int, overlap: int, at_once: int = 0) -> Tensor:
    """The `count` stocks most correlated with each, either way: (…, S, count) int64, −1 where too few.

    returns (…, L, S), NaN where a stock has none. A pair counts only the days that both have, and must
    have `overlap` of them. A return that never changes correlates with nothing. at_once: so many of the
    stocks against all, for less memory.
    """
    known, x, found = ~returns.isnan(), returns.double(), list[Tensor]()
    # A host sync, which usually saves three of four products.
    if whole := bool(known.all()):
        x = _standardised(x)
    stocks = returns.shape[-1]
    for first in range(0, stocks, at_once or stocks):
        part = slice(first, first + (at_once or stocks))
        if whole:
            strength = (x[..., part].mT @ x).abs_().nan_to_num_(nan=-1)
        else:
            strength = _pairwise(x, known, overlap, part)
        strength.diagonal(first, -2, -1).fill_(-1)
        best = strength.topk(min(count, stocks), -1)
        found.append(torch.where(best.values < 0, -1, best.indices))
    return torch.nn.functional.pad(torch.cat(found, -2), (0, max(count - stocks, 0)), value=-1)


def _standardised(returns: Tensor) -> Tensor:
    """Returns (…, L, S) without gaps whose products are correlations; NaN where one never changes."""
    x = returns - returns.mean(-2, keepdim=True)
    squares = x.square().sum(-2, keepdim=True)
    moves = squares > STILL * returns.square().sum(-2, keepdim=True)
    return torch.where(moves, x / squares.sqrt(), torch.nan)


def _pairwise(returns: Tensor, known: Tensor, overlap: int, part: slice) -> Tensor:
    """(…, s, S) size of the correlations of some stocks with all, over the days that both have of returns
    (…, L, S); −1 where those are fewer than `overlap`, or one never changes."""
    x, days = returns.where(known, 0.0), known.double()
    some, here = x[..., part], days[..., part]
    shared = here.mT @ days  # days that both have
    enough = shared >= max(overlap, 2)
    shared.clamp_(min=1)
    ours = _spread(some, days, shared)
    theirs = ours if some.shape == x.shape else _spread(x, here, shared.mT)
    sums, variances, moves = zip(ours, (values.mT for values in theirs), strict=True)
    covariance = some.mT @ x - sums[0] * sums[1] / shared
    strength = covariance.abs() / (variances[0] * variances[1]).sqrt()
    return torch.where(enough & moves[0] & moves[1], strength, -1.0)


def _spread(x: Tensor, days: Tensor, shared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums and squared deviations of returns (…, L, S) over the days (…, L, T) that others share, `shared`
    (…, S, T) in number, and whether they change."""
    total, squares = x.mT @ days, x.square().mT @ days
    variance = squares - total**2 / shared
    return total, variance, variance > STILL * squares


class Stock(NamedTuple):
    """What is known of one stock, by date, in memory or mapped."""

    dates: np.ndarray  # (n,) datetime64[D], rising
    prices: np.ndarray  # (n, 4) open, high, low, close
    adjusted: np.ndarray  # (n,) close with dividends and splits taken out
    volume: np.ndarray  # (n,) NaN where unknown


class Plan(NamedTuple):
    """What `prepare` was asked for."""

    target: str = "range"
    horizons: tuple[int, ...] = (1,)
    window: int = 20
    neighbors: int = 10
    refresh: int = 30  # days of the calendar between two graphs
    correlation_days: int = 120
    overlap: int = 30


class Panel(NamedTuple):
    """All stocks as the arrays of a store, mapped. Samples are days on which a stock has a whole window."""

    dates: np.ndarray  # (samples,) datetime64[D]
    arrays: dict[str, np.ndarray]


def describe_days(stock: Stock, kind: str) -> np.ndarray:
    """(n, F) features of each day of a stock, from that day and earlier ones."""
    opening, high, low, close = np.log(stock.prices.T)
    returns = np.diff(np.log(stock.adjusted), prepend=np.log(stock.adjusted[:1]))
    volume = np.log1p(stock.volume)
    usual = _mean_of_last(np.nan_to_num(volume), VOLUME_DAYS) / np.maximum(
        _mean_of_last(~np.isnan(volume), VOLUME_DAYS), 1e-9
    )
    features = [returns, high - low, close - opening, np.abs(returns), np.nan_to_num(volume - usual)]
    daily = features[DAILY[kind]]
    return np.stack([*features, _mean_of_last(daily, WEEK), _mean_of_last(daily, MONTH)], 1)


def _mean_of_last(values: np.ndarray, count: int) -> np.ndarray:
    """(n,) mean of each value and the ones before it, `count` at most."""
    sums = np.convolve(values, np.ones(count))[: len(values)]  # each of its own terms: no error adds up
    return sums / np.minimum(np.arange(1, len(values) + 1), count)


def panel(writer: StoreWriter, stocks: dict[str, Stock], plan: Plan) -> Panel:
    """Writes features, targets, seats and graphs of stocks in the order of their names; `dates` are days
    since 1970. One stock at a time is in memory."""
    calendar = _calendar(stocks)
    listed = np.zeros(len(calendar), np.int64)  # stocks of each day
    for stock in stocks.values():
        listed[np.searchsorted(calendar, stock.dates[plan.window - 1 :])] += 1
    days, sample = np.flatnonzero(listed), (listed > 0).cumsum() - 1
    refresh = calendar.astype(np.int64) // plan.refresh  # counts from 1970: the same for any first day
    opens = np.flatnonzero(np.diff(refresh, prepend=refresh[0] - 1))
    graph = np.searchsorted(opens, days, "right") - 1
    used, graph = np.unique(graph, return_inverse=True)
    # Row `d` of the padded returns is the day L − 1 before day d, so `L` rows from `d` on end with day d.
    before, rows = plan.correlation_days - 1, sum(len(stock.dates) for stock in stocks.values())
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "features": ("float32", (rows, len(FEATURES))),
        "target": ("float32", (rows, len(plan.horizons))),
        "stock": ("int32", (rows,)),
        "seats": ("int32", (len(days), int(listed.max()))),
        "days": ("int32", (len(days), 2)),
        "returns": ("float32", (before + len(calendar), len(stocks))),
        "neighbors": ("int32", (len(used) * len(stocks), plan.neighbors)),
        "dates": ("int64", (len(days),)),
    }
    arrays = {name: writer.create(name, shape, kind) for name, (kind, shape) in shapes.items()}
    arrays["days"][...] = np.stack([graph, opens[used][graph]], 1)
    arrays["dates"][...] = calendar[days].astype(np.int64)
    arrays["returns"][...], arrays["seats"][...] = np.nan, -1
    first, taken = 0, np.zeros(len(days), np.int64)  # row, and seats of each sample
    for number, stock in enumerate(stocks.values()):
        place, last = np.searchsorted(calendar, stock.dates), first + len(stock.dates)
        values = describe_days(stock, plan.target)
        begin = 0 if plan.target == "range" else 1  # a stock's first day has no return
        since = place - place[0]
        daily = np.full(since[-1] + 1, np.nan)
        daily[since[begin:]] = values[begin:, DAILY[plan.target]]
        arrays["features"][first:last] = values
        arrays["target"][first:last] = np.stack(_futures(daily, plan), 1)[since]
        arrays["stock"][first:last] = number
        arrays["returns"][before + place[1:], number] = values[1:, 0]
        whole = sample[place[plan.window - 1 :]]
        arrays["seats"][whole, taken[whole]] = np.arange(first + plan.window - 1, last)
        taken[whole] += 1
        first = last
    _graphs(arrays["neighbors"], arrays["returns"], opens[used], plan)
    return Panel(calendar[days], arrays)


def _calendar(stocks: dict[str, Stock]) -> np.ndarray:
    """(D,) datetime64[D]: the days of any stock."""
    found = np.zeros(0, "M8[D]")
    for stock in stocks.values():
        both = np.sort(np.concatenate([found, stock.dates]), kind="stable")  # merges what is sorted
        found = both[np.append(True, both[1:] != both[:-1])]
    return found


def _futures(daily: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """For each horizon (days,) what the next days bring: the sum of returns, the mean range, the root mean
    square of returns. NaN where one of those days is missing."""
    found, total = {}, np.zeros_like(daily)
    for ahead in range(1, max(plan.horizons) + 1):
        coming = np.full_like(daily, np.nan)
        coming[:-ahead] = daily[ahead:]
        total = total + (coming**2 if plan.target == "volatility" else coming)
        mean = total / (1 if plan.target == "return" else ahead)
        found[ahead] = np.sqrt(mean) if plan.target == "volatility" else mean
    return [found[ahead] for ahead in plan.horizons]


def _graphs(neighbors: np.ndarray, padded: np.ndarray, days: np.ndarray, plan: Plan) -> None:
    """Fills in (G·S, k) neighbours of each stock as of each of `days`: of many stocks in blocks of these, of
    few for some days at once."""
    windows = np.lib.stride_tricks.sliding_window_view(padded, plan.correlation_days, axis=0).swapaxes(1, 2)
    stocks, found = padded.shape[1], neighbors.reshape(len(days), -1, plan.neighbors)
    at_once = min(GRAPHS_AT_ONCE, CELLS_AT_ONCE // stocks**2)
    some = 0 if at_once else STOCKS_AT_ONCE
    for graphs in np.array_split(np.arange(len(days)), -(-len(days) // max(at_once, 1))):
        returns = torch.from_numpy(windows[days[graphs]])
        found[graphs] = correlated(returns, plan.neighbors, plan.overlap, some).numpy()


def _scales(scaler: Scaler) -> list[dict[str, float]]:
    """Mean and standard deviation of each column's known values; 1 where they are all equal."""
    mean, std = scaler.scale()
    pairs = zip(mean.tolist(), np.where(std > 1e-12, std, 1.0).tolist(), strict=True)
    return [{"mean": middle, "std": spread} for middle, spread in pairs]


def describe(arrays: dict[str, np.ndarray], tickers: list[str], plan: Plan, train: slice) -> dict[str, Any]:
    """The facts that a model is built from, of the training days alone."""
    seats = arrays["seats"][train]
    features, target = Scaler(len(FEATURES)), Scaler(len(plan.horizons))
    for day in range(0, len(seats), DAYS_AT_ONCE):
        rows = seats[day : day + DAYS_AT_ONCE]
        rows = rows[rows >= 0]
        features.add(arrays["features"][rows])
        target.add(arrays["target"][rows])
    if not np.all(target.count):
        raise UserError("no training day has a target", "--horizons", "use more days, or shorter horizons")
    named = zip(FEATURES, _scales(features), strict=True)
    horizons = zip(plan.horizons, _scales(target), strict=True)
    return {
        "tickers": tickers,
        "features": [{"name": name, **scale} for name, scale in named],
        "target": {"kind": plan.target, "horizons": [{"days": days, **scale} for days, scale in horizons]},
        **{name: value for name, value in plan._asdict().items() if name not in ("target", "horizons")},
    }


def _columns(store: Store, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, F) and targets (n, P), float64, of each stock on each day of a split."""
    first, last = store.splits[split]
    seats = store.arrays["seats"].rows()[first:last]
    rows = seats[seats >= 0]
    return tuple(store.arrays[name].rows()[rows].astype(np.float64) for name in ("features", "target"))


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Adds `r2`: 1 − squared error ÷ variance of the split's own targets, all horizons together."""
    target = _columns(store, split)[1]
    variance = np.nansum((target - np.nanmean(target, 0)) ** 2) / max(np.isfinite(target).sum(), 1)
    known = variance > 0 and "mse_original" in metrics
    return {**metrics, "r2": 1 - metrics["mse_original"] / float(variance)} if known else metrics


def baselines(store: Store, settings: Any, split: str) -> dict[str, dict[str, float]]:
    """What one reaches without a network: the mean, the last day, the last five, and HAR (Corsi 2009),
    a ridge regression on the means of the last day, week and month, one for all stocks."""
    facts = store.facts["target"]
    horizons, daily = facts["horizons"], DAILY[facts["kind"]]
    (seen, past), (x, target) = _columns(store, "train"), _columns(store, split)
    har, has = [daily, 5, 6], np.isfinite(target)
    if not has.any():
        return {}
    steps = np.array([h["days"] if facts["kind"] == "return" else 1 for h in horizons])
    found = {
        "mean": np.tile([h["mean"] for h in horizons], (len(x), 1)),
        "last value": x[:, [daily]] * steps,
        "mean of 5 days": x[:, [5]] * steps,
        "HAR ridge": np.stack([_ridge(seen[:, har], past[:, n], x[:, har]) for n in range(len(horizons))], 1),
    }
    return {name: finish(_errors(guess, target, facts), store, split) for name, guess in found.items()}


def naive(store: Store, split: str) -> float:
    """The loss of the mean of the training targets."""
    facts, means = store.facts["target"], [horizon["mean"] for horizon in store.facts["target"]["horizons"]]
    return _errors(np.array(means), _columns(store, split)[1], facts)["mse"]


def _errors(guess: np.ndarray, target: np.ndarray, facts: dict[str, Any]) -> dict[str, float]:
    """The metrics of a guess (n, P), as the model has them."""
    std = np.array([horizon["std"] for horizon in facts["horizons"]])
    known = np.isfinite(target)
    error, scaled = (guess - target)[known], ((guess - target) / std)[known]
    metrics = {"mse": np.mean(scaled**2), "mae": np.mean(np.abs(scaled))}
    metrics |= {"mse_original": np.mean(error**2), "mae_original": np.mean(np.abs(error))}
    moved = known & (target != 0)
    if facts["kind"] == "return" and moved.any():
        metrics["direction_accuracy"] = np.mean(((guess > 0) == (target > 0))[moved])
    return {name: float(value) for name, value in metrics.items()}


def _ridge(x: np.ndarray, y: np.ndarray, new: np.ndarray, penalty: float = 1.0) -> np.ndarray:
    """Ridge regression on standardised columns: predictions for `new`."""
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    mean, std = x.mean(0), np.maximum(x.std(0), 1e-12)
    z = (x - mean) / std
    weights = np.linalg.solve(z.T @ z + penalty * np.eye(z.shape[1]), z.T @ (y - y.mean()))
    return y.mean() + (new - mean) / std @ weights


def split_days(days: int, sizes: list[int], ahead: int) -> dict[str, list[int]]:
    """Borders of the splits. A split loses its last `ahead` days, whose targets lie in the next one."""
    starts = np.cumsum([0, *sizes[:2]]).tolist()
    ends = [starts[1] - ahead, starts[2] - ahead if sizes[2] else starts[2], starts[2] + sizes[2]]
    return {
        name: [start, max(start, end)]
        for name, start, end in zip(("train", "validation", "test"), starts, ends, strict=True)
    }


def synthesize(folder: Path, settings: Any) -> None:
    """Writes 32 made-up stocks over 900 days, always the same: sectors, a market, calm and wild months."""
    random, stocks, days = np.random.default_rng(21), 32, 900
    sector, log_scale = np.arange(stocks) % 4, np.zeros((days, stocks))
    for day in range(1, days):
        shock = random.standard_normal(4)[sector] + random.standard_normal(stocks)
        log_scale[day] = 0.9 * log_scale[day - 1] + 0.15 * shock
    factors = random.standard_normal((days, 5))
    common = 0.6 * factors[:, :1] + 0.6 * factors[:, 1 + sector]
    returns = 0.01 * np.exp(log_scale) * (common + 0.5 * random.standard_normal((days, stocks)))
    close = 50 * np.exp(np.cumsum(returns, 0))
    opening = close * np.exp(-returns)
    reach = 0.01 * np.exp(log_scale)[:, :, None] * np.abs(random.standard_normal((days, stocks, 2)))
    high = np.maximum(opening, close) * np.exp(reach[:, :, 0])
    low = np.minimum(opening, close) * np.exp(-reach[:, :, 1])
    volume = np.exp(13 + log_scale + 0.3 * random.standard_normal((days, stocks)))
    dates = np.datetime64("2015-01-01") + np.arange(days)
    listed = {
        number: slice(200 if number % 8 == 7 else 0, 700 if number % 8 == 6 else days)
        for number in range(stocks)
    }
    prices = np.stack([opening, high, low, close], 2)
    table = {
        f"stock {n:02d}": Stock(dates[s], prices[s, n], close[s, n], volume[s, n]) for n, s in listed.items()
    }
    plan = Plan(neighbors=6)
    with StoreWriter(folder, WORKLOAD) as writer:
        found = panel(writer, table, plan)
        count = len(found.dates) - 1  # the last day has no target
        sizes = [count * 7 // 10, count * 15 // 100, count * 15 // 100]
        writer.splits, writer.source = split_days(count, sizes, 1), {"kind": "synthetic"}
        writer.facts = describe(found.arrays, list(table), plan, slice(*writer.splits["train"]))
