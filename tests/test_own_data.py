"""`data=PATH` in every chapter whose method fits: class folders, a COCO file or two, folders of people."""
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.kit.runs import check_needs, chapter_module, find
from fedbook.kit import command
from fedbook.kit.command import main, plan_of
from fedbook.datasets.folders import class_folder
from fedbook.datasets.streets import own_street
from fedbook.methods.reid import own_sites
from fedbook.engine.errors import UserError
from fedbook.engine.sizes import choose
from fedbook.engine.local import generator


def save(path, size, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    "Ten classes of eight pictures, in halves."
    root = tmp_path_factory.mktemp("classes")
    for half, count in (("train", 40), ("test", 20)):
        for c in range(10):
            for i in range(count): save(root / half / f"class{c}" / f"{i}.png", (28, 28), 100 * c + i)
    return root


def coco(path, count, start=0):
    images = [dict(id=i, file_name=f"{start + i}.png", height=48, width=80) for i in range(count)]
    boxes = [dict(id=i, image_id=i, category_id=1 + i % 2, bbox=[8, 8, 24, 20]) for i in range(count)]
    kinds = [dict(id=1, name="pot"), dict(id=2, name="leaf")]
    for image in images: save(path.parent / image["file_name"], (48, 80), start + image["id"])
    path.write_text(json.dumps(dict(images=images, annotations=boxes, categories=kinds)))


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    root = tmp_path_factory.mktemp("streets")
    coco(root / "instances_train.json", 14)
    coco(root / "instances_val.json", 4, 100)
    return root


def test_a_file_of_training_pictures_is_no_test(tmp_path):
    coco(tmp_path / "instances_trainval.json", 14)
    coco(tmp_path / "instances_test.json", 4, 100)
    *_, tests = own_street(tmp_path, 2, 4, np.random.default_rng(0))
    assert sum(map(len, tests.values())) == 4


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    "Three sites, each with six people before two cameras."
    root = tmp_path_factory.mktemp("people")
    for site in range(3):
        for part, ids in (("train", range(1, 9)), ("query", range(9, 13)), ("test", range(9, 13))):
            for id in ids:
                for cam in (1, 2):
                    save(root / f"site{site}" / part / f"{id:04d}_c{cam}s1_{id:06d}_0{cam}.jpg", (32, 16),
                         1000 * site + 10 * id + cam)
    return root


def sizes_of(name, **changes):
    module = chapter_module(next(iter(find(name).values())))
    sizes = choose(module.profiles, "smoke", {key: str(value) for key, value in changes.items()})
    check_needs(module, sizes)
    return module, sizes


@pytest.mark.parametrize("name", ["fedavg", "continual", "fedcbdr", "fedgtea", "fedreplay"])
def test_class_folders(classes, name):
    more = dict(weights="random") if name == "fedreplay" else {}
    experiment = plan_of(name, "smoke", changes={"data": str(classes), **more}).experiment
    assert experiment.sizes.data == str(classes)
    assert all(len(experiment.parts[id]) for id in experiment.ids) if name == "fedavg" else experiment.ids


@pytest.mark.parametrize("file", ["", "instances_train.json"])
@pytest.mark.parametrize("name, maker", [("detect", "street_for"), ("fedmox", "make_street")])
def test_coco_files(streets, name, maker, file):
    module, sizes = sizes_of(name, data=streets / file, server_images=4)
    street = getattr(module, maker)(sizes, 0)
    assert street.classes == ["pot", "leaf"] and len(street.server) == 4
    assert sum(map(len, [street.server, *street.clients])) == 14 - 2 * bool(file)
    assert {name: len(test) for name, test in street.tests.items()} == {"unknown": 2 if file else 4}
    assert street.tests["unknown"].boxes[0][1].numel() == 1


def test_folders_of_people(people):
    module, sizes = sizes_of("fedklpr", data=people, clients=3)
    sites = module.make_sites(sizes, 0)
    assert [site.name for site in sites] == ["site0", "site1", "site2"]
    assert all(len(site.query.identity) == 8 and len(site.data.x) for site in sites)
    with pytest.raises(UserError, match="clients=4 is more than the 3 sites"):
        module.make_sites(choose(module.profiles, "smoke", dict(data=str(people), clients=4)), 0)


def test_hidden_files_are_no_sites_and_no_boxes(people, streets, tmp_path):
    for name in ("site0", "__MACOSX", ".trash"): (tmp_path / name / "query").mkdir(parents=True)
    assert [site.name for site in own_sites(tmp_path)] == ["site0"]
    for name in ("instances_train.json", "instances_val.json"): (streets / f"._{name}").write_bytes(b"\0\5")
    module, sizes = sizes_of("fedmox", data=streets, server_images=4)
    assert len(module.make_street(sizes, 0).server) == 4
    for name in ("instances_train.json", "instances_val.json"): (streets / f"._{name}").unlink()


def test_one_site(people):
    module, sizes = sizes_of("reid", data=people / "site1")
    assert module.site_of(0, sizes, 0).name == "site1"
    with pytest.raises(UserError, match="number=1 is beyond the 1 sites"): module.site_of(1, sizes, 0)


@pytest.mark.parametrize("name", ["fedmox", "detect", "reid", "fedklpr"])
def test_what_is_no_path_is_refused_with_the_choices(name):
    with pytest.raises(UserError, match="data='nope' is unknown; choose one of .*, a path"):
        sizes_of(name, data="nope")


def test_folders_that_do_not_fit(streets, people, tmp_path):
    module, sizes = sizes_of("fedmox", data=people)
    with pytest.raises(UserError, match="has no boxes: expected a COCO file"): module.make_street(sizes, 0)
    module, sizes = sizes_of("fedmox", data=streets, server_images=13)
    with pytest.raises(UserError, match="has 14 pictures to train with, expected server_images=13"):
        module.make_street(sizes, 0)
    with pytest.raises(UserError, match="is not a folder of sites"): own_sites(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no sites"): own_sites(tmp_path)


# ---- what the command says before anything starts

def run(name, capsys, **changes):
    "The exit code of `fedbook run`, and what it says on stderr."
    pairs = [word for k, v in changes.items() for word in ("-p", f"{k}={v}")]
    return main(["run", name, "--profile", "smoke", *pairs]), capsys.readouterr().err


@pytest.fixture
def photos(tmp_path):
    "A folder as a telephone and two systems leave it: a photograph is damaged, another turned."
    root, turned = tmp_path / "photos", Image.Exif()
    for kind in ("cat", "dog", "owl"):
        for i in range(8): save(root / kind / f"{i}.jpg", [(60, 80), (80, 60)][i % 2], i)
    turned[274] = 6
    Image.new("RGB", (80, 60), "red").save(root / "cat" / "8.jpg", exif=turned)
    Image.fromarray(np.full((40, 40), 40000, np.uint16)).save(root / "cat" / "9.png")
    (root / "dog" / "._1.jpg").write_bytes(b"\0\5\x16\7")
    (root / "dog" / "Thumbs.db").write_bytes(b"\0")
    (root / "owl" / "8.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    damage(root / "owl" / "3.jpg")
    return root


def damage(file, end=1500): file.write_bytes(file.read_bytes()[:end])


def no_run(*_, **__): raise AssertionError("a chapter was started")


@pytest.mark.parametrize("name", ["methods/fedavg", "fedreplay", "fedgtea"])
def test_damaged_pictures_are_named_before_anything_starts(photos, name, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_chapters", no_run)
    code, said = run(name, capsys, data=photos, clients=2)
    assert code == 2 and "owl/3.jpg is not a picture that can be read; replace or remove it" in said
    damage(photos / "cat" / "0.jpg")
    said = run(name, capsys, data=photos, clients=2)[1]
    assert "2 of 26 pictures of photos cannot be read: " in said and "cat/0.jpg, " in said


@pytest.mark.parametrize("name, changes, why", [
    ("fedmox", {}, "data='.*photos' has no boxes: expected a COCO file, a folder with COCO files"),
    ("fedklpr", {}, "data='.*photos' holds no sites; expected folders train, query and gallery in it"),
    ("fedgtea", dict(tasks=5), "tasks=5 with classes=3 must be .*, so at most tasks=3\n"),
    ("evidence/fedreplay", dict(farms="2,99"), r"has 20 pictures .*too few for farms=\(2, 99\); .*such as -p farms=2\n"),
    ("fedreplay", dict(clients=4), "clients=4 is more than the 3 classes; .*, so at most clients=3\n"),
    ("fedavg", dict(split="domain"), "photos has no domains"),
    ("fedavg", dict(clients=99), "photos has 20 pictures to train with, too few for clients=99"),
    ("fedavg", dict(side=8), "side=8 must be 0, or at least 16")])
def test_what_a_chapter_cannot_take_is_refused_at_once(photos, name, changes, why, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_chapters", no_run)
    (photos / "owl" / "3.jpg").unlink()
    code, said = run(name, capsys, data=photos, **changes)
    assert code == 2 and re.search(why, said)


@pytest.mark.parametrize("drawn, why", [
    (("cat/0.png",) * 5, "data='.*mine' has one class, expected two or more"),
    (("0.png", "1.png"), "data='.*mine' has pictures in it and no folder for each class; "
     "give the folder above it")])
def test_a_folder_that_is_no_set_of_classes_is_refused_at_once(drawn, why, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_chapters", no_run)
    for k, name in enumerate(drawn): save((tmp_path / "mine" / name).with_stem(str(k)), (40, 40), k)
    code, said = run("fedavg", capsys, data=tmp_path / "mine", clients=2)
    assert code == 2 and re.search(why, said)


def test_what_is_left_out_and_resized_is_said_once(photos, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_chapters", lambda *_, **__: [])
    (photos / "owl" / "3.jpg").unlink()
    code, said = run("fedavg", capsys, data=photos, alpha="inf")
    assert code == 0 and said.count("photos: left out are files that are not read as pictures (1 .heic)") == 1
    resized = "photos: 25 pictures from 40 x 40 to 60 x 80 pixels (width x height) are resized to 32 x 32 ("
    assert said.count(resized) == 1
    said = run("fedreplay", capsys, data=photos)[1]
    assert "left out are" in said and "resized" not in said


def test_a_skew_that_cannot_be_dealt_is_refused_before_anything_starts(photos, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_chapters", lambda *_, **__: [])
    (photos / "owl" / "3.jpg").unlink()
    code, said = run("fedavg", capsys, data=photos, alpha=0.01)
    assert code == 2 and "alpha=0.01 with clients=20 left a client without pictures" in said


def test_boxes_and_people_that_fit_are_taken(streets, people, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_chapters", lambda *_, **__: [])
    assert run("fedmox", capsys, data=streets, server_images=4)[0] == 0
    assert run("fedklpr", capsys, data=people, clients=3)[0] == 0
    damage(next(people.rglob("0001_c1*.jpg")), 300)
    assert "0001_c1s1_000001_01.jpg is not a picture" in run("fedklpr", capsys, data=people, clients=3)[1]


# ---- a node with data of its own

def save_classes(root, names, count=10):
    for c, name in enumerate(names):
        for i in range(count): save(root / name / f"{i}.png", (28, 28), 100 * c + i)


def test_the_list_of_classes_beside_the_folders_says_their_numbers(tmp_path):
    save_classes(tmp_path / "farm", ["wheat", "rye"])
    (tmp_path / "farm" / "classes.txt").write_text("maize\nwheat\n\nrye\n")
    found = class_folder(tmp_path / "farm")
    assert found.classes == ["maize", "wheat", "rye"] and found.labels.unique().tolist() == [1, 2]
    (tmp_path / "farm" / "oats").mkdir()
    with pytest.raises(UserError, match="holds a folder 'oats', which .*classes.txt does not list"):
        class_folder(tmp_path / "farm")


@pytest.mark.parametrize("name", ["fedavg", "continual", "fedcbdr", "fedgtea", "fedreplay"])
def test_a_client_of_class_folders_of_its_own(classes, name):
    experiment = plan_of(name, "smoke").experiment
    one, other = (experiment.own_client(id, folder=str(classes)) for id in (1, 2))
    assert (one.id, other.id) == (1, 2)
    assert not torch.equal(one.generator.get_state(), other.generator.get_state())
    assert torch.equal(one.generator.get_state(), generator(0, 1).get_state())
    if hasattr(one, "tasks"): assert {c for _, y in one.tasks for c in y.tolist()} == set(range(10))
    else: assert len(one.y) == 10 * getattr(experiment.sizes, "pictures", 40) and one.y.unique().tolist() == list(range(10))


def test_a_farm_with_some_of_the_classes_keeps_their_numbers(tmp_path):
    save_classes(tmp_path / "farm", ["rye", "wheat"])
    (tmp_path / "farm" / "classes.txt").write_text("barley\nmaize\nrye\nwheat\n")
    experiment = plan_of("fedreplay", "smoke", changes=dict(clients="2")).experiment
    assert experiment.own_client(1, folder=str(tmp_path / "farm")).y.unique().tolist() == [2, 3]


def test_clients_of_coco_files_and_of_a_site_of_their_own(streets, people):
    fedmox = plan_of("fedmox", "smoke").experiment
    assert fedmox.own_client(2, folder=str(streets), server_images=4).n == 10
    fedklpr = plan_of("fedklpr", "smoke").experiment
    assert fedklpr.own_client(1, folder=str(people / "site1")).id == 1


def test_a_chapter_without_a_reader_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="'data' is not a parameter of this chapter"):
        plan_of("pruning", "smoke").experiment.own_client(0, folder=str(tmp_path))
