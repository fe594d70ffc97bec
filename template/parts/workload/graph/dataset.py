"""What a sample is: a trading day with all stocks that were listed then.

Replace it with your own, together with `commands/prepare.py`.

The rows of the store are days of one stock, stock after stock; a day's sample is a span of `window`
rows for each stock. Nothing in a row is later than its day, except `target`.

Shapes: `D` days, `S` stocks, `R` rows, `F` features, `P` horizons, `B` samples, `K` seats for
stocks of a day, `G` graphs, `k` neighbours, `L` days that a correlation looks back.
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
from .prepare.scaling import Scaler
from .settings import WORKLOAD

FEATURES = ("return", "range", "body", "size", "volume", "week", "month")
DAILY = {
    "return": 0,
    "range": 1,
    "volatility": 3,
}  # the feature that is a target's value of one day
WEEK = 5  # trading days
MONTH = 22
VOLUME_DAYS = 20
# Of graphs that are made at once; cells are those of stocks × stocks, more stocks come in blocks.
GRAPHS_AT_ONCE = 16
CELLS_AT_ONCE = 1 << 17
STOCKS_AT_ONCE = 64
DAYS_AT_ONCE = 16
STILL = 1e-9  # a variance that is this share of the squares is rounding


class Samples:
    """The days of one split. See `engine.seams.Samples`."""

    def __init__(self, store: Store, settings: Any, split: str):
        first, last = store.splits[split]
        self.store = store
        self.first = first
        self.last = last
        self.facts = store.facts
        self.rebuild = settings.graph_builder.use_in_training
        # (samples, 2): the day's graph, the graph's day
        self.days = store.arrays["days"].rows()[first:last]
        # (samples, K): row of each stock, −1 for none
        self.seats = store.arrays["seats"].rows()[first:last]
        # (R,): which stock a row is of
        self.stocks = store.arrays["stock"].rows()

    def __len__(self) -> int:
        return len(self.days)

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        """Of each stock of a day: its window, its target, its number and its neighbours."""
        window = self.facts["window"]
        present = indices >= 0
        rows = np.where(present[:, None], self.seats[indices], -1).astype(np.int64)  # (B, K)
        listed = (rows >= 0).astype(np.int64)
        rows = rows.clip(min=0)
        days = self.days[indices].astype(np.int64)
        last_day = Spans(rows, listed, 1)
        spans = {
            "features": Spans((rows - window + 1) * listed, listed * window, window),
            "target": last_day,
            "stock": last_day,
        }

        if self.rebuild:
            back = self.facts["correlation_days"]
            spans["returns"] = Spans(days[:, 1], present * np.int64(back), back)
        else:
            first_row_of_graph = days[:, :1] * len(self.facts["tickers"])
            neighbor_rows = first_row_of_graph + self.stocks[rows]
            spans["neighbors"] = Spans(neighbor_rows * listed, listed, 1)
        return spans

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`features` (B, K, T, F), `target` (B, K, P), `listed` (B, K), `neighbors` (B, K, k).

        Neighbours are seats, −1 for none.
        """
        listed = rows["features"].lengths > 0
        absent = len(self.facts["tickers"])
        stock = rows["stock"].values[:, :, 0].long().masked_fill(~listed, absent)  # (B, K)
        if self.rebuild:
            neighbors = self._rebuilt(rows["returns"].values, stock)
        else:
            stored = rows["neighbors"].values[:, :, 0].long()
            neighbors = stored.masked_fill(~listed.unsqueeze(2), -1)
        return {
            "features": rows["features"].values,
            "target": rows["target"].values[:, :, 0],
            "listed": listed,
            "neighbors": _as_seats(neighbors, stock, absent),
        }

    def _rebuilt(self, returns: Tensor, stock: Tensor) -> Tensor:
        """(B, K, k) the stocks that each stock listens to, −1 for none."""
        neighbors = correlated(returns, self.facts["neighbors"], self.facts["overlap"])
        days, _, count = neighbors.shape
        nobody = neighbors.new_full((days, 1, count), -1)  # neighbours of an empty seat
        neighbors = torch.cat([neighbors, nobody], 1)
        return neighbors.gather(1, stock.unsqueeze(2).expand(-1, -1, count))


