"""The workload `vision`: augmentation, the network, metrics, and that all of it repeats exactly."""
# ruff: noqa: F811 - the fixture `place` is imported

import functools
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from importing import imported
from ranks import run_ranks
from rendering import render, scratch
from running import check_run, evaluations, losses, weights
from sizes import TINY
from sklearn import metrics as reference
from synthetic import place  # noqa: F401
from workload import Workload

VISION = Workload("vision")
ALL = {
    **{"shift": "3", "crop": "0.4", "color": "0.3", "cutout": "0.2", "mixup": "0.3"},
    **{"cutmix": "0.4"},
}
ALL = [word for name, value in ALL.items() for word in (f"--augment.{name}", value)]
CROPPED = (*ALL, "--data.image_size", "24")
SMALL = ("--data.batch_size", "16", "--data.fraction", "0.019", "--data.image_size", "24", *ALL)


@functools.cache
def store():
    folder = scratch() / "shapes"
    VISION.module("dataset").synthesize(folder, VISION.settings())
    return VISION.store(folder)


def read(numbers, *flags, epoch=0, training=True):
    """The batch of these training samples, read without a loader."""
    samples = VISION.samples(store(), "train", *flags)
    samples.training = training
    rows_of = VISION.module("engine.loading.rows")
    indices = np.array(numbers)
    rows = {}
    for name, spans in samples.spans(indices, epoch).items():
        rows[name] = rows_of.gather(rows_of.mapped(store().arrays[name]), spans)
    return rows_of.deliver(samples, rows, indices, epoch, torch.device("cpu"))


def assert_equal(batch, other, rows=slice(None), other_rows=slice(None)):
    assert batch.keys() == other.keys()
    for name in batch:
        assert torch.equal(batch[name][rows], other[name][other_rows]), name


# --- the same images


def test_an_image_is_changed_in_the_same_way_whatever_batch_it_is_in(monkeypatch):
    together = read(range(40), *CROPPED)
    with monkeypatch.context() as patch:  # larger images are changed a few at a time
        module = VISION.module("augment")
        patch.setattr(module, "TOGETHER", 2 * 32 * 32)
        in_parts = Mock(wraps=module.resample_in_cache)
        patch.setattr(module, "resample_in_cache", in_parts)
        assert_equal(read(range(40), *CROPPED), together)
        assert in_parts.call_count == 2  # of images and of their partners
    assert_equal(read([7], *CROPPED), together, other_rows=[7])
    assert_equal(read([31, 3, -1, 8], *CROPPED), together, [0, 1, 3], [31, 3, 8])
    images = [together["image"]]
    images.append(read(range(40), *CROPPED, epoch=1)["image"])
    images.append(read(range(40), *CROPPED, "--reproducibility.seed", "3")["image"])
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(images[first], images[second])


@pytest.mark.parametrize(
    ("loader", "workers"), [("chunk", None), ("dataloader", "0"), ("dataloader", "2")]
)
def test_every_loader_and_number_of_ranks_sees_the_same_images(loader, workers):
    """Also the padding at the end of an epoch, which batch norm sees."""
    flags = (*SMALL, "--data.num_workers", workers) if workers else SMALL
    expected = VISION.batches(store(), "train", *SMALL, train=True)
    made = batches(loader, flags)
    for start in (0, 3):
        for batch, whole in zip(made(0, start), expected[start:], strict=True):
            assert_equal(batch, whole)
    for world in (2, 4):
        parts = [batches(loader, flags, rank, world)(0) for rank in range(world)]
        for whole, *shares in zip(expected, *parts, strict=True):
            joined = {name: torch.cat([share[name] for share in shares]) for name in whole}
            is_present = whole["present"]
            assert_equal(joined, whole, is_present, is_present)


