"""Re-identification without federation: scores of rankings, clusters and losses against slow versions,
networks, and learning without labels."""
import math
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import sklearn.cluster  # noqa: F401  imported once here, so that not every forked worker has to
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn

import fedbook.methods.reid
from conftest import close, equal_bits as equal, normal, seeded
from fedbook.answers import reid as answers
from fedbook.engine.local import snapshot
from fedbook.engine.errors import UserError
from fedbook.engine.local import build, outputs
from fedbook.datasets.people import render_site
from fedbook.methods.reid import (ProxyMemory, ReIDSizes, adam, augment, camera_contrastive_loss, cluster,
                                  cmc_curve, cmc_map, embed, first_network, hold_out, learn, make_network,
                                  plot_cmc, profiles, proxy_batches, rank_all, ranked_strip, ranking,
                                  remember, reranked_distance, resnet, site_of, small_net, start_of)

pytestmark = pytest.mark.usefixtures("one_process")

def unit(*shape, seed=0): return F.normalize(normal(*shape, seed=seed))

def net(): return build(partial(small_net, 4), 0)

TINY = replace(profiles["smoke"], height=16, width=8, cameras=2, largest=32, test_identities=2, batch=8)

# ---- rankings

def case(seed, q=25, g=70, kinds=9, cams=3):
    r = np.random.default_rng([3, seed])
    return (r.normal(size=(q, 4)), r.normal(size=(g, 4)), r.integers(kinds + 3, size=q),
            r.integers(kinds, size=g), r.integers(cams, size=q), r.integers(cams, size=g))

def by_loop(q, g, qi, gi, qc, gc):
    from sklearn.metrics import average_precision_score

    first, precision, orders = [], [], []
    for k in range(len(q)):
        score = g @ q[k] / np.linalg.norm(g, axis=1)
        order = [j for j in np.argsort(-score, kind="stable") if not (gi[j] == qi[k] and gc[j] == qc[k])]
        orders.append(order)
        right = [gi[j] == qi[k] for j in order]
        if any(right):
            first.append(right.index(True))
            precision.append(average_precision_score(right, -np.arange(len(right))))
    return {**{f"rank{k}": np.mean([f < k for f in first]) for k in (1, 5, 10)},
            "mAP": np.mean(precision)}, orders

@pytest.mark.parametrize("seed", range(6))
def test_scores_agree_with_a_loop_and_with_scikit_learn(seed):
    args = case(seed)
    expected, orders = by_loop(*args)
    for chunk in (1, 7, 256):
        found = cmc_map(*args, chunk=chunk)
        assert found.keys() == expected.keys()
        assert all(type(v) is float and abs(v - expected[k]) < 1e-9 for k, v in found.items())
    order = ranking(*args)
    assert order.shape == (25, 70) and order.dtype == np.int64
    assert [row[row >= 0].tolist() for row in order] == orders
    assert all((np.diff((row < 0).astype(int)) >= 0).all() for row in order)

def test_lists_arrays_and_tensors_give_the_same():
    args = case(9)
    assert cmc_map(*args) == cmc_map(torch.tensor(args[0]), torch.tensor(args[1], requires_grad=True),
                                     *(list(a) for a in args[2:4]), *(torch.tensor(a) for a in args[4:]))