def _as_seats(neighbors: Tensor, stock: Tensor, absent: int) -> Tensor:
    """(B, K, k) seats of the stocks `neighbors`; one without a seat today is nobody's neighbour.

    stock: (B, K) of each seat, `absent` in empty ones.
    """
    numbers = torch.arange(stock.shape[1], device=stock.device).expand_as(stock)
    seat_of_stock = stock.new_full((len(stock), absent + 1), -1).scatter_(1, stock, numbers)
    seat_of_stock[:, absent] = -1
    stocks = neighbors.masked_fill(neighbors < 0, absent)
    return seat_of_stock.gather(1, stocks.flatten(1)).view_as(neighbors)


def correlated(returns: Tensor, count: int, overlap: int, at_once: int = 0) -> Tensor:
    """The `count` stocks most correlated with each: (…, S, count) int64, −1 where too few.

    returns (…, L, S), NaN where a stock has none. A pair counts only the days that both have, and
    must have `overlap` of them. A return that never changes correlates with nothing. at_once: so
    many of the stocks against all, for less memory.
    """
    known = ~returns.isnan()
    returns = returns.double()
    is_complete = bool(known.all())  # a host sync, which usually saves three of four products
    if is_complete:
        returns = _standardised(returns)

    stocks = returns.shape[-1]
    at_once = at_once or stocks
    neighbors = []
    for first in range(0, stocks, at_once):
        block = slice(first, first + at_once)
        if is_complete:
            strength = (returns[..., block].mT @ returns).abs_().nan_to_num_(nan=-1)
        else:
            strength = _pairwise(returns, known, overlap, block)
        # Nothing is its own neighbour.
        strength.diagonal(first, -2, -1).fill_(-1)
        best = strength.topk(min(count, stocks), -1)
        neighbors.append(torch.where(best.values < 0, -1, best.indices))
    lacking = max(count - stocks, 0)
    return torch.nn.functional.pad(torch.cat(neighbors, -2), (0, lacking), value=-1)


def _standardised(returns: Tensor) -> Tensor:
    """Returns (…, L, S) without gaps whose products are correlations; NaN if one never changes."""
    centered = returns - returns.mean(-2, keepdim=True)
    squares = centered.square().sum(-2, keepdim=True)
    moves = squares > STILL * returns.square().sum(-2, keepdim=True)
    return torch.where(moves, centered / squares.sqrt(), torch.nan)


def _pairwise(returns: Tensor, known: Tensor, overlap: int, block: slice) -> Tensor:
    """(…, s, S) size of the correlations of a block of stocks with all.

    Over the days that both have of returns (…, L, S); −1 where those are fewer than `overlap`, or
    one never changes.
    """
    returns = returns.where(known, 0.0)
    days = known.double()
    block_returns = returns[..., block]
    block_days = days[..., block]
    shared_days = block_days.mT @ days
    enough = shared_days >= max(overlap, 2)
    shared_days.clamp_(min=1)

    of_block = _spread(block_returns, days, shared_days)
    of_others = of_block
    if block_returns.shape != returns.shape:
        of_others = _spread(returns, block_days, shared_days.mT)
    total, variance, moves = of_block
    other_total, other_variance, other_moves = (values.mT for values in of_others)

    covariance = block_returns.mT @ returns - total * other_total / shared_days
    strength = covariance.abs() / (variance * other_variance).sqrt()
    return torch.where(enough & moves & other_moves, strength, -1.0)