def batches(loader, flags, rank=0, world=1):
    """A function from (epoch, start) to the batches of one of several ranks."""
    settings = VISION.settings(*flags, loader=loader)
    settings = settings.replaced({"data.batch_size": settings.data.batch_size // world}, "test")
    samples = VISION.samples(store(), "train", *SMALL)
    samples.training = True
    make_order = VISION.module("engine.training.project", loader=loader).make_order
    order = make_order(samples, settings, rank, world, True)
    make = VISION.module("engine.loading.loader", loader=loader).Loader

    def epoch(number, start=0):
        made = make(samples, store(), settings, order, torch.device("cpu"))
        copies = []
        for batch in made.epoch(number, start):
            copies.append({name: values.clone() for name, values in batch.items()})
        made.close()
        return copies

    return epoch


RUN = (
    *TINY["vision"],
    *SMALL,
    *("--data.fraction", "0.015", "--model.width", "4", "--model.depth", "2"),  # 4 steps an epoch
    *("--training.max_steps", "12", "--monitor.every_steps", "1", "--evaluation.fraction", "0.1"),
)


def test_a_run_that_stops_after_each_step_equals_one_that_does_not(place):
    """Losses, evaluations, weights and statistics, bit for bit, with all switches."""
    whole = place("vision")
    parts = place("vision")
    check_run(VISION.project(), "train", *RUN, cwd=whole)
    check_run(VISION.project(), "train", *RUN, "--max-steps", "1", cwd=parts)
    for step in range(2, 13):
        check_run(VISION.project(), "train", "--resume", "--max-steps", str(step), cwd=parts)
    assert losses(parts) == losses(whole)
    assert evaluations(parts) == evaluations(whole)
    assert weights(parts) == weights(whole)
    assert "network.groups.0.norm1.running_var" in weights(whole)


def test_two_ranks_equal_their_own_resume(place):
    """Statistics of batch norm are those of rank 0, also in evaluations of rank 1."""
    project = render(workload="vision", distributed="ddp")
    whole = place("vision")
    parts = place("vision")
    of_two = ("train", *RUN, "--data.batch_size", "8")
    for folder, words in (
        (whole, of_two),
        (parts, (*of_two, "--max-steps", "6")),
        (parts, ("train", "--resume")),
    ):
        for result in run_ranks(project, *words, cwd=folder):
            assert result.code == 0, result.err
    assert losses(parts) == losses(whole)
    assert evaluations(parts) == evaluations(whole)
    assert weights(parts) == weights(whole)


# --- what changes


def drawn(index, epoch=0, seed=42):
    """The numbers from 0 to 1 that are drawn for an image, by name."""
    module = VISION.module("augment")
    numbers = module.draw_all(seed, epoch, torch.tensor([index]))
    return {name: value.item() for name, value in numbers.items()}


ONLY = ["--augment.shift", "0", "--augment.flip", "false", "--augment.label_smoothing", "0"]


def original(numbers):
    return read(numbers, training=False)["image"].float()


def test_each_switch_does_what_it_says():
    """On images of the synthetic shapes, against NumPy."""
    numbers = range(32)
    images = original(numbers)
    shifted = read(numbers, *ONLY, "--augment.shift", "3", "--augment.flip", "true")["image"]
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (3, 3), (3, 3)), "symmetric")
    flipped = 0
    for number in numbers:
        random = drawn(number)
        top = int(random["shift_y"] * 7)
        left = int(random["shift_x"] * 7)
        if random["flip"] < 0.5:
            flipped += 1
            left = 6 - left
        expected = padded[number][:, top : top + 32, left : left + 32]
        if random["flip"] < 0.5:
            expected = expected[:, :, ::-1]
        np.testing.assert_allclose(shifted[number], expected, atol=0.02)
    assert 8 <= flipped <= 24

    cropped = read(numbers, *ONLY, "--data.image_size", "24")["image"]
    for number in numbers:
        top = int(drawn(number)["top"] * 9)
        left = int(drawn(number)["left"] * 9)
        expected = images[number, :, top : top + 24, left : left + 24]
        torch.testing.assert_close(cropped[number], expected, rtol=0, atol=0.02)

    hidden = read(numbers, *ONLY, "--augment.cutout", "0.25")["image"]
    changed = (hidden - images).abs().sum(1) > 0.1
    assert (hidden.movedim(1, -1)[changed] == 127).all()
    assert (changed.sum((1, 2)) <= 8 * 8).all()
    assert changed.sum((1, 2)).max() > 50

    colored = read(numbers, *ONLY, "--augment.color", "0.4")["image"]
    assert colored.min() >= 0
    assert colored.max() <= 255
    relative = colored.mean((1, 2, 3)) / images.mean((1, 2, 3))
    assert 0.6 <= relative.min() < 0.8
    assert 1.2 < relative.max() <= 1.4

    zoomed = read(numbers, *ONLY, "--augment.crop", "0.3")["image"]
    assert zoomed.shape == images.shape
    assert zoomed.std() > 0.5 * images.std()
    assert ((zoomed - images).abs().mean((1, 2, 3)) > 5).sum() > 16


