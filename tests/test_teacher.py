"""Soft Teacher: views and their matrices, pseudo-boxes, losses without labels, the slow average."""
import math

import pytest
import torch
from torch import nn

from conftest import detector

from fedbook.methods import detect as d
from fedbook.methods import teacher as t
from fedbook.answers import teacher as answers
from fedbook.datasets.encoders import image_encoder
from fedbook.engine.errors import UserError
from fedbook.engine.local import generator
from fedbook.datasets.streets import streets
from fedbook.datasets.world import Boxes

HIGH = (96, 160)
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def encoder(): return image_encoder("efficientnet-lite0", weights=None)


@pytest.fixture(scope="module")
def data(): return streets(4, "cloudy", HIGH, 3)


def none(): return Boxes(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def same(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---- views

def test_matrix_and_boxes_by_hand():
    size, box = (100, 200), torch.tensor([[100., 50, 120, 60]])
    assert torch.allclose(t.map_boxes(box, t.affine_matrix(size), size), box)
    turned = t.map_boxes(box, t.affine_matrix(size, 90), size)
    assert torch.allclose(turned, torch.tensor([[90., 50, 100, 70]]), atol=1e-4)
    shifted = t.map_boxes(box, t.affine_matrix(size, shift=(90, -55)), size)
    assert torch.allclose(shifted, torch.tensor([[190., 0, 200, 5]]), atol=1e-4)
    gone = t.map_boxes(box, t.affine_matrix(size, shift=(150, 0)), size)
    assert not t.visible(gone).any() and (gone >= 0).all()


@pytest.mark.parametrize("kind", t.MOVES)
def test_boxes_go_where_the_pixels_go(kind):
    image = torch.zeros(3, 90, 160, dtype=torch.uint8)
    image[:, 30:50, 60:100] = 255
    for amount in (-0.9, 0.6):
        picture, matrix = t.moved(image, kind, amount)
        ys, xs = (picture[0] > 200).nonzero(as_tuple=True)
        seen = torch.tensor([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]).float()
        before = torch.tensor([[60., 30, 100, 50]])
        box = t.map_boxes(before, matrix, (90, 160))
        assert (seen - box).abs().max() <= 1.5 and (box - before).abs().max() > 2


def test_back_and_forth():
    for kind in t.MOVES:
        _, m = t.moved(torch.zeros(3, 64, 96, dtype=torch.uint8), kind, 0.7)
        corners = torch.tensor([[10., 10, 1], [80, 50, 1]])
        assert torch.allclose(corners @ m.T @ torch.linalg.inv(m).T, corners, atol=1e-3)


@pytest.mark.parametrize("kind", t.COLOUR_CHANGES)
@pytest.mark.parametrize("amount", (0.0, 0.5, 0.9999))
def test_no_strength_of_a_colour_change_fails(kind, amount):
    image = torch.randint(256, (3, 40, 50), dtype=torch.uint8, generator=generator(1))
    out = t.change_colours(image, kind, amount)
    assert out.dtype == torch.uint8 and out.shape == image.shape


@pytest.mark.parametrize("kind", t.COLOUR_CHANGES)
def test_colours(kind, data):
    image = data.images[0]
    before = image.clone()
    out = t.change_colours(image, kind, 0.9 if kind != "posterize" else 0.1)
    assert out.dtype == torch.uint8 and out.shape == image.shape and torch.equal(image, before)
    assert torch.equal(out, image) == (kind == "identity")


def test_strong_view(data):
    image, boxes = data.images[0], data.boxes[0]
    before, state = image.clone(), torch.get_rng_state()
    a, b, c = (t.strong_view(image, *boxes, generator(s)) for s in (1, 1, 2))
    assert all(torch.equal(p, q) for p, q in zip(a, b)) and not torch.equal(a[0], c[0])
    assert torch.equal(image, before) and torch.equal(state, torch.get_rng_state())
    for view in (t.strong_view(image, *boxes, generator(s)) for s in range(20)):
        xyxy, labels, matrix = view[1:]
        assert view[0].shape == image.shape and matrix.shape == (3, 3)
        assert len(xyxy) == len(labels) <= len(boxes.labels) and t.visible(xyxy).all()
        assert (xyxy >= 0).all() and (xyxy[:, 2] <= HIGH[1]).all() and (xyxy[:, 3] <= HIGH[0]).all()
    assert t.strong_view(image, *none(), generator(1))[1].shape == (0, 4)


def test_erased_at_most_five_patches():
    image = torch.zeros(3, 100, 100, dtype=torch.uint8)
    shares = [float((t.erased(image, generator(s)) > 0).any(0).float().mean()) for s in range(30)]
    assert 0 < max(shares) <= 5 * 0.04 + 1e-6 and image.max() == 0


# ---- pseudo-boxes

def test_pseudo_boxes(sure, data):
    images = [*data.images]
    low, high = (t.pseudo_label(sure, images, generator(0), keep=k) for k in (0.05, 0.2))
    assert sum(len(p.scores) for p in low) > sum(len(p.scores) for p in high) > 0
    for a, b in zip(low, high):
        assert set(map(tuple, b.xyxy.tolist())) <= set(map(tuple, a.xyxy.tolist())) and (b.scores > 0.2).all()
        assert (a.xyxy >= 0).all() and (a.xyxy[:, 2] <= HIGH[1]).all() and (a.xyxy[:, 3] <= HIGH[0]).all()
        assert a.variances.shape == a.scores.shape and (a.variances > 0).all()
        assert torch.isfinite(a.variances).all()
        assert torch.equal(a.above(0.2).xyxy, a.xyxy[a.scores > 0.2])
    again, still = (t.pseudo_label(sure, images, generator(0), keep=0.05, jitter=j) for j in (0.06, 0.0))
    assert all(torch.equal(p.variances, q.variances) for p, q in zip(low, again))
    assert all((p.variances < 1e-4).all() for p in still)
    with pytest.raises(UserError, match="keep=0.001"): t.pseudo_label(sure, [], generator(0), keep=0.001)


def test_variance_by_hand(encoder):
    model = detector(encoder)
    last = model.roi_heads.box_predictor.bbox_pred
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    image = streets(1, "cloudy", HIGH).images
    features, _ = d.look(model, image)
    two = torch.tensor([[20., 20, 60, 80], [80., 30, 140, 50]])
    boxes = d.Detections(two, torch.tensor([0, 3]), torch.tensor([0.9, 0.8]))
    u, = t.jitter_variances(model, features, [boxes], generator(0), jitters=4000)
    noise = torch.full((2,), 0.06)
    assert torch.allclose(u, noise, rtol=0.05), "a head that puts nothing right hands the noise on"
    with torch.no_grad(): last.weight[16:20].normal_(0, 3, generator=generator(0))
    u, = t.jitter_variances(model, features, [boxes], generator(0), jitters=1000)
    assert u[0].item() == pytest.approx(0.06, rel=0.05), "each box by the offsets of its own class"
    assert abs(u[1].item() - 0.06) > 0.006


def test_filters():
    scores, variances = torch.tensor([0.95, 0.6, 0.85]), torch.tensor([0.03, 0.01, 0.02])
    p = t.Pseudo(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), scores, variances)
    masks = t.filters(p)
    assert {k: m.tolist() for k, m in masks.items()} == {
        "rpn": [True, False, False], "classes": [True, False, False], "variance": [False, True, False]}
    loose = t.filters(p, 0.8, 0.5, 0.1)
    assert loose["rpn"].tolist() == [True, False, True] and loose["classes"].all()


def made_views(sure, data, boxes, scores, variances):
    views = t.make_views(sure, [*data.images[:1]], generator(2), keep=0.05)
    pseudo = t.Pseudo(boxes.xyxy, boxes.labels, torch.tensor(scores), torch.tensor(variances))
    return views._replace(pseudo=[pseudo], matrices=[torch.eye(3)], strong=[data.images[0]])


def unsupervised(student, teacher, views, s=0, **options):
    with d.seeded(generator(s)): return t.unsupervised_losses(student, teacher, views, **options)


def test_no_pseudo_box(encoder, sure, data):
    teacher = t.twin(sure)
    views = made_views(teacher, data, none(), [], [])
    parts = unsupervised(sure, teacher, views)
    assert parts["box"].item() == parts["proposal"].item() == 0
    assert all(torch.isfinite(v) for v in parts.values())
    sum(parts.values()).backward()
    sure.zero_grad(set_to_none=True)


def test_each_filter_feeds_its_loss(sure, data):
    teacher, boxes = t.twin(sure), data.boxes[0]
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
    student, teacher = detector(encoder, 4), t.twin(sure)
    body = {id(p) for p in teacher.backbone.body.parameters()}
    for p in teacher.parameters(): p.requires_grad_(id(p) not in body)
    views = t.make_views(teacher, [*data.images[:2]], generator(0), keep=0.05)
    sum(unsupervised(student, teacher, views, rpn=0.1, classes=0.1, variance=1.0).values()).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(p.grad is not None for p in d.trainable(student))


def test_background_weights(sure, data):
    teacher = t.twin(sure)
    features, _ = d.look(teacher, data.images[:2])
    rois = [torch.tensor([[5., 5, 40, 40], [60, 20, 90, 60]])] * 2
    labels = torch.tensor([0, 2, 0, 0])
    eye = t.background_weights(teacher, features, rois, labels, [torch.eye(3)] * 2)
    with torch.no_grad(): logits, _ = t.box_outputs(teacher, features.maps, rois, features.batch.image_sizes)
    own = logits.softmax(1)[:, 0]
    assert eye[1] == 1 and torch.allclose(eye[[0, 2, 3]], own[[0, 2, 3]])
    assert (eye >= 0).all() and (eye <= 1).all()
    shift = t.affine_matrix(HIGH, shift=(9, 0))
    there = [t.map_boxes(r, shift, HIGH) for r in rois]
    assert torch.allclose(t.background_weights(teacher, features, there, labels, [shift] * 2), eye, atol=1e-4)


def test_class_loss_is_weighted(encoder, sure, data):
    teacher, n = t.twin(sure), len(data.boxes[0].labels)
    views = made_views(teacher, data, data.boxes[0], [0.95] * n, [0.5] * n)
    last = teacher.roi_heads.box_predictor

    def believes(background):
        with torch.no_grad():
            last.cls_score.weight.zero_()
            last.cls_score.bias.copy_(torch.tensor([background] + [0.0] * 5))

    believes(30.0)
    certain = unsupervised(sure, teacher, views)
    with d.seeded(generator(0)): labelled = d.losses(sure, data.images[:1], data.boxes[:1])
    assert certain["class"].item() == pytest.approx(labelled["class"].item(), rel=1e-3), "plain cross-entropy"
    believes(-30.0)
    alone = unsupervised(sure, teacher, views)["class"].item()
    assert alone > 1.2 * certain["class"].item(), "objects alone count"


# ---- the teacher

def test_twin_shares_the_body_only(encoder, data):
    model = detector(encoder)
    with d.seeded(generator(0)): sum(d.losses(model, data.images[:1], data.boxes[:1]).values()).backward()
    teacher = t.twin(model)
    assert teacher.backbone.body is model.backbone.body and not d.trainable(teacher) and d.trainable(model)
    assert same(d.head_state(teacher), d.head_state(model)) and not teacher.training
    assert all(p.grad is None for p in teacher.parameters())
    with torch.no_grad(): next(iter(d.trainable(model))).add_(1)
    assert not same(d.head_state(teacher), d.head_state(model))


def test_momentum():
    assert [t.momentum_at(step) for step in (0, 1, 10 ** 6)] == [0, 0.5, 0.999]
    assert t.momentum_at(99, 0.9) == 0.9


def test_ema(encoder):
    teacher, student = t.twin(detector(encoder, 0)), detector(encoder, 1)
    before, new = d.head_state(teacher), d.head_state(student)
    t.ema_update(teacher, student, 1.0)
    assert same(d.head_state(teacher), before)
    t.ema_update(teacher, student, 0.75)
    mixed = d.head_state(teacher)
    assert all(torch.allclose(v, 0.75 * before[k] + 0.25 * new[k], atol=1e-6) for k, v in mixed.items())
    t.ema_update(teacher, student, 0.0)
    assert same(d.head_state(teacher), new) and same(d.head_state(student), new)


def test_a_teachers_batch_norm_follows_the_students():
    "Its statistics are those of the student, whatever the momentum; what it learns moves slowly."
    student, teacher = (torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)) for _ in range(2))
    student(3 + torch.randn(8, 2, generator=generator(0)))
    before = teacher[1].weight.clone()
    t.ema_update(teacher, student, 1.0)
    assert same(dict(teacher[0].named_buffers()), dict(student[0].named_buffers()))
    assert teacher[0].num_batches_tracked == 1 and torch.equal(teacher[1].weight, before)