def test_by_hand_small():
    q, g = [[1.0, 0.0]], [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
    found = cmc_map(torch.tensor(q), torch.tensor(g), [1], [1, 2, 1, 1], [0], [0, 0, 1, 2])
    assert found["rank1"] == 0 and found["rank5"] == 1 and np.isclose(found["mAP"], (1 / 2 + 2 / 3) / 2)
    assert ranking(torch.tensor(q), torch.tensor(g), [1], [1, 2, 1, 1], [0],
                   [0, 0, 1, 2]).tolist() == [[1, 2, 3, -1]]

def test_other_people_in_the_own_camera_stay_in_the_gallery():
    x = torch.eye(2)
    assert cmc_map(x[:1], torch.tensor([[1.0, 0.0], [0.9, 0.5]]), [1], [2, 1], [0], [0, 1])["rank1"] == 0

def test_queries_without_a_right_answer_are_left_out():
    x = torch.eye(3)
    assert cmc_map(x, x, [1, 2, 7], [1, 2, 3], [0, 0, 0], [1, 0, 1])["mAP"] == 1.0
    assert cmc_curve(ranking(x, x, [1, 2, 7], [1, 2, 3], [0, 0, 0], [1, 0, 1]), [1, 2, 7], [1, 2, 3],
                     3).tolist() == [1, 1, 1]

def test_ties_keep_the_gallerys_order():
    assert ranking(torch.ones(1, 2), torch.ones(5, 2), [1], [2, 1, 2, 1, 2], [0],
                   [0] * 5).tolist() == [[0, 2, 4, -1, -1]]

@pytest.mark.parametrize("change, text",
                         [(dict(gallery=torch.zeros(0, 2), gallery_ids=[], gallery_cams=[]), "empty"),
                          (dict(query_ids=[1]), "query_ids has 1"),
                          (dict(gallery_cams=[1] * 4), "gallery_cams has 4"),
                          (dict(query=torch.ones(2, 3)), "query has 3"),
                          (dict(query=torch.tensor([[1.0, math.nan], [1, 1]])), "not finite"),
                          (dict(gallery=torch.full((3, 2), math.inf)), "not finite"),
                          (dict(query=torch.ones(2)), "matrix"), (dict(query_cams=[1, 1]), "one camera only"),
                          (dict(query_ids=[8, 9]), "one camera only"),
                          (dict(query=torch.ones(0, 2), query_ids=[], query_cams=[]), "no query")])
def test_bad_rankings(change, text):
    args = dict(query=torch.ones(2, 2), gallery=torch.ones(3, 2), query_ids=[1, 2], gallery_ids=[1, 2, 2],
                query_cams=[0, 0], gallery_cams=[1, 1, 1])
    cmc_map(**args)
    with pytest.raises(UserError, match=text): cmc_map(**{**args, **change})

def test_figures():
    import matplotlib.pyplot as plt

    site = render_site(0, 8, 2, 2, 3, (32, 16))
    f = lambda d: d.images.float().flatten(1)
    names = (site.query.identity, site.gallery.identity, site.query.camera, site.gallery.camera)
    order = ranking(f(site.query), f(site.gallery), *names)
    fig = ranked_strip(site.query, site.gallery, order, 8)
    labels = [[ax.get_xlabel() for ax in fig.axes[k * 9:k * 9 + 9]] for k in range(4)]
    for k, row in enumerate(labels):
        right = [bool(site.gallery.identity[j] == site.query.identity[k]) for j in order[k, :8] if j >= 0]
        assert row[0].startswith("query") and [t[0] == "✓" for t in row[1:] if t] == right and len(right) == 6
    framed = {ax.get_xlabel()[0]: ax.spines["top"].get_linestyle()
              for ax in fig.axes if ax.get_xlabel()[:1] in ("✓", "✗")}
    assert framed == {"✓": "-", "✗": "--"}
    assert len(plot_cmc({"a": cmc_curve(order, *names[:2], 5), "b": np.ones(5)}).axes[0].lines) == 2
    plt.close("all")

def test_difficulty_by_the_usual_protocol():
    "With other people of the query's own camera in the gallery, pixels find few."
    ranks = []
    for site in range(4):
        _, query, gallery, _ = render_site(site, 8, 30, seed=0)
        pixels = [torch.nn.functional.normalize(part.images.float().flatten(1) / 127.5 - 1)
                  for part in (query, gallery)]
        ranks.append(cmc_map(*pixels, query.identity, gallery.identity, query.camera,
                             gallery.camera)["rank1"])
    assert 0.05 < np.mean(ranks) < 0.5

# ---- proxies and batches

CLUSTERS, CAMERAS = torch.tensor([0, 0, 1, 1, -1, 0, 2, 2, -1, 1]), torch.tensor([0, 1, 0, 0, 0, 1, 1, 1, 1,
                                                                                  0])

def memory_of(features=None, clusters=CLUSTERS, cameras=CAMERAS):
    return ProxyMemory(unit(len(clusters), 6) if features is None else features, clusters, cameras)

def test_a_proxy_is_the_mean_of_a_cluster_in_a_camera():
    features, memory = unit(10, 6), memory_of()
    pairs = list(zip(memory.cluster.tolist(), memory.camera.tolist()))
    assert pairs == [(0, 0), (0, 1), (1, 0), (2, 1)] and len(memory) == 4
    for p, pair in enumerate(pairs):
        mine = (CLUSTERS == pair[0]) & (CAMERAS == pair[1])
        assert close(memory.proxies[p], F.normalize(features[mine].mean(0), dim=0))
        assert (memory.member[mine] == p).all()
    assert close(memory.proxies.norm(dim=1), torch.ones(4))
    assert ((memory.member == -1) == (CLUSTERS == -1)).all()

@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), n=st.integers(1, 30))
def test_proxies_of_any_clusters(seed, n):
    clusters = torch.randint(-1, 5, (n,), generator=seeded(seed))
    cameras = torch.randint(3, (n,), generator=seeded(seed + 1))
    if (clusters < 0).all():
        with pytest.raises(UserError, match="noise"): memory_of(unit(n, 4), clusters, cameras)
        return
    memory = memory_of(unit(n, 4), clusters, cameras)
    assert len(memory) == len({pair for pair in zip(clusters.tolist(), cameras.tolist()) if pair[0] >= 0})
    # the positives of a picture are those of its cluster; its own is one
    own = memory.member >= 0
    assert torch.equal(memory.cluster[memory.member[own]], clusters[own])
    assert torch.equal(memory.camera[memory.member[own]], cameras[own])