def test_mixed_images_have_the_targets_of_both():
    """The weight of a target is that of the image's pixels; partners are among those in use."""
    half = ("--augment.mixup", "0.5", "--augment.cutmix", "0.5", "--data.fraction", "0.5")
    numbers = range(0, 64, 2)
    batch = read(numbers, *ONLY, *half)
    samples = VISION.samples(store(), "train", *half)
    partners = samples.others(np.array(numbers), 0, "partner")
    assert (partners % 2 == 0).all(), "a fraction of 0.5 has each second image"
    assert len(set(partners)) > 24
    images = original(numbers)
    others = original(partners)
    blended = 0
    for row, number in enumerate(numbers):
        own = batch["own_weight"][row]
        assert batch["partner_target"][row] == read([partners[row]])["target"]
        if drawn(number)["kind_of_mix"] < 0.5:
            blended += 1
            expected = own * images[row] + (1 - own) * others[row]
        else:
            is_own = (batch["image"][row] - images[row]).abs().sum(0) < 0.1
            expected = torch.where(is_own, images[row], others[row])
            assert is_own.float().mean() == pytest.approx(own.item(), abs=0.02)
        torch.testing.assert_close(batch["image"][row], expected, rtol=0, atol=0.02)
    assert 8 <= blended <= 24


@torch.no_grad()
def test_evaluation_sees_the_center_and_the_mirror_image():
    flags = (*TINY["vision"], "--data.image_size", "24")
    batch = read(range(6), training=False)
    model = model_of(*flags).eval()
    logits = model.logits(batch)
    alone = model_of(*flags, "--augment.flip", "false").eval()
    image = batch["image"][:, :, 4:28, 4:28]
    torch.testing.assert_close(alone.logits({"image": image}), alone.logits(batch))
    twice = [alone.logits({"image": image}), alone.logits({"image": image.flip(3)})]
    torch.testing.assert_close(logits, sum(twice) / 2)
    with pytest.raises(Exception, match=r"32 × 32 pixels, fewer than 40.*--size 40"):
        model_of("--data.image_size", "40")


def model_of(*flags, facts=None):
    torch.manual_seed(0)
    build = VISION.module("model").build_model
    return build(VISION.settings(*flags), facts or store().facts)


# --- the network


@torch.no_grad()
def test_the_stem_whitens_the_training_images():
    """Its channels have no correlation, and stay as they are."""
    model = model_of()
    network = model.network
    assert not network.stem.weight.requires_grad
    images = (original(range(2000)) - model.mean) / model.std
    channels = network.stem(images)[:, :12].movedim(1, -1).flatten(0, -2).double()
    covariance = torch.cov(channels.T)
    values = covariance.diagonal()
    assert (covariance - values.diag()).abs().max() < 0.05
    assert 0.9 < values.max() < 1.1


@torch.no_grad()
def test_a_mean_over_labels_is_what_scikit_learn_says():
    """An image may have any number of labels."""
    random = np.random.default_rng(0)
    facts = store().facts | {"multilabel": True}
    model = model_of(facts=facts).eval()
    logits = torch.tensor(random.normal(0, 2, (300, 5)), dtype=torch.float32)
    target = torch.tensor(random.random((300, 5)) < 0.3).to(torch.uint8)
    target[:, 0] |= logits[:, 0] > 1
    model.logits = lambda batch: logits[: len(batch["target"])]
    present = torch.arange(300) < 290
    output = model({"target": target, "present": present})
    truth = target[:290].numpy()
    scores = logits[:290].numpy()
    metrics = {name: float(total / count) for name, (total, count) in output.metrics.items()}
    assert metrics["accuracy"] == pytest.approx((truth == (scores > 0)).mean())
    assert metrics["exact_match"] == pytest.approx((truth == (scores > 0)).all(1).mean())
    added = VISION.module("engine.training.evaluation").added
    sums = {name: added(groups) for name, groups in output.by_group.items()}
    metrics = VISION.module("dataset").finish(metrics, SimpleNamespace(facts=facts), "test", sums)
    assert metrics["roc_auc"] == pytest.approx(reference.roc_auc_score(truth, scores), abs=1e-3)
    expected = reference.average_precision_score(truth, scores)
    assert metrics["pr_auc"] == pytest.approx(expected, abs=1e-3)
    title, *_ = VISION.module("classes").class_table(sums, [*"abcde"])
    assert title == "## Classes of all 290 rows"
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        logits[:290], target[:290].float()
    )
    assert output.loss == pytest.approx(losses.item(), rel=1e-5)