def test_self_training_reads_no_boxes_and_depends_on_its_seed_alone(encoder, sure, data):
    unlabelled = data.take(range(4))
    unlabelled.boxes = None

    def run(s):
        student = detector(encoder)
        d.load_head(student, d.head_state(sure))
        teacher = t.twin(student)
        means = t.self_training_epoch(student, teacher, unlabelled, generator(s), keep=0.05, rpn=0.1,
                                      classes=0.1, variance=0.1)
        return means, d.head_state(student), d.head_state(teacher)

    before, four = torch.get_rng_state(), ("objectness", "proposal", "class", "box")
    (means, state, taught), (_, again, same_teacher), (_, other, _) = run(0), run(0), run(1)
    assert same(state, again) and same(taught, same_teacher) and not same(state, other)
    assert torch.equal(before, torch.get_rng_state())
    assert not same(state, d.head_state(sure)) and not same(taught, d.head_state(sure))
    assert means.keys() == {*four, "total", "kept", "kept rpn", "kept classes", "kept variance"}
    assert means["kept"] >= means["kept rpn"] == means["kept classes"] > 0 and math.isfinite(means["total"])
    assert means["total"] == pytest.approx(4 * sum(means[k] for k in four), rel=1e-4)


# ---- the rest

def test_sizes_are_those_of_the_detector_and_more():
    for name, size in t.profiles.items():
        smaller = d.profiles[name]
        assert all(getattr(size, field) == value for field, value in vars(smaller).items())
    assert t.profiles["full"].followed == 3 and t.profiles["smoke"].rounds == 1
    assert t.profiles["paper"].rpn == 0.9


def test_answers():
    assert answers.steps_until(0.999, 0.5) == 693
    loss = answers.class_loss(torch.tensor([2.0, 4.0]), torch.tensor([0, 1]), torch.tensor([0.1, 0.5]))
    assert float(loss) == pytest.approx(4.2 / 1.1)
    image, box = torch.zeros(3, 64, 96, dtype=torch.uint8), torch.tensor([[10.0, 20, 30, 50]])
    _, matrix = t.moved(image, "rotate", 0.4)
    there = t.map_boxes(d.flipped(image, box)[1], matrix, (64, 96))
    assert torch.allclose(t.map_boxes(box, answers.whole_way(96, True, matrix), (64, 96)), there, atol=1e-4)