def test_an_update_keeps_a_fifth_and_goes_one_by_one():
    memory, f = memory_of(), unit(2, 6, seed=5)
    before = memory.proxies.clone()
    once = F.normalize(0.2 * before[2] + 0.8 * f[0], dim=0)
    memory.update(f, torch.tensor([2, 2]))
    assert close(memory.proxies[2], F.normalize(0.2 * once + 0.8 * f[1], dim=0))
    assert torch.equal(memory.proxies[[0, 1, 3]], before[[0, 1, 3]])

def many(proxies, each):
    return memory_of(unit(proxies * each, 4), torch.arange(proxies).repeat_interleave(each),
                     torch.arange(proxies).repeat_interleave(each) % 2)

@pytest.mark.parametrize("proxies, each", [(24, 6), (10, 6), (9, 1), (11, 3), (8, 4), (3, 5), (1, 2)])
def test_batches_hold_four_of_each_of_eight_proxies(proxies, each):
    for seed in range(5):
        memory, seen = many(proxies, each), Counter({p: 0 for p in range(proxies)})
        for batch in proxy_batches(memory, 12, seeded(seed)):
            counts = Counter(memory.member[batch].tolist())
            assert set(counts.values()) == {4} and len(counts) == min(8, proxies)
            repeated = Counter(batch.tolist()).values()
            # pictures come twice only where there are too few
            assert max(repeated) <= -(-4 // each)
            seen.update(counts.keys())
            # all proxies before any comes again
            assert max(seen.values()) - min(seen.values()) <= 1, seen

def test_batches_are_a_function_of_their_generator():
    a, b, c = (torch.cat(list(proxy_batches(many(24, 6), 5, seeded(s)))) for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)

def test_batches_leave_out_noise():
    assert not (CLUSTERS[torch.cat(list(proxy_batches(memory_of(), 20, seeded())))] < 0).any()

# ---- the loss

def slow_loss(features, proxies, memory, temperature, intra, inter, hard):
    "CAP's two losses camera by camera and picture by picture."
    total, cameras = 0.0, [memory.camera[p].item() for p in proxies]
    for c in set(cameras):
        rows = [i for i in range(len(proxies)) if cameras[i] == c]
        for i in rows:
            logit = [float(features[i].double() @ memory.proxies[p].double()) / temperature
                     for p in range(len(memory))]
            mine = int(proxies[i])
            here = [p for p in range(len(memory)) if memory.camera[p] == c]
            positives = [p for p in range(len(memory)) if memory.cluster[p] == memory.cluster[mine]]
            rivals = sorted((p for p in range(len(memory)) if p not in positives),
                            key=lambda p: -logit[p])[:hard]
            lse = lambda who: math.log(sum(math.exp(logit[p]) for p in who))
            own = lse(here) - logit[mine]
            across = -sum(logit[p] - lse(positives + rivals) for p in positives) / len(positives)
            total += (intra * own + inter * across) / len(rows)
    return total

def scattered(seed=0, n=40, clusters=6, cameras=3, dim=5):
    y, c = torch.arange(n) % clusters, torch.randint(cameras, (n,), generator=seeded(seed))
    features = F.normalize(normal(clusters, dim, seed=seed)[y] + 0.7 * normal(n, dim, seed=seed + 1))
    return features, ProxyMemory(features, y, c)

@pytest.mark.parametrize("hard", [1, 3, 50])
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_against_a_slow_loop(hard, seed):
    features, memory = scattered(seed)
    i = torch.randperm(40, generator=seeded(seed))[:16]
    got = camera_contrastive_loss(features[i], memory.member[i], memory, 0.1, 0.6, 0.7, hard)
    assert got.item() == pytest.approx(slow_loss(features[i], memory.member[i], memory, 0.1, 0.6, 0.7, hard),
                                       rel=1e-4)

def test_the_number_of_hard_negatives_matters():
    features, memory = scattered()
    losses = [camera_contrastive_loss(features, memory.member, memory, 0.2, 0, 1, hard).item()
              for hard in (1, 3, 50)]
    assert losses[0] < losses[1] < losses[2]

def test_with_one_camera_each_picture_has_one_positive_and_both_parts_are_the_full_softmax():
    features, memory = scattered(cameras=1)
    assert len(memory) == 6
    full = F.cross_entropy(features @ memory.proxies.T / 0.07, memory.member)
    for weights in ((1, 0), (0, 1), (0.6, 0.4)):
        assert close(camera_contrastive_loss(features, memory.member, memory, 0.07, *weights), full, 1e-5)

def test_inter_is_minus_the_log_softmax_of_a_single_positive():
    "Clusters that each live in one camera, two cameras: the rivals are those of both."
    y = torch.arange(24) % 6
    features = unit(24, 5)
    memory = ProxyMemory(features, y, y % 2)
    mine = features @ memory.proxies.T / 0.07
    wanted = -mine.log_softmax(1).gather(1, memory.member[:, None])[:, 0]
    assert close(camera_contrastive_loss(features, memory.member, memory, 0.07, 0, 1),
                 wanted[y % 2 == 0].mean() + wanted[y % 2 == 1].mean(), 1e-5)

@pytest.mark.parametrize("weights", [(1, 0), (0, 1), (0.6, 0.7)])
def test_the_loss_falls_when_a_picture_moves_to_its_proxy(weights):
    features, y = unit(12, 8), torch.arange(12) % 4
    memory = ProxyMemory(features, y, torch.zeros(12, dtype=torch.int64))
    losses = [camera_contrastive_loss(F.normalize((1 - share) * features[:1]
                                                  + share * memory.proxies[memory.member[:1]]),
                                      memory.member[:1], memory, 0.2, *weights).item()
              for share in (0, 0.3, 0.6, 1)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1] + 1e-3

# ---- clusters

def slow_jaccard(f, k1, k2):
    "Zhong et al. 2017 as in CAP, from sets and lists."
    f, n = f.double().numpy(), len(f)
    d = [[max(0.0, 2 - 2 * float(f[i] @ f[j])) for j in range(n)] for i in range(n)]
    order = [sorted(range(n), key=lambda j: d[i][j]) for i in range(n)]
    def mutual(i, k): return {j for j in order[i][:k + 1] if i in order[j][:k + 1]}
    rows = []
    for i in range(n):
        own = mutual(i, k1)
        wide = set(own)
        for j in own:
            half = mutual(j, round(k1 / 2))
            if 3 * len(half & own) > 2 * len(half): wide |= half
        total = sum(math.exp(-d[i][j]) for j in wide)
        rows.append([math.exp(-d[i][j]) / total if j in wide else 0.0 for j in range(n)])
    if k2 > 1:
        rows = [[sum(rows[m][j] for m in order[i][:k2]) / len(order[i][:k2]) for j in range(n)]
                for i in range(n)]
    return np.array([[1 - sum(map(min, a, b)) / sum(map(max, a, b)) for b in rows] for a in rows])

def blobs(groups, each, noise, seed=0, dim=16):
    return F.normalize(normal(groups, dim, seed=seed).repeat_interleave(each, 0)
                       + noise * normal(groups * each, dim, seed=seed + 1))

@pytest.mark.parametrize("k1, k2", [(20, 6), (8, 3), (5, 1), (7, 2), (60, 6)])
@pytest.mark.parametrize("seed", [0, 1])
def test_reranked_distance_against_a_slow_version(k1, k2, seed):
    f = blobs(6, 8, 0.8, seed)
    got = reranked_distance(f, k1, k2)
    assert got.shape == (48, 48) and np.abs(got - slow_jaccard(f, k1, k2)).max() < 1e-5

def test_neighbours_of_neighbours_and_of_the_query_do_matter(monkeypatch):
    "Else the comparison above would not see them."
    f = blobs(6, 8, 0.8)
    assert np.abs(reranked_distance(f, 8, 3) - reranked_distance(f, 8, 1)).max() > 0.05
    narrow = reranked_distance(f, 8, 1)
    monkeypatch.setattr(fedbook.methods.reid, "expanded", lambda distance,
                        k1: fedbook.methods.reid.reciprocal(distance, k1).tocoo())
    assert np.abs(narrow - reranked_distance(f, 8, 1)).max() > 0.01

@settings(deadline=None, max_examples=30)
@given(n=st.integers(2, 30), seed=st.integers(0, 99), k1=st.integers(1, 25), k2=st.integers(1, 8),
       twins=st.booleans())
def test_reranked_distance_is_a_symmetric_dissimilarity(n, seed, k1, k2, twins):
    f = unit(n, 4, seed=seed)
    if twins: f = f[torch.arange(n) // 2]
    d = reranked_distance(f, k1, k2)
    assert d.shape == (n, n) and np.isfinite(d).all() and d.min() >= 0 and d.max() <= 1
    assert (np.diag(d) == 0).all() and np.abs(d - d.T).max() < 1e-5

def test_too_few_pictures_to_rerank():
    for wrong in (unit(1, 4), unit(2, 4)[0]):
        with pytest.raises(UserError, match="features"): reranked_distance(wrong)

@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_are_not_clustered(value):
    features = unit(9, 4)
    features[2, 1] = value
    with pytest.raises(UserError, match="features of 1 of 9 pictures are not finite.*learning rate"):
        cluster(features)

def test_clusters_are_those_that_were_put_in():
    labels = cluster(blobs(5, 10, 0.05), 8, 3)
    assert labels.dtype == torch.int64 and len(labels.unique()) == 5
    assert all(len(group.unique()) == 1 for group in labels.split(10))

def test_noise_is_minus_one_and_all_noise_is_a_cluster_for_each():
    f = torch.cat([blobs(3, 10, 0.05), blobs(1, 3, 0.05, seed=9)])              # three are one too few
    assert cluster(f, 8, 3)[-3:].tolist() == [-1] * 3 and len(cluster(f, 8, 3).unique()) == 4
    assert cluster(f, 8, 3, min_samples=3).min() == 0
    assert cluster(torch.eye(6), 4, 2, eps=1e-6).tolist() == list(range(6))
    assert cluster(unit(1, 4)).tolist() == [0] and cluster(torch.zeros(0, 4)).tolist() == []

# ---- pictures and networks

def test_augment_is_a_function_of_its_generator():
    x = 2 * torch.rand(16, 3, 50, 24, generator=seeded()) - 1
    before = x.clone()
    a, b, c = (augment(x, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c) and torch.equal(x, before)
    assert a.shape == x.shape and a.dtype == x.dtype and a.min() >= -1 and a.max() <= 1

def test_augment_mirrors_moves_and_erases():
    x = torch.ones(400, 1, 50, 24) * torch.linspace(0.1, 1, 24)
    y = augment(x, seeded(), erase=0)
    mirrored = y[:, 0, 25, 20] < y[:, 0, 25, 3]
    assert 0.4 < mirrored.float().mean() < 0.6
    # the rim of at most two pixels
    assert (y == 0).float().mean((1, 2, 3)).max() < 0.15
    covered = (augment(torch.ones(400, 1, 50, 50), seeded(), erase=1)[:, 0, 2:-2, 2:-2] == 0).float().mean((1,
                                                                                                            2))
    assert covered.max() < 0.5 and covered.mean() > 0.1
    assert (augment(torch.ones(400, 1, 50, 50), seeded(), erase=0)[:, 0, 2:-2, 2:-2] == 1).all()
    assert 0.35 < (augment(torch.ones(400, 1, 50, 50), seeded())[:, 0, 2:-2,
                                                                 2:-2] == 0).any(2).any(1).float().mean() < 0.65

def test_the_small_networks_features():
    model = net().eval()
    x = torch.randint(256, (5, 3, 16, 8), generator=seeded(), dtype=torch.uint8)
    assert outputs(model, x).shape == (5, 16) and close(embed(model, x).norm(dim=1), torch.ones(5))
    assert close(outputs(model, x, 2), outputs(model, x), 1e-5)
    assert not model.neck.bias.requires_grad and (model.neck.bias == 0).all()

@pytest.mark.parametrize("name, dim, million", [("resnet34", 512, 21.284672), ("resnet50", 2048, 23.508032)])
def test_resnets_keep_the_resolution_of_the_last_stage(name, dim, million):
    with torch.device("meta"): model = resnet(name)
    assert sum(p.numel() for p in model.body.parameters()) == round(1e6 * million)
    assert model.neck.num_features == dim
    assert {m.stride for m in model.body[-1].modules() if isinstance(m, nn.Conv2d)} == {(1, 1)}
    with torch.device("meta"): assert model.body(torch.zeros(1, 3, 64, 32)).shape == (1, dim, 4, 2)

def test_resnets_that_cannot_be():
    with pytest.raises(UserError, match="resnet18"): resnet("resnet18")
    with pytest.raises(UserError, match="weights do not fit resnet34"):
        resnet("resnet34", {"conv1.weight": torch.zeros(1)})

# ---- a MobileNet and a ViT

LIGHT = {"mobilenet": replace(TINY, network="mobilenet", height=32, width=16),
         "vit": replace(TINY, network="vit", height=32, width=16, blocks=2)}
each_light = pytest.mark.parametrize("sizes", LIGHT.values(), ids=LIGHT)

@pytest.mark.parametrize("name, dim, body, maps", [("mobilenet", 576, 927008, (4, 2)),
                                                   ("vit", 192, 1823424, (1, 1))])
def test_networks_to_train_from_nothing(name, dim, body, maps):
    network = make_network(ReIDSizes(network=name), 0)
    assert sum(p.numel() for p in network.body.parameters()) == body
    x = torch.rand(3, 3, 64, 32, generator=seeded())
    assert network.neck.num_features == dim and network.body(x).shape == (3, dim, *maps)
    assert outputs(network, x).shape == (3, dim)
    assert not network.neck.bias.requires_grad and (network.neck.bias == 0).all()

@each_light
def test_their_weights_are_a_function_of_the_seed(sizes):
    torch.manual_seed(5)
    a, b, c = (snapshot(make_network(sizes, seed)) for seed in (0, 0, 1))
    assert equal(a, b) and not equal(a, c)
    assert torch.initial_seed() == 5 and torch.rand(1) == torch.rand(1, generator=seeded(5))

@each_light
def test_their_start_is_pretrained_and_made_once(sizes):
    start = start_of(sizes, 0)
    assert start is start_of(replace(sizes, steps=9), 0) and not equal(snapshot(start),
                                                                       snapshot(make_network(sizes, 0)))
    assert all(torch.isfinite(t).all() for t in snapshot(start).values())
    assert close(embed(start, site_of(0, sizes, 0).data.x[:3]).norm(dim=1), torch.ones(3))

def test_starts_differ_by_patch_and_blocks():
    few = replace(LIGHT["vit"], pretrain_steps=0)
    assert start_of(few, 0) is not start_of(replace(few, blocks=1), 0)
    assert start_of(few, 0) is not start_of(replace(few, patch=16), 0)
    assert [len(start_of(replace(few, blocks=k), 0).body[0].blocks) for k in (1, 2)] == [1, 2]
    assert start_of(replace(few, patch=16), 0).body[0].pos_embed.shape == (1, 1 + 2, 192)

@each_light
def test_they_learn(sizes, monkeypatch):
    "As if the clusters were the two identities."
    labels, sizes = torch.arange(16) // 8, replace(sizes, steps=10, batch=16, lr=3e-3)
    monkeypatch.setattr(fedbook.methods.reid, "cluster", lambda *_: labels)
    model, data = make_network(sizes, 0), site_of(0, sizes, 0).data
    def now():
        before = snapshot(model)
        with torch.no_grad(): features = F.normalize(model.train()(data.x.float() / 127.5 - 1))
        model.load_state_dict(before)
        memory = ProxyMemory(features, labels, data.cameras)
        return camera_contrastive_loss(features, memory.member, memory).item()
    before = now()
    learn(model, data, sizes, seeded(), adam(model, sizes), 2)
    assert now() < 0.9 * before

@pytest.mark.parametrize("changes, says", [(dict(patch=7), "patch=7 must divide .* 32 x 16"),
                                           (dict(patch=32), "patch=32 must divide"),
                                           (dict(height=36), "patch=8 must divide .* 36 x 16"),
                                           (dict(weights="auto"), "weights='auto' cannot be had"),
                                           (dict(network="mobilenet", weights="x.pth"), "'mobilenet'")])
def test_networks_that_do_not_fit(changes, says):
    make_network(replace(LIGHT["vit"], patch=16), 0)
    with pytest.raises(UserError, match=says): make_network(replace(LIGHT["vit"], **changes), 0)

# ---- what is held

IDENTITY, CAMERA = torch.arange(6).repeat_interleave(4), torch.tensor([0, 0, 1, 1]).repeat(6)

def test_held_out_are_whole_identities_seen_by_two_cameras():
    camera = CAMERA.clone()
    # identities 0 and 1 by one camera only
    camera[:8] = 0
    for share, count in ((0.0, 2), (0.3, 2), (0.5, 3), (1.0, 3)):
        train, val = hold_out(IDENTITY, camera, share, 0)
        assert sorted(train.tolist() + val.tolist()) == list(range(24))
        assert len(IDENTITY[val].unique()) == count
        assert not set(IDENTITY[train].tolist()) & set(IDENTITY[val].tolist()) and IDENTITY[val].min() >= 2
    draws = {tuple(hold_out(IDENTITY, camera, 0, seed)[1].tolist()) for seed in (0, 0, *range(1, 9))}
    assert 2 <= len(draws) <= 6
    assert torch.equal(hold_out(IDENTITY, camera, 0, 3)[1], hold_out(IDENTITY, camera, 0, 3)[1])

def test_identities_seen_by_one_camera_only():
    one = torch.zeros_like(CAMERA)
    with pytest.raises(UserError, match="identity has 0 identities seen by two cameras"):
        hold_out(IDENTITY, one, 0.5, 0)
    with pytest.raises(UserError, match="one camera only"): rank_all(unit(24, 4), IDENTITY, one)
    with pytest.raises(UserError, match="one camera only"):
        cmc_map(unit(2, 4), unit(2, 4), [1, 2], [1, 2], [0, 0], [0, 0])

def test_an_empty_gallery():
    with pytest.raises(UserError, match="gallery"):
        cmc_map(unit(2, 4), torch.zeros(0, 4), [1, 2], [], [0, 0], [])

def test_the_start_is_pretrained_and_a_function_of_the_seed():
    raw, a, b, c = make_network(TINY, 0), first_network(TINY, 0), first_network(TINY, 0), first_network(TINY,
                                                                                                        1)
    assert equal(snapshot(a), snapshot(b)) and not equal(snapshot(a), snapshot(c))
    assert not equal(snapshot(a), snapshot(raw))
    assert equal(snapshot(first_network(replace(TINY, pretrain_steps=0), 0)), snapshot(raw))
    assert (a.neck.bias == 0).all()

# ---- sizes

def test_the_network_has_the_channels_that_were_asked_for():
    assert make_network(replace(TINY, channels=6), 0).neck.num_features == 24
    assert not equal(snapshot(make_network(TINY, 0)), snapshot(make_network(TINY, 1)))

# ---- what reviews found

def test_the_start_does_not_depend_on_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        states = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            states.append(snapshot(first_network(replace(TINY, pretrain_steps=2), 0)))
    finally: torch.set_num_threads(before)
    assert equal(*states)

@pytest.mark.parametrize("changes, named",
                         [(dict(network="resnet34", weights="auto"), "weights"),
                          (dict(network="small", weights="x.pth"), "weights")])
def test_weights_that_cannot_be_had(changes, named):
    with pytest.raises(UserError, match=named): make_network(replace(TINY, **changes), 0)

# ---- answers

def test_answers():
    assert np.isclose(answers.average_precision([False, True, True]), (1 / 2 + 2 / 3) / 2)
    assert answers.average_precision([]) is None
    assert np.isclose(answers.by_chance(2, 4, 1), 0.5) and np.isclose(answers.by_chance(2, 4, 2), 5 / 6)
    assert answers.by_chance(1, 3, 3) == 1
    assert answers.grey_world([10.0, 20.0, 30.0]) == [2.0, 1.0, 20 / 30]
    assert answers.grey_world([0.0, 0.0, 5.0]) == [1.0, 1.0, 1.0]

# ---- learning

def pieces(**changes):
    sizes = replace(TINY, **changes)
    return net(), site_of(0, sizes, 0).data, sizes

def test_a_site_has_the_sizes_that_were_asked_for():
    for images, count in ((None, 32), (48, 48)):
        holding = site_of(0, replace(TINY, test_identities=3), 0, images)
        assert len(holding.data.x) + len(holding.data.x_val) == count
        assert holding.data.x.shape[1:] == (3, 16, 8)
        assert len(holding.query[0]) == 6 and len(holding.gallery[0]) == 18
    with pytest.raises(UserError, match="number=8"): site_of(8, replace(TINY, data="reid"), 0)

def test_learning_makes_the_loss_fall(monkeypatch):
    "As if the clusters were the two identities."
    model, data, sizes = pieces(steps=20, batch=16, lr=3e-3)
    labels = torch.arange(16) // 8
    monkeypatch.setattr(fedbook.methods.reid, "cluster", lambda *_: labels)
    def now():
        before = snapshot(model)
        with torch.no_grad(): features = F.normalize(model.train()(data.x.float() / 127.5 - 1))
        model.load_state_dict(before)
        memory = ProxyMemory(features, labels, data.cameras)
        return camera_contrastive_loss(features, memory.member, memory).item()
    before = now()
    learn(model, data, sizes, seeded(), adam(model, sizes), 4)
    assert now() < 0.8 * before

def test_the_sizes_reach_clusters_and_optimiser(monkeypatch):
    model, data, sizes = pieces(k1=5, k2=1, eps=0.3, min_samples=2, lr=0.5, weight_decay=0.3)
    seen = []
    monkeypatch.setattr(fedbook.methods.reid, "cluster", lambda f, *args: seen.append(args)
                        or torch.zeros(len(f), dtype=torch.int64))
    remember(model, data, sizes)
    group = adam(model, sizes, 0.1).param_groups[0]
    assert seen == [(5, 1, 0.3, 2)] and group["lr"] == pytest.approx(0.05) and group["weight_decay"] == 0.3
    assert len(group["params"]) == len([p for p in model.parameters()
                                        if p.requires_grad]) < len(list(model.parameters()))

def test_a_term_is_added_to_the_loss_and_the_last_word_comes_after_each_step():
    model, data, sizes = pieces(steps=3)
    terms, steps = [], []
    def also(x, out):
        terms.append((len(x), out.shape[1]))
        return 0 * out.sum()
    states = []
    for extra in (None, also):
        other = net()
        learn(other, data, sizes, seeded(1), adam(other, sizes), 2, extra, lambda: steps.append(1))
        states.append(snapshot(other))
    assert len(terms) == 6 and len(steps) == 12 and {d for _, d in terms} == {16}
    assert all(close(states[0][name].float(), t.float(), 1e-6) for name, t in states[1].items())

def test_learning_depends_on_its_generator_alone():
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(states))
        model, data, sizes = pieces()
        learn(model, data, sizes, seeded(seed), adam(model, sizes), 1)
        states.append(snapshot(model))
    assert equal(states[0], states[1]) and not equal(states[0], states[2])

def test_a_start_is_made_once_for_sizes_that_start_alike():
    assert start_of(TINY, 0) is start_of(replace(TINY, steps=9), 0) is not start_of(replace(TINY, channels=2),
                                                                                    0)

def test_sizes_that_cannot_be():
    for name, value in (("data", "cifar"), ("network", "vgg"), ("cameras", 0), ("validation", 1.5),
                        ("eps", 0.0), ("batch", 30), ("sites", 0)):
        with pytest.raises(UserError, match=f"^{name}=") as error: ReIDSizes(**{name: value})
        assert "\n" not in str(error.value)