class OfTimm(torch.nn.Module):
    """What timm makes: a network with the scale of its pixels."""

    def __init__(self, channels, classes):
        super().__init__()
        self.layer = torch.nn.Conv2d(channels, classes, 1)
        self.pretrained_cfg = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.2)}

    def forward(self, x):
        return self.layer(x).mean((2, 3))


def fake_timm(monkeypatch, fixed=False):
    """An imitation of the package; returns the options of each network that it makes."""
    made = []

    def create_model(name, **options):
        made.append({"name": name, **options})
        if name == "resent50":
            raise RuntimeError("Unknown model (resent50)")
        return OfTimm(options["in_chans"], options["num_classes"])

    value = lambda name, key: fixed and key == "fixed_input_size"  # noqa: E731
    fake = SimpleNamespace(create_model=create_model, get_pretrained_cfg_value=value)
    monkeypatch.setitem(sys.modules, "timm", fake)
    return made


def test_a_network_of_timm_gets_its_own_scale_and_weights(monkeypatch):
    made = fake_timm(monkeypatch)
    timm = ("--model.timm", "resnet50")
    model = model_of(*timm)
    sizes = {"name": "resnet50", "in_chans": 3, "num_classes": 5}
    assert made == [{**sizes, "pretrained": True}]
    image = store().arrays["image"].rows()[:4]
    scaled = (torch.tensor(image) / 255 - torch.tensor([0.4, 0.5, 0.6])) / 0.2
    expected = model.network(scaled.movedim(-1, 1)).detach()
    batch = read(range(4), training=False)
    torch.testing.assert_close(model.train().logits(batch).detach(), expected)

    model_of(*timm, "--model.timm_weights", "none")
    model_of(*timm, "--model.timm_weights", "weights.safetensors")
    file = {"pretrained_cfg_overlay": {"file": "weights.safetensors"}}
    assert made[1:] == [{**sizes, "pretrained": False}, {**sizes, "pretrained": True, **file}]

    made = fake_timm(monkeypatch, fixed=True)  # such as a vision transformer
    grey = store().facts | {"shape": [32, 32, 1]}
    model = model_of(*timm, "--data.image_size", "24", facts=grey)
    assert made[0]["img_size"] == (24, 24)
    assert model.mean.flatten().tolist() == pytest.approx([127.5])


def test_a_network_that_timm_cannot_make_is_one_line(monkeypatch):
    fake_timm(monkeypatch)
    with pytest.raises(Exception, match=r"network .Unknown model .*model.timm resent50.*name"):
        model_of("--model.timm", "resent50")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu126")
    monkeypatch.setitem(sys.modules, "timm", None)
    command = r'pip install timm torchvision "torch==2.13.0\+cu126" --extra-index-url .*/cu126$'
    with pytest.raises(Exception, match=rf"timm cannot be imported.*: {command}"):
        model_of("--model.timm", "resnet50")


def test_the_learning_rate_is_that_of_the_network():
    def rate(*flags):
        settings = VISION.settings(*flags)
        return settings.optimizer.learning_rate, settings.origins["optimizer.learning_rate"]

    assert rate() == (0.012, "auto")
    assert rate("--model.timm", "resnet50") == (0.0005, "auto")
    set_by_hand = ("--optimizer.learning_rate", "0.1")
    assert rate("--model.timm", "resnet50", *set_by_hand) == (0.1, set_by_hand[0])
    with pytest.raises(Exception, match=r"augment.cutmix .*mixup and cutmix together are more"):
        VISION.settings("--augment.mixup", "0.7", "--augment.cutmix", "0.7")


def test_norms_with_frozen_weights_keep_their_statistics():
    freeze = imported(render(workload="vision", extras=["finetune"]), "hooks.finetune").freeze
    model = model_of(*TINY["vision"])
    freeze(model, ["network.groups.0.norm*", "network.groups.1.norm1.bias"])
    model.train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(read(range(16)))
    after = dict(model.named_buffers())
    changed = {name.rpartition(".")[0] for name in before if (before[name] != after[name]).any()}
    assert "network.groups.1.norm1" in changed
    assert not any(name.startswith("network.groups.0") for name in changed)