def _spread(returns: Tensor, days: Tensor, shared_days: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums and squared deviations of returns (…, L, S), and whether they change.

    Over the days (…, L, T) that others share, `shared_days` (…, S, T) in number.
    """
    total = returns.mT @ days
    squares = returns.square().mT @ days
    variance = squares - total**2 / shared_days
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
    """All stocks as the arrays of a store, mapped. A sample is a day on which one has a window."""

    dates: np.ndarray  # (samples,) datetime64[D]
    arrays: dict[str, np.ndarray]


class Timeline(NamedTuple):
    """The days of all stocks together, those that are samples, and the graph of each."""

    calendar: np.ndarray  # (D,) datetime64[D]: the days of any stock
    days: np.ndarray  # (samples,) places in the calendar
    sample: np.ndarray  # (D,) number of the sample of a day that is one
    graph: np.ndarray  # (samples,) number of its graph
    graph_days: np.ndarray  # (G,) places in the calendar: a graph knows the days up to it
    seats: int  # the most stocks of a sample


def describe_days(stock: Stock, kind: str) -> np.ndarray:
    """(n, F) features of each day of a stock, from that day and earlier ones."""
    opening, high, low, close = np.log(stock.prices.T)
    adjusted = np.log(stock.adjusted)
    returns = np.diff(adjusted, prepend=adjusted[:1])

    volume = np.log1p(stock.volume)
    known_share = _mean_of_last(~np.isnan(volume), VOLUME_DAYS)
    usual = _mean_of_last(np.nan_to_num(volume), VOLUME_DAYS) / np.maximum(known_share, 1e-9)
    unusual = np.nan_to_num(volume - usual)

    features = [returns, high - low, close - opening, np.abs(returns), unusual]
    daily = features[DAILY[kind]]
    features.append(_mean_of_last(daily, WEEK))
    features.append(_mean_of_last(daily, MONTH))
    return np.stack(features, 1)


def _mean_of_last(values: np.ndarray, count: int) -> np.ndarray:
    """(n,) mean of each value and the ones before it, `count` at most."""
    # Each sum is of its own terms: no error adds up.
    sums = np.convolve(values, np.ones(count))[: len(values)]
    return sums / np.minimum(np.arange(1, len(values) + 1), count)


def panel(writer: StoreWriter, stocks: dict[str, Stock], plan: Plan) -> Panel:
    """Write features, targets, seats and graphs of stocks in the order of their names.

    `dates` are days since 1970. One stock at a time is in memory.
    """
    timeline = _make_timeline(stocks, plan)
    arrays = _create_arrays(writer, stocks, timeline, plan)
    first_row = 0
    taken = np.zeros(len(timeline.days), np.int64)  # seats of each sample
    for number, stock in enumerate(stocks.values()):
        _write_stock(arrays, number, stock, first_row, timeline, plan)
        first_row = _take_seats(arrays["seats"], stock, first_row, taken, timeline, plan)
    _graphs(arrays["neighbors"], arrays["returns"], timeline.graph_days, plan)
    return Panel(timeline.calendar[timeline.days], arrays)


def _make_timeline(stocks: dict[str, Stock], plan: Plan) -> Timeline:
    calendar = _calendar(stocks)
    listed = np.zeros(len(calendar), np.int64)  # stocks of each day
    for stock in stocks.values():
        listed[np.searchsorted(calendar, stock.dates[plan.window - 1 :])] += 1
    days = np.flatnonzero(listed)

    # Periods are counted from 1970: the same for any first day.
    period = calendar.astype(np.int64) // plan.refresh
    opens = np.flatnonzero(np.diff(period, prepend=period[0] - 1))
    graph = np.searchsorted(opens, days, "right") - 1
    used, graph = np.unique(graph, return_inverse=True)
    return Timeline(
        calendar=calendar,
        days=days,
        sample=(listed > 0).cumsum() - 1,
        graph=graph,
        graph_days=opens[used],
        seats=int(listed.max()),
    )


def _create_arrays(
    writer: StoreWriter, stocks: dict[str, Stock], timeline: Timeline, plan: Plan
) -> dict[str, np.ndarray]:
    """Create all arrays; fill in what does not depend on a stock."""
    rows = sum(len(stock.dates) for stock in stocks.values())
    samples = len(timeline.days)
    graphs = len(timeline.graph_days)
    padded_days = plan.correlation_days - 1 + len(timeline.calendar)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "features": ("float32", (rows, len(FEATURES))),
        "target": ("float32", (rows, len(plan.horizons))),
        "stock": ("int32", (rows,)),
        "seats": ("int32", (samples, timeline.seats)),
        "days": ("int32", (samples, 2)),
        "returns": ("float32", (padded_days, len(stocks))),
        "neighbors": ("int32", (graphs * len(stocks), plan.neighbors)),
        "dates": ("int64", (samples,)),
    }
    arrays = {}
    for name, (dtype, shape) in shapes.items():
        arrays[name] = writer.create(name, shape, dtype)

    graph_day = timeline.graph_days[timeline.graph]
    arrays["days"][...] = np.stack([timeline.graph, graph_day], 1)
    arrays["dates"][...] = timeline.calendar[timeline.days].astype(np.int64)
    arrays["returns"][...] = np.nan
    arrays["seats"][...] = -1
    return arrays


def _write_stock(
    arrays: dict[str, np.ndarray],
    number: int,
    stock: Stock,
    first_row: int,
    timeline: Timeline,
    plan: Plan,
) -> None:
    """Write the rows of one stock, and its returns by the calendar."""
    place = np.searchsorted(timeline.calendar, stock.dates)
    features = describe_days(stock, plan.target)

    # By the calendar, so that a horizon over a missing day has no target.
    first_known = 0 if plan.target == "range" else 1  # a stock's first day has no return
    since = place - place[0]
    daily = np.full(since[-1] + 1, np.nan)
    daily[since[first_known:]] = features[first_known:, DAILY[plan.target]]

    rows = slice(first_row, first_row + len(stock.dates))
    arrays["features"][rows] = features
    arrays["target"][rows] = np.stack(_futures(daily, plan), 1)[since]
    arrays["stock"][rows] = number
    # Row `d` of the padded returns is the day L − 1 before day d: `L` rows from `d` on end with it.
    before = plan.correlation_days - 1
    arrays["returns"][before + place[1:], number] = features[1:, 0]


def _take_seats(
    seats: np.ndarray,
    stock: Stock,
    first_row: int,
    taken: np.ndarray,
    timeline: Timeline,
    plan: Plan,
) -> int:
    """Give the stock a seat on each day on which it has a window; return the row behind its last.

    taken: (samples,) seats that stocks before it have; it is updated.
    """
    last_row = first_row + len(stock.dates)
    place = np.searchsorted(timeline.calendar, stock.dates[plan.window - 1 :])
    samples = timeline.sample[place]
    seats[samples, taken[samples]] = np.arange(first_row + plan.window - 1, last_row)
    taken[samples] += 1
    return last_row


def _calendar(stocks: dict[str, Stock]) -> np.ndarray:
    """(D,) datetime64[D]: the days of any stock."""
    calendar = np.zeros(0, "M8[D]")
    for stock in stocks.values():
        both = np.concatenate([calendar, stock.dates])
        both = np.sort(both, kind="stable")  # merges what is sorted
        calendar = both[np.append(True, both[1:] != both[:-1])]
    return calendar


def _futures(daily: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """For each horizon (days,) what the next days bring; NaN where one of those days is missing.

    The sum of returns, the mean range, or the root mean square of returns.
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
            futures[ahead] = total / (1 if plan.target == "return" else ahead)
    return [futures[ahead] for ahead in plan.horizons]


def _graphs(neighbors: np.ndarray, padded: np.ndarray, days: np.ndarray, plan: Plan) -> None:
    """Fill in (G·S, k) neighbours of each stock as of each of `days`.

    Of many stocks in blocks of these, of few for some days at once.
    """
    windows = np.lib.stride_tricks.sliding_window_view(padded, plan.correlation_days, axis=0)
    windows = windows.swapaxes(1, 2)
    stocks = padded.shape[1]
    by_graph = neighbors.reshape(len(days), -1, plan.neighbors)
    graphs_at_once = min(GRAPHS_AT_ONCE, CELLS_AT_ONCE // stocks**2)
    stocks_at_once = 0 if graphs_at_once else STOCKS_AT_ONCE
    num_blocks = -(-len(days) // max(graphs_at_once, 1))
    for graphs in np.array_split(np.arange(len(days)), num_blocks):
        returns = torch.from_numpy(windows[days[graphs]])
        strongest = correlated(returns, plan.neighbors, plan.overlap, stocks_at_once)
        by_graph[graphs] = strongest.numpy()


def _scales(scaler: Scaler) -> list[dict[str, float]]:
    """Mean and standard deviation of each column's known values; 1 where they are all equal."""
    means, stds = scaler.scale()
    stds = np.where(stds > 1e-12, stds, 1.0)
    scales = []
    for mean, std in zip(means.tolist(), stds.tolist(), strict=True):
        scales.append({"mean": mean, "std": std})
    return scales


def describe(
    arrays: dict[str, np.ndarray], tickers: list[str], plan: Plan, train: slice
) -> dict[str, Any]:
    """The facts that a model is built from, of the training days alone."""
    seats = arrays["seats"][train]
    features = Scaler(len(FEATURES))
    target = Scaler(len(plan.horizons))
    for day in range(0, len(seats), DAYS_AT_ONCE):
        rows = seats[day : day + DAYS_AT_ONCE]
        rows = rows[rows >= 0]
        features.add(arrays["features"][rows])
        target.add(arrays["target"][rows])
    if not np.all(target.count):
        remedy = "use more days, or shorter horizons"
        raise UserError("no training day has a target", "--horizons", remedy)

    columns = []
    for name, scale in zip(FEATURES, _scales(features), strict=True):
        columns.append({"name": name, **scale})
    horizons = []
    for days, scale in zip(plan.horizons, _scales(target), strict=True):
        horizons.append({"days": days, **scale})
    facts = plan._asdict()
    del facts["horizons"]
    facts["target"] = {"kind": plan.target, "horizons": horizons}
    return {"tickers": tickers, "features": columns, **facts}


def _columns(store: Store, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, F) and targets (n, P), float64, of each stock on each day of a split."""
    first, last = store.splits[split]
    seats = store.arrays["seats"].rows()[first:last]
    rows = seats[seats >= 0]
    features = store.arrays["features"].rows()[rows]
    target = store.arrays["target"].rows()[rows]
    return features.astype(np.float64), target.astype(np.float64)


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Add `r2`: 1 − squared error ÷ variance of the split's own targets, all horizons together."""
    _, target = _columns(store, split)
    squares = np.nansum((target - np.nanmean(target, 0)) ** 2)
    variance = squares / max(np.isfinite(target).sum(), 1)
    if variance > 0 and "mse_original" in metrics:
        return {**metrics, "r2": 1 - metrics["mse_original"] / float(variance)}
    return metrics


def baselines(store: Store, settings: Any, split: str) -> dict[str, dict[str, float]]:
    """What one reaches without a network: the mean, the last day, the last five, and HAR.

    HAR (Corsi 2009) is a ridge regression on the means of the last day, week and month, one for
    all stocks.
    """
    facts = store.facts["target"]
    horizons = facts["horizons"]
    features, target = _columns(store, split)
    if not np.isfinite(target).any():
        return {}

    daily = DAILY[facts["kind"]]
    week = FEATURES.index("week")
    steps = np.array([horizon["days"] for horizon in horizons])
    if facts["kind"] != "return":
        steps = np.ones_like(steps)
    guesses = {
        "mean": np.tile([horizon["mean"] for horizon in horizons], (len(features), 1)),
        "last value": features[:, [daily]] * steps,
        "mean of 5 days": features[:, [week]] * steps,
        "HAR ridge": _har(store, features, daily),
    }
    metrics = {}
    for name, guess in guesses.items():
        metrics[name] = finish(_errors(guess, target, facts), store, split)
    return metrics


def _har(store: Store, features: np.ndarray, daily: int) -> np.ndarray:
    """(n, P) forecasts of HAR for features (n, F), learnt from the training days."""
    columns = [daily, FEATURES.index("week"), FEATURES.index("month")]
    train_features, train_target = _columns(store, "train")
    forecasts = []
    for target in train_target.T:
        forecasts.append(_ridge(train_features[:, columns], target, features[:, columns]))
    return np.stack(forecasts, 1)


def naive(store: Store, split: str) -> float:
    """The loss of the mean of the training targets."""
    facts = store.facts["target"]
    means = np.array([horizon["mean"] for horizon in facts["horizons"]])
    _, target = _columns(store, split)
    return _errors(means, target, facts)["mse"]


def _errors(guess: np.ndarray, target: np.ndarray, facts: dict[str, Any]) -> dict[str, float]:
    """The metrics of a guess (n, P), as the model has them."""
    std = np.array([horizon["std"] for horizon in facts["horizons"]])
    known = np.isfinite(target)
    error = (guess - target)[known]
    scaled = ((guess - target) / std)[known]
    metrics = {
        "mse": np.mean(scaled**2),
        "mae": np.mean(np.abs(scaled)),
        "mse_original": np.mean(error**2),
        "mae_original": np.mean(np.abs(error)),
    }
    moved = known & (target != 0)
    if facts["kind"] == "return" and moved.any():
        is_right = (guess > 0) == (target > 0)
        metrics["direction_accuracy"] = np.mean(is_right[moved])
    return {name: float(value) for name, value in metrics.items()}


def _ridge(x: np.ndarray, y: np.ndarray, new: np.ndarray, penalty: float = 1.0) -> np.ndarray:
    """Ridge regression on standardised columns: predictions for `new`."""
    known = np.isfinite(y)
    x = x[known]
    y = y[known]
    mean = x.mean(0)
    std = np.maximum(x.std(0), 1e-12)
    z = (x - mean) / std
    weights = np.linalg.solve(z.T @ z + penalty * np.eye(z.shape[1]), z.T @ (y - y.mean()))
    return y.mean() + (new - mean) / std @ weights


def split_days(days: int, sizes: list[int], ahead: int) -> dict[str, list[int]]:
    """Borders of the splits. One loses its last `ahead` days, whose targets lie in the next."""
    starts = np.cumsum([0, *sizes[:2]]).tolist()
    test_size = sizes[2]
    validation_end = starts[2]
    if test_size:
        validation_end -= ahead
    return {
        "train": [starts[0], max(starts[0], starts[1] - ahead)],
        "validation": [starts[1], max(starts[1], validation_end)],
        "test": [starts[2], starts[2] + test_size],
    }


def synthesize(folder: Path, settings: Any) -> None:
    """Write 32 made-up stocks over 900 days, always the same."""
    stocks = _made_up_stocks(32, 900)
    plan = Plan(neighbors=6)
    with StoreWriter(folder, WORKLOAD) as writer:
        made = panel(writer, stocks, plan)
        days = len(made.dates) - 1  # the last day has no target
        sizes = [days * 7 // 10, days * 15 // 100, days * 15 // 100]
        writer.splits = split_days(days, sizes, 1)
        writer.source = {"kind": "synthetic"}
        train = slice(*writer.splits["train"])
        writer.facts = describe(made.arrays, list(stocks), plan, train)


def _made_up_stocks(stocks: int, days: int) -> dict[str, Stock]:
    """Stocks with sectors, a market, calm and wild months; some come later and some leave."""
    random = np.random.default_rng(21)
    sector = np.arange(stocks) % 4
    log_scale = _calm_and_wild(random, sector, days)
    scale = 0.01 * np.exp(log_scale)
    factors = random.standard_normal((days, 5))
    common = 0.6 * factors[:, :1] + 0.6 * factors[:, 1 + sector]
    returns = scale * (common + 0.5 * random.standard_normal((days, stocks)))

    close = 50 * np.exp(np.cumsum(returns, 0))
    opening = close * np.exp(-returns)
    reach = scale[:, :, None] * np.abs(random.standard_normal((days, stocks, 2)))
    high = np.maximum(opening, close) * np.exp(reach[:, :, 0])
    low = np.minimum(opening, close) * np.exp(-reach[:, :, 1])
    prices = np.stack([opening, high, low, close], 2)
    volume = np.exp(13 + log_scale + 0.3 * random.standard_normal((days, stocks)))
    dates = np.datetime64("2015-01-01") + np.arange(days)

    made = {}
    for number in range(stocks):
        first_day = 200 if number % 8 == 7 else 0
        last_day = 700 if number % 8 == 6 else days
        listed = slice(first_day, last_day)
        made[f"stock {number:02d}"] = Stock(
            dates=dates[listed],
            prices=prices[listed, number],
            adjusted=close[listed, number],
            volume=volume[listed, number],
        )
    return made


def _calm_and_wild(random: np.random.Generator, sector: np.ndarray, days: int) -> np.ndarray:
    """(days, stocks) logarithm of the scale of returns: it stays for a while, as do sectors'."""
    stocks = len(sector)
    log_scale = np.zeros((days, stocks))
    for day in range(1, days):
        shock = random.standard_normal(4)[sector] + random.standard_normal(stocks)
        log_scale[day] = 0.9 * log_scale[day - 1] + 0.15 * shock
    return log_scale
