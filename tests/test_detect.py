"""The detector on a frozen encoder: head, losses, score, labelled training and the memory of it."""

import pytest
import torch
from torch import nn

from conftest import detector, equal as same

from fedbook.methods import detect as d
from fedbook.answers import detect as answers
from fedbook.datasets.encoders import image_encoder
from fedbook.engine.errors import UserError
from fedbook.engine.sizes import choose
from fedbook.engine.local import generator
from fedbook.datasets.streets import streets
from fedbook.datasets.world import Boxes

HIGH, LOW = (96, 160), (64, 96)
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def encoder(): return image_encoder("efficientnet-lite0", weights=None)


@pytest.fixture(scope="module")
def data(): return streets(4, "cloudy", HIGH, 3)


def none(): return Boxes(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def some(*rows, labels=None):
    xyxy = torch.tensor(rows, dtype=torch.float32)
    return Boxes(xyxy, torch.tensor(labels or [0] * len(rows)))


def found(boxes, *scores): return d.Detections(*boxes, torch.tensor(scores))


# ---- the network

def test_counts_of_the_method_card():
    small = image_encoder("dinov2-s", weights=None)
    model = d.faster_rcnn(small, 5, 256, 1024)
    count = lambda part: sum(p.numel() for p in part.parameters() if p.requires_grad)
    assert count(model.backbone) == count(model.backbone.fpn) == 2_754_560
    assert count(model.rpn) == 593_935 and count(model.roi_heads) - 4 * 1025 == 13_922_330
    maps = model.backbone(torch.zeros(1, 3, 64, 96))
    sides = [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    assert [tuple(m.shape) for m in maps.values()] == [(1, 256, *side) for side in sides]


def test_maps_have_the_strides_that_roialign_expects(encoder):
    maps = detector(encoder).backbone(torch.zeros(2, 3, 96, 160))
    sides = [(24, 40), (12, 20), (6, 10), (3, 5), (2, 3)]
    assert [tuple(m.shape) for m in maps.values()] == [(2, 16, *side) for side in sides]


def test_the_body_stays_the_same_in_training(encoder, data):
    model = detector(encoder)
    state, head = {k: t.clone() for k, t in encoder.module.state_dict().items()}, d.head_state(model)
    model.train()
    still = lambda: not any(m.training for m in model.backbone.body.modules())
    assert still() and model.backbone.fpn.training and model.rpn.training
    d.supervised_epoch(model, data, generator(0), lr=1e-3)
    assert same(state, encoder.module.state_dict()) and still()
    assert all(p.grad is None for p in model.backbone.body.parameters())
    assert all(not torch.equal(t, head[name]) for name, t in d.head_state(model).items())


def test_unfrozen_is_a_copy(encoder, data):
    model, before = detector(encoder, frozen=False), encoder.weights_hash
    with d.seeded(generator(0)): sum(d.losses(model, data.images[:1], data.boxes[:1]).values()).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.backbone.body.parameters())
    assert encoder.weights_hash == before and not any(p.requires_grad for p in encoder.module.parameters())
    assert not any(name.startswith(d.BODY) for name in d.head_state(model))


def test_heads_can_be_replaced(encoder, data):
    class Box(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(16 * 49, 8)

        def forward(self, x): return self.lin(x.flatten(1))

    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    from torchvision.models.detection.rpn import RPNHead

    rpn, box, last = RPNHead(16, 3), Box(), FastRCNNPredictor(8, 6)
    model = d.faster_rcnn(encoder, 5, 16, rpn_head=rpn, box_head=box, box_predictor=last,
                          rpn_post_nms_top_n_train=7)
    assert model.rpn.head is rpn and model.roi_heads.box_head is box and model.roi_heads.box_predictor is last
    assert model.rpn._post_nms_top_n["training"] == 7
    assert all(torch.isfinite(v) for v in d.losses(model, data.images[:1], data.boxes[:1]).values())


def test_inputs_are_padded_never_resized():
    inputs = d.Inputs(torch.tensor([0.5, 0.0, 0.25]), torch.tensor([0.5, 1.0, 2.0]))
    images = [torch.full((3, 33, 64), 255, dtype=torch.uint8), torch.zeros(3, 40, 65, dtype=torch.uint8)]
    for mode in (True, False):
        batch, targets = inputs.train(mode)(images, ["kept"])
        assert batch.tensors.shape == (2, 3, 64, 96) and batch.image_sizes == [(33, 64), (40, 65)]
        assert targets == ["kept"]
        one, two = batch.tensors
        assert torch.allclose(one[:, 0, 0], torch.tensor([1.0, 1.0, 0.375])) and one[:, 33:].abs().max() == 0
        assert torch.allclose(two[:, 39, 64], torch.tensor([-1.0, 0.0, -0.125]))
        assert two[:, :, 65:].abs().max() == 0


def test_a_batch_finds_what_each_picture_finds_alone(sure, data):
    together = d.detect(sure, data.images)
    for one, image in zip(together, data.images):
        alone, = d.detect(sure, [image])
        assert len(one.scores) == len(alone.scores) > 0 and torch.allclose(one.xyxy, alone.xyxy, atol=0.01)


EMPTY = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)


@pytest.mark.parametrize("wish, words", [
    (lambda e, m: d.faster_rcnn(e, 0), "n_classes=0"),
    (lambda e, m: d.faster_rcnn(e, True), "n_classes=True"),
    (lambda e, m: d.faster_rcnn(e, 2, anchors=(1, 2)), "anchors"),
    (lambda e, m: d.detect(m, [torch.zeros(3, 31, 64, dtype=torch.uint8)]), "32 pixels"),
    (lambda e, m: d.detect(m, [torch.zeros(1, 64, 64, dtype=torch.uint8)]), "uint8 tensor"),
    (lambda e, m: d.detect(m, torch.zeros(2, 3, 64, 64)), "float32"),
    (lambda e, m: d.losses(m, [], []), "empty"),
    (lambda e, m: d.losses(m, EMPTY, []), "one per picture"),
    (lambda e, m: d.losses(m, EMPTY, [some([0, 0, 9, 9], labels=[5])]), "label 5"),
    (lambda e, m: d.losses(m, EMPTY, [some([70, 0, 90, 9])]), r"boxes\[0\]\[0\]"),
    (lambda e, m: d.mean_average_precision([], [none()]), "detections has 0"),
    (lambda e, m: d.mean_average_precision([found(some([0, 0, 9, 9], labels=[3]), 0.5)], [none()], 3),
     "label 3")])
def test_bad_input(encoder, sure, wish, words):
    with pytest.raises(UserError, match=words): wish(encoder, sure)


def test_an_encoder_of_one_size_is_refused():
    class Clip: name = "clip-vit-b32"
    with pytest.raises(UserError, match="one size"): d.FrozenPyramid(Clip())


# ---- the head's state

def test_head_state_goes_round(encoder):
    one, two = detector(encoder, 0), detector(encoder, 1)
    state = d.head_state(one)
    assert state and not any("body" in name for name in state) and not same(state, d.head_state(two))
    d.load_head(two, state)
    assert same(d.head_state(two), state)
    next(iter(state.values())).fill_(7)
    assert not same(d.head_state(one), state) and not same(d.head_state(two), state)


def test_wrong_states_are_refused_and_change_nothing(encoder):
    model = detector(encoder)
    before = d.head_state(model)
    name = next(iter(before))
    changed = {k: v + 1 for k, v in before.items()}
    bad = [({k: v for k, v in changed.items() if k != name}, "missing"),
           ({**changed, "extra": torch.zeros(1)}, "unknown"),
           ({**changed, name: torch.zeros(1, 1, 1)}, "another shape"),
           ({**before, d.BODY + "x": torch.zeros(1)}, "unknown")]
    for state, words in bad:
        with pytest.raises(UserError, match=words): d.load_head(model, state)
        assert same(d.head_state(model), before)


# ---- losses, boxes, score

def test_seeded_restores_and_follows_the_generator():
    before, g = torch.get_rng_state(), generator(5)
    with d.seeded(g): first = torch.rand(3)
    with d.seeded(g): second = torch.rand(3)
    with d.seeded(generator(5)): again = torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_background_only(encoder, sure, data):
    with d.seeded(generator(0)): parts = d.losses(sure, data.images[:2], [none(), none()])
    assert parts.keys() == {"objectness", "proposal", "class", "box"}
    assert parts["proposal"].item() == parts["box"].item() == 0
    assert all(torch.isfinite(v) for v in parts.values())


def test_training_lowers_the_loss_and_depends_on_its_seed_alone(encoder, data):
    def run(s):
        model, g = detector(encoder), generator(s)
        optimiser = d.detector_optimiser(model, 2e-3)
        one_pass = lambda: d.supervised_epoch(model, data, g, optimiser=optimiser, scales=(0.6, 1.0))
        passes = [one_pass() for _ in range(4)]
        return [means["total"] for means in passes], d.head_state(model)

    before = torch.get_rng_state()
    (one, state), (two, again), (_, other) = run(0), run(0), run(1)
    assert one == two and same(state, again) and not same(state, other)
    assert one[-1] < one[0] and torch.equal(before, torch.get_rng_state())


def test_penalty_is_added(encoder, data):
    model = detector(encoder)
    far = lambda m: sum(p.sum() for p in d.trainable(m)) * 0 + 100
    means = d.supervised_epoch(model, data.take([0]), generator(0), lr=0.0, penalty=far)
    four = sum(means[k] for k in ("objectness", "proposal", "class", "box"))
    assert means["total"] == pytest.approx(100 + four, rel=1e-5)


def test_boxes_found_are_in_the_picture_and_thresholds_nest(sure, data):
    many, few = d.detect(sure, data.images, least=0.01), d.detect(sure, data.images, least=0.1)
    assert sum(len(f.scores) for f in many) > sum(len(f.scores) for f in few) > 0
    for m, f in zip(many, few):
        assert (f.scores > 0.1).all() and (m.xyxy >= 0).all()
        assert (m.xyxy[:, 2] <= HIGH[1]).all() and (m.xyxy[:, 3] <= HIGH[0]).all()
        assert ((m.labels >= 0) & (m.labels < 5)).all()
        assert set(map(tuple, f.xyxy.tolist())) <= set(map(tuple, m.xyxy.tolist()))
    assert sure.roi_heads.score_thresh == 0.01


def test_hits():
    truth = some([0, 0, 10, 10], [20, 0, 30, 10], labels=[0, 1])
    four = some([0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 30, 10], [20, 0, 30, 10], labels=[0, 0, 0, 1])
    detections = found(four, 0.9, 0.8, 0.7, 0.6)
    assert d.hits(detections, truth).tolist() == [True, False, False, True]
    assert d.hits(detections, truth, 0.95).tolist() == [False, True, False, True]
    assert d.hits(detections, none()).tolist() == [False] * 4 and d.hits(found(none()), truth).shape == (0,)


def test_map_of_perfect_and_of_nothing():
    truth = [some([0, 0, 20, 20], [30, 30, 60, 80], labels=[0, 2]), none(), some([5, 5, 40, 40], labels=[1])]
    perfect = [found(b, *[0.9] * len(b.labels)) for b in truth]
    nothing = [found(none())] * 3
    assert d.mean_average_precision(perfect, truth) == 1
    assert d.mean_average_precision(perfect, truth, iou=None) == 1
    assert d.mean_average_precision(nothing, truth) == 0 == d.mean_average_precision(nothing, [none()] * 3)
    wrong = [f._replace(labels=(f.labels + 1) % 3) for f in perfect]
    assert d.mean_average_precision(wrong, truth, 3) == 0


def test_map_by_hand_and_in_any_order():
    truth = [some([0, 0, 20, 20], [40, 0, 60, 30]), some([0, 0, 10, 10])]
    three = [found(some([1, 0, 20, 20], [70, 40, 90, 60]), 0.9, 0.8), found(some([0, 0, 10, 9]), 0.7)]
    value = d.mean_average_precision(three, truth)
    assert value == pytest.approx((34 * 1.0 + 33 * 2 / 3) / 101, abs=1e-5)
    assert d.mean_average_precision(three[::-1], truth[::-1]) == pytest.approx(value)
    assert d.mean_average_precision(three, truth, iou=0.95) < value


def test_total_is_weighted_by_pictures(monkeypatch, sure):
    tests = {"cloudy": streets(1, "cloudy", LOW), "rainy": streets(3, "rainy", LOW)}
    monkeypatch.setattr(d, "detect", lambda model, images, batch: [None] * len(images))
    by_pictures = lambda detections, boxes, n, iou: {1: 0.2, 3: 0.6}[len(detections)]
    monkeypatch.setattr(d, "mean_average_precision", by_pictures)
    assert d.score_domains(sure, tests) == pytest.approx({"cloudy": 0.2, "rainy": 0.6, "total": 0.5})


@pytest.mark.parametrize("tests, said", [({}, "tests has no pictures;"), (dict(rainy=0), "no pictures of rainy;"),
                                         (dict(cloudy=1, rainy=0, snowy=0), "no pictures of rainy, snowy;")])
def test_domains_without_pictures_are_not_scored(sure, data, tests, said):
    with pytest.raises(UserError, match=said):
        d.score_domains(sure, {name: data.take(range(n)) for name, n in tests.items()})


def test_training_stops_at_the_first_loss_that_is_not_finite(encoder, data):
    model = detector(encoder)
    with torch.no_grad(): model.roi_heads.box_predictor.cls_score.bias[0] = float("nan")
    before = {name: t.clone() for name, t in d.head_state(model).items()}
    with pytest.raises(UserError, match="the loss is not finite .*class nan.*lower the learning rate"):
        d.supervised_epoch(model, data, generator(0))
    after = d.head_state(model)
    assert all(torch.equal(after[name], t) for name, t in before.items() if "bias" not in name)


# ---- memory

def test_memory(encoder):
    high, low = streets(1, "cloudy", (192, 320)), streets(1, "cloudy", (96, 160))
    saved, peak = {}, {}
    for frozen in (False, True):
        model = detector(encoder, frozen=frozen)
        for name, data in (("high", high), ("low", low)):
            m = d.step_memory(model, data.images, data.boxes)
            saved[frozen, name], peak[frozen, name] = m["saved"], m["peak"]
        assert m == d.step_memory(model, low.images, low.boxes)
        assert all(p.grad is None for p in model.parameters())
    assert 0.2 < saved[False, "low"] / saved[False, "high"] < 0.4
    assert saved[True, "high"] < 0.3 * saved[False, "high"] and saved[True, "low"] < saved[True, "high"]
    assert peak[False, "high"] > saved[False, "high"]
    assert peak[True, "low"] < peak[True, "high"] < peak[False, "high"]


# ---- labelled training

def test_training_view_moves_boxes_along(data):
    image, boxes = data.images[0], data.boxes[0]
    seen = set()
    for s in range(12):
        out, (xyxy, labels) = d.training_view(image, boxes, generator(s), scales=(0.5, 0.5))
        assert out.shape == (3, 48, 80) and torch.equal(labels, boxes.labels)
        ways = {"straight": boxes.xyxy / 2, "turned": d.flipped(image, boxes.xyxy)[1] / 2}
        seen.add(next((way for way, right in ways.items() if torch.allclose(xyxy, right)), "wrong"))
    assert seen == {"straight", "turned"}


def test_the_chapters_detector_depends_on_sizes_and_seed_alone(encoder):
    sizes = choose(d.profiles, "smoke")
    street = d.street_for(sizes, 1)
    assert len(street.server) == sizes.server_images and street.server.images.shape[2:] == sizes.high
    assert [len(c) for c in street.clients] == [sizes.client_images] * 3
    start, one, two = (d.head_state(make) for make in (
        d.new_detector(encoder, 5, sizes, 1), d.trained_detector(encoder, street, sizes, 1),
        d.trained_detector(encoder, street, sizes, 1)))
    assert same(one, two) and not same(start, one)
    assert same(start, d.head_state(d.new_detector(encoder, 5, sizes, 1, rpn_batch_size_per_image=8)))


# ---- the rest

def test_answers():
    answer = answers.suppress(torch.tensor([[0., 0, 10, 10], [1, 0, 11, 10]]), torch.tensor([0.1, 0.2]), 0.5)
    assert answer == [1]
    assert answers.boxes_from(torch.zeros(1, 4), torch.tensor([[1.0, 2, 5, 9]])).tolist() == [[1, 2, 5, 9]]
    assert answers.recall_at(torch.tensor([True, False, True]), torch.tensor([0.9, 0.8, 0.7]), 4, 0.6) == 0.5
