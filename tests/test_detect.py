import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from fedbook import detect as d
from fedbook.answers import detect as answers
from fedbook.encoders import image_encoder
from fedbook.lab import UserError
from fedbook.local import build, generator
from fedbook.streets import Boxes, streets

HIGH, LOW = (96, 160), (64, 96)
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def encoder(): return image_encoder("efficientnet-lite0", weights=None)


@pytest.fixture(scope="module")
def data(): return streets(4, "cloudy", HIGH, 3)


def detector(encoder, seed=0, **options):
    return build(lambda: d.faster_rcnn(encoder, 5, 16, 16, **options), seed)


@pytest.fixture(scope="module")
def sure(encoder, data):
    "A detector that has learned a little, and is made to be sure of what it sees."
    model, g = detector(encoder), generator(1)
    optimiser = d.adamw(model, 3e-3)
    for _ in range(6): d.supervised_epoch(model, data, g, optimiser=optimiser)
    model.roi_heads.score_thresh = 0.01
    return model


def none(): return Boxes(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def some(*rows, labels=None):
    xyxy = torch.tensor(rows, dtype=torch.float32)
    return Boxes(xyxy, torch.tensor(labels or [0] * len(rows)))


def found(boxes, *scores): return d.Found(*boxes, torch.tensor(scores))


def same(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---- the network

def test_counts_of_the_method_card():
    small = image_encoder("dinov2-s", weights=None)
    model = d.faster_rcnn(small, 5, 256, 1024)
    count = lambda part: sum(p.numel() for p in part.parameters() if p.requires_grad)
    assert count(model.backbone) == count(model.backbone.fpn) == 2_754_560
    assert count(model.rpn) == 593_935 and count(model.roi_heads) - 4 * 1025 == 13_922_330
    maps = model.backbone(torch.zeros(1, 3, 64, 96))
    assert [tuple(m.shape) for m in maps.values()] == [(1, 256, 64 // s, -(-96 // s)) for s in (4, 8, 16, 32, 64)]


def test_maps_have_the_strides_that_roialign_expects(encoder):
    maps = detector(encoder).backbone(torch.zeros(2, 3, 96, 160))
    assert [tuple(m.shape) for m in maps.values()] == [(2, 16, 24, 40), (2, 16, 12, 20), (2, 16, 6, 10), (2, 16, 3, 5), (2, 16, 2, 3)]


def test_the_body_stays_the_same_in_training(encoder, data):
    model = detector(encoder)
    state, head = {k: t.clone() for k, t in encoder.module.state_dict().items()}, d.head_state(model)
    model.train()
    assert not any(m.training for m in model.backbone.body.modules()) and model.backbone.fpn.training and model.rpn.training
    d.supervised_epoch(model, data, generator(0), lr=1e-3)
    assert same(state, encoder.module.state_dict()) and not any(m.training for m in model.backbone.body.modules())
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
    model = d.faster_rcnn(encoder, 5, 16, rpn_head=rpn, box_head=box, box_predictor=last, rpn_post_nms_top_n_train=7)
    assert model.rpn.head is rpn and model.roi_heads.box_head is box and model.roi_heads.box_predictor is last
    assert model.rpn._post_nms_top_n["training"] == 7
    assert all(torch.isfinite(v) for v in d.losses(model, data.images[:1], data.boxes[:1]).values())


def test_inputs_are_padded_never_resized():
    inputs = d.Inputs(torch.tensor([0.5, 0.0, 0.25]), torch.tensor([0.5, 1.0, 2.0]))
    images = [torch.full((3, 33, 64), 255, dtype=torch.uint8), torch.zeros(3, 40, 65, dtype=torch.uint8)]
    for mode in (True, False):
        batch, targets = inputs.train(mode)(images, ["kept"])
        assert batch.tensors.shape == (2, 3, 64, 96) and batch.image_sizes == [(33, 64), (40, 65)] and targets == ["kept"]
        assert torch.allclose(batch.tensors[0, :, 0, 0], torch.tensor([1.0, 1.0, 0.375])) and batch.tensors[0, :, 33:].abs().max() == 0
        assert torch.allclose(batch.tensors[1, :, 39, 64], torch.tensor([-1.0, 0.0, -0.125])) and batch.tensors[1, :, :, 65:].abs().max() == 0


def test_a_batch_finds_what_each_picture_finds_alone(sure, data):
    together = d.detect(sure, data.images)
    for one, image in zip(together, data.images):
        alone, = d.detect(sure, [image])
        assert len(one.scores) == len(alone.scores) > 0 and torch.allclose(one.xyxy, alone.xyxy, atol=0.01)


@pytest.mark.parametrize("wish, said", [
    (lambda e, m: d.faster_rcnn(e, 0), "n_classes=0"), (lambda e, m: d.faster_rcnn(e, True), "n_classes=True"), (lambda e, m: d.faster_rcnn(e, 2, anchors=(1, 2)), "anchors"),
    (lambda e, m: d.detect(m, [torch.zeros(3, 31, 64, dtype=torch.uint8)]), "32 pixels"), (lambda e, m: d.detect(m, [torch.zeros(1, 64, 64, dtype=torch.uint8)]), "uint8 tensor"),
    (lambda e, m: d.detect(m, torch.zeros(2, 3, 64, 64)), "float32"), (lambda e, m: d.losses(m, [], []), "empty"),
    (lambda e, m: d.losses(m, torch.zeros(1, 3, 64, 64, dtype=torch.uint8), []), "one per picture"),
    (lambda e, m: d.losses(m, torch.zeros(1, 3, 64, 64, dtype=torch.uint8), [some([0, 0, 9, 9], labels=[5])]), "label 5"),
    (lambda e, m: d.losses(m, torch.zeros(1, 3, 64, 64, dtype=torch.uint8), [some([70, 0, 90, 9])]), r"boxes\[0\]\[0\]"),
    (lambda e, m: d.pseudo_label(m, [], generator(0), keep=0.001), "keep"),
    (lambda e, m: d.mean_average_precision([], [none()]), "found has 0"), (lambda e, m: d.mean_average_precision([found(some([0, 0, 9, 9], labels=[3]), 0.5)], [none()], 3), "label 3")])
def test_bad_input(encoder, sure, wish, said):
    with pytest.raises(UserError, match=said): wish(encoder, sure)


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
    bad = [({k: v + 1 for k, v in before.items() if k != name}, "missing"), ({**{k: v + 1 for k, v in before.items()}, "extra": torch.zeros(1)}, "unknown"),
           ({**{k: v + 1 for k, v in before.items()}, name: torch.zeros(1, 1, 1)}, "another shape"), ({**before, d.BODY + "x": torch.zeros(1)}, "unknown")]
    for state, said in bad:
        with pytest.raises(UserError, match=said): d.load_head(model, state)
        assert same(d.head_state(model), before)


def test_twin_shares_the_body_only(encoder, data):
    model = detector(encoder)
    with d.seeded(generator(0)): sum(d.losses(model, data.images[:1], data.boxes[:1]).values()).backward()
    teacher = d.twin(model)
    assert teacher.backbone.body is model.backbone.body and not d.trainable(teacher) and d.trainable(model)
    assert same(d.head_state(teacher), d.head_state(model)) and all(p.grad is None for p in teacher.parameters()) and not teacher.training
    with torch.no_grad(): next(iter(d.trainable(model))).add_(1)
    assert not same(d.head_state(teacher), d.head_state(model))


# ---- losses, boxes, score

def test_seeded_restores_and_follows_the_generator():
    before, g = torch.get_rng_state(), generator(5)
    with d.seeded(g): first = torch.rand(3)
    with d.seeded(g): second = torch.rand(3)
    with d.seeded(generator(5)): again = torch.rand(3)
    assert torch.equal(before, torch.get_rng_state()) and torch.equal(first, again) and not torch.equal(first, second)


def test_background_only(encoder, sure, data):
    with d.seeded(generator(0)): parts = d.losses(sure, data.images[:2], [none(), none()])
    assert parts.keys() == {"objectness", "proposal", "class", "box"} and parts["proposal"].item() == parts["box"].item() == 0
    assert all(torch.isfinite(v) for v in parts.values())


def test_training_lowers_the_loss_and_depends_on_its_seed_alone(encoder, data):
    def run(s):
        model, g = detector(encoder), generator(s)
        optimiser = d.adamw(model, 2e-3)
        return [d.supervised_epoch(model, data, g, optimiser=optimiser, scales=(0.6, 1.0))["total"] for _ in range(4)], d.head_state(model)

    before = torch.get_rng_state()
    (one, state), (two, again), (_, other) = run(0), run(0), run(1)
    assert one == two and same(state, again) and not same(state, other) and one[-1] < one[0] and torch.equal(before, torch.get_rng_state())


def test_penalty_is_added(encoder, data):
    model = detector(encoder)
    far = lambda m: sum(p.sum() for p in d.trainable(m)) * 0 + 100
    said = d.supervised_epoch(model, data.take([0]), generator(0), lr=0.0, penalty=far)
    assert said["total"] == pytest.approx(100 + sum(said[k] for k in ("objectness", "proposal", "class", "box")), rel=1e-5)


def test_boxes_found_are_in_the_picture_and_thresholds_nest(sure, data):
    many, few = d.detect(sure, data.images, least=0.01), d.detect(sure, data.images, least=0.1)
    assert sum(len(f.scores) for f in many) > sum(len(f.scores) for f in few) > 0
    for m, f in zip(many, few):
        assert (f.scores > 0.1).all() and (m.xyxy >= 0).all() and (m.xyxy[:, 2] <= HIGH[1]).all() and (m.xyxy[:, 3] <= HIGH[0]).all()
        assert ((m.labels >= 0) & (m.labels < 5)).all() and set(map(tuple, f.xyxy.tolist())) <= set(map(tuple, m.xyxy.tolist()))
    assert sure.roi_heads.score_thresh == 0.01


def test_hits():
    truth = some([0, 0, 10, 10], [20, 0, 30, 10], labels=[0, 1])
    said = found(some([0, 0, 10, 9], [0, 0, 10, 10], [20, 0, 30, 10], [20, 0, 30, 10], labels=[0, 0, 0, 1]), 0.9, 0.8, 0.7, 0.6)
    assert d.hits(said, truth).tolist() == [True, False, False, True] and d.hits(said, truth, 0.95).tolist() == [False, True, False, True]
    assert d.hits(said, none()).tolist() == [False] * 4 and d.hits(found(none()), truth).shape == (0,)


def test_map_of_perfect_and_of_nothing():
    truth = [some([0, 0, 20, 20], [30, 30, 60, 80], labels=[0, 2]), none(), some([5, 5, 40, 40], labels=[1])]
    perfect = [found(b, *[0.9] * len(b.labels)) for b in truth]
    nothing = [found(none())] * 3
    assert d.mean_average_precision(perfect, truth) == 1 and d.mean_average_precision(perfect, truth, iou=None) == 1
    assert d.mean_average_precision(nothing, truth) == 0 == d.mean_average_precision(nothing, [none()] * 3)
    wrong = [f._replace(labels=(f.labels + 1) % 3) for f in perfect]
    assert d.mean_average_precision(wrong, truth, 3) == 0


def test_map_by_hand_and_in_any_order():
    truth = [some([0, 0, 20, 20], [40, 0, 60, 30]), some([0, 0, 10, 10])]
    said = [found(some([1, 0, 20, 20], [70, 40, 90, 60]), 0.9, 0.8), found(some([0, 0, 10, 9]), 0.7)]
    value = d.mean_average_precision(said, truth)
    assert value == pytest.approx((34 * 1.0 + 33 * 2 / 3) / 101, abs=1e-5)
    assert d.mean_average_precision(said[::-1], truth[::-1]) == pytest.approx(value)
    assert d.mean_average_precision(said, truth, iou=0.95) < value


def test_total_is_weighted_by_pictures(monkeypatch, sure):
    tests = {"cloudy": streets(1, "cloudy", LOW), "rainy": streets(3, "rainy", LOW)}
    monkeypatch.setattr(d, "detect", lambda model, images, batch: [None] * len(images))
    monkeypatch.setattr(d, "mean_average_precision", lambda found, boxes, n, iou: {1: 0.2, 3: 0.6}[len(found)])
    assert d.score_domains(sure, tests) == pytest.approx({"cloudy": 0.2, "rainy": 0.6, "total": 0.5})


# ---- memory

def test_memory(encoder):
    high, low = streets(1, "cloudy", (192, 320)), streets(1, "cloudy", (96, 160))
    saved, peak = {}, {}
    for frozen in (False, True):
        model = detector(encoder, frozen=frozen)
        for name, data in (("high", high), ("low", low)):
            m = d.step_memory(model, data.images, data.boxes)
            saved[frozen, name], peak[frozen, name] = m["saved"], m["peak"]
        assert m == d.step_memory(model, low.images, low.boxes) and all(p.grad is None for p in model.parameters())
    assert 0.2 < saved[False, "low"] / saved[False, "high"] < 0.4
    assert saved[True, "high"] < 0.3 * saved[False, "high"] and saved[True, "low"] < saved[True, "high"]
    assert peak[False, "high"] > saved[False, "high"] and peak[True, "low"] < peak[True, "high"] < peak[False, "high"]


# ---- views

def test_matrix_and_boxes_by_hand():
    size, box = (100, 200), torch.tensor([[100., 50, 120, 60]])
    assert torch.allclose(d.map_boxes(box, d.affine_matrix(size), size), box)
    assert torch.allclose(d.map_boxes(box, d.affine_matrix(size, 90), size), torch.tensor([[90., 50, 100, 70]]), atol=1e-4)
    assert torch.allclose(d.map_boxes(box, d.affine_matrix(size, shift=(90, -55)), size), torch.tensor([[190., 0, 200, 5]]), atol=1e-4)
    gone = d.map_boxes(box, d.affine_matrix(size, shift=(150, 0)), size)
    assert not d.visible(gone).any() and (gone >= 0).all()


@pytest.mark.parametrize("kind", d.MOVES)
def test_boxes_go_where_the_pixels_go(kind):
    image = torch.zeros(3, 90, 160, dtype=torch.uint8)
    image[:, 30:50, 60:100] = 255
    for amount in (-0.9, 0.6):
        picture, matrix = d.moved(image, kind, amount)
        ys, xs = (picture[0] > 200).nonzero(as_tuple=True)
        seen = torch.tensor([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]).float()
        box = d.map_boxes(torch.tensor([[60., 30, 100, 50]]), matrix, (90, 160))
        assert (seen - box).abs().max() <= 1.5 and (box - torch.tensor([[60., 30, 100, 50]])).abs().max() > 2


def test_back_and_forth():
    for kind in d.MOVES:
        _, m = d.moved(torch.zeros(3, 64, 96, dtype=torch.uint8), kind, 0.7)
        corners = torch.tensor([[10., 10, 1], [80, 50, 1]])
        assert torch.allclose(corners @ m.T @ torch.linalg.inv(m).T, corners, atol=1e-3)


@pytest.mark.parametrize("kind", d.COLOUR_CHANGES)
@pytest.mark.parametrize("amount", (0.0, 0.5, 0.9999))
def test_no_strength_of_a_colour_change_fails(kind, amount):
    image = torch.randint(256, (3, 40, 50), dtype=torch.uint8, generator=generator(1))
    out = d.change_colours(image, kind, amount)
    assert out.dtype == torch.uint8 and out.shape == image.shape


@pytest.mark.parametrize("kind", d.COLOUR_CHANGES)
def test_colours(kind, data):
    image = data.images[0]
    before = image.clone()
    out = d.change_colours(image, kind, 0.9 if kind != "posterize" else 0.1)
    assert out.dtype == torch.uint8 and out.shape == image.shape and torch.equal(image, before)
    assert torch.equal(out, image) == (kind == "identity")


def test_strong_view(data):
    image, boxes = data.images[0], data.boxes[0]
    before, state = image.clone(), torch.get_rng_state()
    a, b, c = (d.strong_view(image, *boxes, generator(s)) for s in (1, 1, 2))
    assert all(torch.equal(p, q) for p, q in zip(a, b)) and not torch.equal(a[0], c[0])
    assert torch.equal(image, before) and torch.equal(state, torch.get_rng_state())
    for view in (d.strong_view(image, *boxes, generator(s)) for s in range(20)):
        xyxy, labels, matrix = view[1:]
        assert view[0].shape == image.shape and len(xyxy) == len(labels) <= len(boxes.labels) and matrix.shape == (3, 3)
        assert (xyxy >= 0).all() and (xyxy[:, 2] <= HIGH[1]).all() and (xyxy[:, 3] <= HIGH[0]).all() and d.visible(xyxy).all()
    assert d.strong_view(image, *none(), generator(1))[1].shape == (0, 4)


def test_erased_at_most_five_patches():
    image = torch.zeros(3, 100, 100, dtype=torch.uint8)
    shares = [float((d.erased(image, generator(s)) > 0).any(0).float().mean()) for s in range(30)]
    assert 0 < max(shares) <= 5 * 0.04 + 1e-6 and image.max() == 0


def test_training_view_moves_boxes_along(data):
    image, boxes = data.images[0], data.boxes[0]
    seen = set()
    for s in range(12):
        out, (xyxy, labels) = d.training_view(image, boxes, generator(s), scales=(0.5, 0.5))
        assert out.shape == (3, 48, 80) and torch.equal(labels, boxes.labels)
        straight, turned = boxes.xyxy / 2, d.flipped(image, boxes.xyxy)[1] / 2
        seen.add("straight" if torch.allclose(xyxy, straight) else "turned" if torch.allclose(xyxy, turned) else "wrong")
    assert seen == {"straight", "turned"}


# ---- pseudo-boxes

def test_pseudo_boxes(sure, data):
    images = [*data.images]
    low, high = (d.pseudo_label(sure, images, generator(0), keep=k) for k in (0.05, 0.2))
    assert sum(len(p.scores) for p in low) > sum(len(p.scores) for p in high) > 0
    for a, b in zip(low, high):
        assert set(map(tuple, b.xyxy.tolist())) <= set(map(tuple, a.xyxy.tolist())) and (b.scores > 0.2).all()
        assert (a.xyxy >= 0).all() and (a.xyxy[:, 2] <= HIGH[1]).all() and (a.xyxy[:, 3] <= HIGH[0]).all()
        assert a.variances.shape == a.scores.shape and (a.variances > 0).all() and torch.isfinite(a.variances).all()
        assert torch.equal(a.above(0.2).xyxy, a.xyxy[a.scores > 0.2])
    again, still = (d.pseudo_label(sure, images, generator(0), keep=0.05, jitter=j) for j in (0.06, 0.0))
    assert all(torch.equal(p.variances, q.variances) for p, q in zip(low, again))
    assert all((p.variances < 1e-4).all() for p in still)


def test_variance_by_hand(encoder):
    model = detector(encoder)
    nn.init.zeros_(model.roi_heads.box_predictor.bbox_pred.weight); nn.init.zeros_(model.roi_heads.box_predictor.bbox_pred.bias)
    image = streets(1, "cloudy", HIGH).images
    seen, _ = d._look(model, image)
    boxes = d.Found(torch.tensor([[20., 20, 60, 80], [80., 30, 140, 50]]), torch.tensor([0, 3]), torch.tensor([0.9, 0.8]))
    u, = d.jitter_variances(model, seen, [boxes], generator(0), jitters=4000)
    assert torch.allclose(u, torch.full((2,), 0.06), rtol=0.05), "a head that puts nothing right hands the noise on"
    with torch.no_grad(): model.roi_heads.box_predictor.bbox_pred.weight[16:20].normal_(0, 3, generator=generator(0))
    u, = d.jitter_variances(model, seen, [boxes], generator(0), jitters=1000)
    assert u[0].item() == pytest.approx(0.06, rel=0.05) and abs(u[1].item() - 0.06) > 0.006, "each box by the offsets of its own class"


def test_filters():
    p = d.Pseudo(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), torch.tensor([0.95, 0.6, 0.85]), torch.tensor([0.03, 0.01, 0.02]))
    masks = d.filters(p)
    assert {k: m.tolist() for k, m in masks.items()} == {"rpn": [True, False, False], "classes": [True, False, False], "variance": [False, True, False]}
    assert d.filters(p, 0.8, 0.5, 0.1)["rpn"].tolist() == [True, False, True] and d.filters(p, 0.8, 0.5, 0.1)["classes"].all()


def made_views(sure, data, boxes, scores, variances):
    views = d.make_views(sure, [*data.images[:1]], generator(2), keep=0.05)
    pseudo = d.Pseudo(boxes.xyxy, boxes.labels, torch.tensor(scores), torch.tensor(variances))
    return views._replace(pseudo=[pseudo], matrices=[torch.eye(3)], strong=[data.images[0]])


def unsupervised(student, teacher, views, s=0, **options):
    with d.seeded(generator(s)): return d.unsupervised_losses(student, teacher, views, **options)


def test_no_pseudo_box(encoder, sure, data):
    teacher = d.twin(sure)
    views = made_views(teacher, data, none(), [], [])
    parts = unsupervised(sure, teacher, views)
    assert parts["box"].item() == parts["proposal"].item() == 0 and all(torch.isfinite(v) for v in parts.values())
    sum(parts.values()).backward()
    sure.zero_grad(set_to_none=True)


def test_each_filter_feeds_its_loss(sure, data):
    teacher, boxes = d.twin(sure), data.boxes[0]
    n = len(boxes.labels)
    tight = unsupervised(sure, teacher, made_views(teacher, data, boxes, [0.6] * n, [0.001] * n))
    assert tight["box"].item() > 0 and tight["proposal"].item() == 0
    certain = unsupervised(sure, teacher, made_views(teacher, data, boxes, [0.95] * n, [0.5] * n))
    assert certain["box"].item() == 0 and certain["proposal"].item() > 0
    neither = unsupervised(sure, teacher, made_views(teacher, data, boxes, [0.6] * n, [0.5] * n))
    assert neither["class"].item() != certain["class"].item()
    with d.seeded(generator(0)): labelled = d.losses(sure, data.images[:1], data.boxes[:1])
    assert certain["proposal"].item() == pytest.approx(labelled["proposal"].item(), rel=1e-4)


def test_no_gradient_to_the_teacher(encoder, sure, data):
    student, teacher = detector(encoder, 4), d.twin(sure)
    for p in teacher.parameters(): p.requires_grad_(not any(p is q for q in teacher.backbone.body.parameters()))
    views = d.make_views(teacher, [*data.images[:2]], generator(0), keep=0.05)
    sum(unsupervised(student, teacher, views, rpn=0.1, classes=0.1, variance=1.0).values()).backward()
    assert all(p.grad is None for p in teacher.parameters()) and all(p.grad is not None for p in d.trainable(student))


def test_background_weights(sure, data):
    teacher = d.twin(sure)
    seen, _ = d._look(teacher, data.images[:2])
    rois = [torch.tensor([[5., 5, 40, 40], [60, 20, 90, 60]])] * 2
    labels = torch.tensor([0, 2, 0, 0])
    eye = d.background_weights(teacher, seen, rois, labels, [torch.eye(3)] * 2)
    with torch.no_grad(): own = d.box_outputs(teacher, seen.maps, rois, seen.batch.image_sizes)[0].softmax(1)[:, 0]
    assert eye[1] == 1 and torch.allclose(eye[[0, 2, 3]], own[[0, 2, 3]]) and (eye >= 0).all() and (eye <= 1).all()
    shift = d.affine_matrix(HIGH, shift=(9, 0))
    there = [d.map_boxes(r, shift, HIGH) for r in rois]
    assert torch.allclose(d.background_weights(teacher, seen, there, labels, [shift] * 2), eye, atol=1e-4)


def test_class_loss_is_weighted(encoder, sure, data):
    teacher = d.twin(sure)
    views = made_views(teacher, data, data.boxes[0], [0.95] * len(data.boxes[0].labels), [0.5] * len(data.boxes[0].labels))
    with torch.no_grad(): teacher.roi_heads.box_predictor.cls_score.weight.zero_(); teacher.roi_heads.box_predictor.cls_score.bias.copy_(torch.tensor([30.0] + [0.0] * 5))
    certain = unsupervised(sure, teacher, views)
    with d.seeded(generator(0)): labelled = d.losses(sure, data.images[:1], data.boxes[:1])
    assert certain["class"].item() == pytest.approx(labelled["class"].item(), rel=1e-3), "a teacher sure of background: plain cross-entropy"
    with torch.no_grad(): teacher.roi_heads.box_predictor.cls_score.bias.copy_(torch.tensor([-30.0] + [0.0] * 5))
    assert unsupervised(sure, teacher, views)["class"].item() > 1.2 * certain["class"].item(), "objects alone count"


# ---- the teacher

def test_momentum():
    assert d.momentum_at(0) == 0 and d.momentum_at(1) == 0.5 and d.momentum_at(10 ** 6) == 0.999 and d.momentum_at(99, 0.9) == 0.9


def test_ema(encoder):
    teacher, student = d.twin(detector(encoder, 0)), detector(encoder, 1)
    before, new = d.head_state(teacher), d.head_state(student)
    d.ema_update(teacher, student, 1.0)
    assert same(d.head_state(teacher), before)
    d.ema_update(teacher, student, 0.75)
    assert all(torch.allclose(t, 0.75 * before[k] + 0.25 * new[k], atol=1e-6) for k, t in d.head_state(teacher).items())
    d.ema_update(teacher, student, 0.0)
    assert same(d.head_state(teacher), new) and same(d.head_state(student), new)


def test_self_training_reads_no_boxes_and_depends_on_its_seed_alone(encoder, sure, data):
    unlabelled = data.take(range(4))
    unlabelled.boxes = None

    def run(s):
        student = detector(encoder)
        d.load_head(student, d.head_state(sure))
        teacher = d.twin(student)
        said = d.self_training_epoch(student, teacher, unlabelled, generator(s), keep=0.05, rpn=0.1, classes=0.1, variance=0.1)
        return said, d.head_state(student), d.head_state(teacher)

    before = torch.get_rng_state()
    (said, state, taught), (_, again, same_teacher), (_, other, _) = run(0), run(0), run(1)
    assert same(state, again) and same(taught, same_teacher) and not same(state, other) and torch.equal(before, torch.get_rng_state())
    assert not same(state, d.head_state(sure)) and not same(taught, d.head_state(sure))
    assert said.keys() == {"objectness", "proposal", "class", "box", "total", "kept", "kept rpn", "kept classes", "kept variance"}
    assert said["kept"] >= said["kept rpn"] == said["kept classes"] > 0 and math.isfinite(said["total"])
    assert said["total"] == pytest.approx(4 * sum(said[k] for k in ("objectness", "proposal", "class", "box")), rel=1e-4)


# ---- the rest

def test_answers():
    assert answers.suppress(torch.tensor([[0., 0, 10, 10], [1, 0, 11, 10]]), torch.tensor([0.1, 0.2]), 0.5) == [1]
    assert answers.steps_until(0.999, 0.5) == 693
    assert float(answers.class_loss(torch.tensor([2.0, 4.0]), torch.tensor([0, 1]), torch.tensor([0.1, 0.5]))) == pytest.approx(4.2 / 1.1)


def test_import_is_light():
    code = "import sys, fedbook.detect; print([m for m in ('torchvision', 'torchmetrics', 'timm', 'matplotlib', 'ipywidgets', 'open_clip', 'sklearn') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
