"""The gates for files as people have them: pictures, folders of classes, texts, JSON, tables."""
import json
import os
import unicodedata
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.datasets.folders import class_folder, coco_boxes, pictures, reid_folder
from fedbook.datasets.reading import json_body, picture, picture_size, shown, table, text, upright_boxes
from fedbook.datasets.sensors import series_folder
from fedbook.datasets.streets import resized
from fedbook.engine.errors import UserError


def save(path, image=None, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("RGB", (8, 8))).save(path, **how)
    return path


def turned(image, turn):
    exif = image.getexif()
    exif[274] = turn
    return dict(image=image, exif=exif)


# ---- pictures

@pytest.mark.parametrize("high, mode, name", [
    (65535, np.uint16, "a.png"), (1, np.float32, "a.tif"), (255, np.float32, "a.tif"), (65535, np.int32, "a.tif")])
def test_greys_of_many_bits_are_scaled(tmp_path, high, mode, name):
    ramp = np.linspace(0, high, 64).astype(mode).reshape(8, 8)
    found = picture(save(tmp_path / name, Image.fromarray(ramp)))
    assert found.dtype == torch.uint8 and found.shape == (3, 8, 8) and torch.equal(found[0], found[2])
    assert np.abs(found[0].numpy() - ramp * (255 / high)).max() <= .51


@pytest.mark.parametrize("values", [[-1, 1], [0, 1e6], [0, np.nan]])
def test_greys_without_a_scale_are_refused(tmp_path, values):
    path = save(tmp_path / "a.tif", Image.fromarray(np.array([values], np.float32)))
    with pytest.raises(UserError, match="a.tif has greys from .* save it with 8 bits"): picture(path)


@pytest.mark.parametrize("turn", [1, 5, 6, 7, 8])
def test_a_turned_photo_stands_upright_with_its_boxes(tmp_path, turn):
    stored = Image.new("L", (16, 8))
    stored.paste(255, (2, 1, 7, 3))
    path = save(tmp_path / "a.png", **turned(stored, turn))
    found = picture(path)
    assert picture_size(path) == found.shape[1:] == ((16, 8) if turn > 4 else (8, 16))
    [(x1, y1, x2, y2, label)], size = upright_boxes([(2, 1, 7, 3, "lamp")], (8, 16), path)
    inside = torch.zeros(size)
    inside[y1:y2, x1:x2] = 255
    assert torch.equal(found[0].float(), inside) and label == "lamp"


def test_a_photo_on_its_head(tmp_path):
    stored = Image.new("L", (16, 8))
    stored.putpixel((0, 0), 255)
    found = picture(save(tmp_path / "a.png", **turned(stored, 3)))
    assert found[0].nonzero().tolist() == [[7, 15]]


def test_boxes_of_an_upright_photo_stay(tmp_path):
    path = save(tmp_path / "a.jpg", **turned(Image.new("RGB", (16, 8)), 6))
    assert upright_boxes([(1, 2, 3, 4, 0)], (16, 8), path) == ([(1, 2, 3, 4, 0)], (16, 8))
    with pytest.raises(UserError, match="a.jpg has 16 x 8 pixels, but its labels are for 32 x 16"):
        upright_boxes([], (16, 32), path)


def test_transparent_pictures_lie_on_white(tmp_path):
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert picture(save(tmp_path / "a.png", image))[:, 0].T.tolist() == [[255] * 3, [10, 20, 30]]


def test_a_picture_of_too_many_pixels_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(UserError, match="a.png has more than 20 pixels"): picture(save(tmp_path / "a.png"))


def test_resized_boxes_follow_the_upright_photo(tmp_path):
    save(tmp_path / "a.jpg", **turned(Image.new("RGB", (16, 8)), 6))
    coco(tmp_path, images=[dict(id=1, file_name="a.jpg", width=16, height=8)], box=[2, 1, 5, 2])
    found = resized(coco_boxes(tmp_path / "a.json", tmp_path), (32, 16))
    assert found.boxes[0].xyxy.tolist() == [[10, 4, 14, 14]]


# ---- folders of classes

def left_out(read):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return read(), " ".join(str(each.message) for each in said)


def test_hidden_files_are_no_pictures_and_what_is_left_out_is_said(tmp_path):
    for kind in ("cat", "dog"):
        for i in range(2):
            save(tmp_path / kind / f"{i}.png")
            save(tmp_path / kind / ".ipynb_checkpoints" / f"{i}-checkpoint.png")
            save(tmp_path / "__MACOSX" / kind / f"{i}.png")
        (tmp_path / kind / "._0.png").write_bytes(b"\0\5\x16\7")
        (tmp_path / kind / "Thumbs.db").touch()
    (tmp_path / "dog" / "2.HEIC").touch()
    (tmp_path / "notes").mkdir()
    data, said = left_out(lambda: class_folder(tmp_path))
    assert data.classes == ["cat", "dog"] and len(data) == 4
    assert "folders without pictures (notes) and files that are not read as pictures (1 .heic)" in said
    (tmp_path / "notes").rmdir()
    (tmp_path / "dog" / "2.HEIC").unlink()
    assert left_out(lambda: class_folder(tmp_path))[1] == ""


def test_hidden_folders_above_are_no_matter(tmp_path):
    save(tmp_path / ".cache" / "set" / "cat" / "a.png")
    assert len(class_folder(tmp_path / ".cache" / "set")) == 1


@pytest.mark.parametrize("lines, classes", [
    ("1 001.Owl\n2 002.Tit\n", ["001.Owl", "002.Tit"]), ("0,002.Tit\n1,001.Owl", ["002.Tit", "001.Owl"]),
    ("\ufeff002.Tit\n\n001.Owl\n002.Tit\n", ["002.Tit", "001.Owl"])])
def test_lists_of_classes(tmp_path, lines, classes):
    for name in ("001.Owl", "002.Tit"): save(tmp_path / "images" / name / "a.png")
    (tmp_path / "classes.txt").write_text(lines, encoding="utf-8")
    assert class_folder(tmp_path / "images").classes == classes


def test_names_that_begin_with_numbers_stay(tmp_path):
    for name in ("1 cup", "2 cups"): save(tmp_path / name / "a.png")
    (tmp_path / "classes.txt").write_text("1 cup\n2 cups\n")
    assert class_folder(tmp_path).classes == ["1 cup", "2 cups"]


def test_an_accent_is_one_letter_whoever_wrote_it(tmp_path):
    for form in ("NFC", "NFD"): save(tmp_path / unicodedata.normalize(form, "p\u00eache") / f"{form}.png")
    data = class_folder(tmp_path)
    assert data.classes == ["p\u00eache"] and data.labels.tolist() == [0, 0]


def test_people_without_hidden_companions(tmp_path):
    save(tmp_path / "query" / "0002_c1s1_000451_03.jpg")
    (tmp_path / "query" / "._0002_c1s1_000451_03.jpg").write_bytes(b"\0")
    assert len(reid_folder(tmp_path, "query")) == 1


def test_a_class_may_be_missing_in_the_test(tmp_path):
    for place in ("train/a", "train/b", "train/c", "test/a", "test/c"): save(tmp_path / place / "0.png")
    data, said = left_out(lambda: pictures(tmp_path, "test"))
    assert data.classes == ["a", "b", "c"] and data.labels.tolist() == [0, 2]
    assert "no pictures of b in test" in said
    save(tmp_path / "test" / "B" / "0.png")
    with pytest.raises(UserError, match="'B' is in test alone; .*classes.txt"): pictures(tmp_path, "test")


# ---- COCO

def coco(folder, images=None, box=(5, 5, 20, 10), **change):
    if images is None: save(folder / "0.jpg", Image.new("RGB", (40, 30)))
    body = dict(images=images or [dict(id=1, file_name="0.jpg", width=40, height=30)],
                categories=[dict(id=1, name="cup"), dict(id=2, name="p\u00eache")],
                annotations=[dict(id=1, image_id=1, category_id=1, bbox=list(box))])
    (folder / "a.json").write_text(json.dumps({**body, **change}, ensure_ascii=False), "utf-8-sig")
    return folder / "a.json"


def note(**change): return dict(dict(id=1, image_id=1, category_id=1, bbox=[5, 5, 20, 10]), **change)


@pytest.mark.parametrize("change", [dict(image_id="1"), dict(category_id="1"), dict(image_id=1.0)])
def test_ids_as_texts_are_the_same_ids(tmp_path, change):
    data = coco_boxes(coco(tmp_path, annotations=[note(**change)]), tmp_path)
    assert data.boxes[0].xyxy.tolist() == [[5, 5, 25, 15]] and data.classes == ["cup", "p\u00eache"]


@pytest.mark.parametrize("change, sentence", [
    (dict(categories=[dict(id=1, name="cup"), dict(id="x", name="can")]), "ids 1, x: expected all numbers"),
    (dict(categories=[dict(id=1, name="cup"), dict(id="1", name="can")]), "two categories with the id 1"),
    (dict(annotations={"1": note()}), "annotations is a dict, expected a list"),
    (dict(annotations=[note(image_id=7)]), "1 of 1 annotations name no picture"),
    (dict(annotations=[note(category_id=7)]), "1 of 1 annotations name no picture or no category"),
    (dict(images=[dict(id=1, file_name="0.jpg", width=80, height=60)]), "labels are for 80 x 60")])
def test_coco_files_that_lose_boxes_are_refused(tmp_path, change, sentence):
    save(tmp_path / "0.jpg", Image.new("RGB", (40, 30)))
    with pytest.raises(UserError, match=sentence): coco_boxes(coco(tmp_path, **change), tmp_path)


def test_lost_boxes_are_counted(tmp_path):
    path = coco(tmp_path, annotations=[note(), note(image_id=7)])
    data, said = left_out(lambda: coco_boxes(path, tmp_path))
    assert len(data.boxes[0].labels) == 1 and "1 of 2 annotations name no picture" in said


def test_a_class_that_no_category_has(tmp_path):
    path = coco(tmp_path)
    with pytest.raises(UserError, match="no category 'cap'; choose of cup"):
        coco_boxes(path, tmp_path, classes=["cup", "cap"])
    assert coco_boxes(path, tmp_path, classes=["Cup"]).classes == ["cup"]


# ---- texts and tables

@pytest.mark.parametrize("home, path, told", [
    ("/home/al", "/home/al/x", "~/x"), ("/home/al", "/home/alice/x", "/home/alice/x"), ("/", "/data/x", "~/data/x"),
    ("/root", "/mnt/root/x", "/mnt/root/x"), ("/home/al", "photos", "photos")])
@pytest.mark.skipif(os.name != "posix", reason="paths of Linux and macOS")
def test_a_path_is_shown_as_one_that_is_there(monkeypatch, home, path, told):
    monkeypatch.setenv("HOME", home)
    assert shown(path) == told


def test_texts_by_their_marks(tmp_path):
    for code in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / "a.json").write_text('"p\u00eache"', code)
        assert json_body(tmp_path / "a.json") == "p\u00eache"
    (tmp_path / "a.txt").write_bytes("p\u00eache".encode("latin-1"))
    with pytest.raises(UserError, match="a.txt is not UTF-8 .*save it as UTF-8"): text(tmp_path / "a.txt")
    with pytest.raises(UserError, match="b.txt cannot be read"): text(tmp_path / "b.txt")


@pytest.mark.parametrize("lines, names", [
    ("ax,ay\n1.5,2\n3,\n", ["ax", "ay"]), ("ax;ay\n1,5;2\n3;NA\n", ["ax", "ay"]),
    ("sep=;\nax;ay\n1,5;2\n3;\n", ["ax", "ay"]), ("ax\tay\r\n1,5\t2\r\n3\tnan\r\n", ["ax", "ay"]),
    ("1.5,2\n3,nan\n", ["column 1", "column 2"]), ("1.5 2\n3   nan\n", ["column 1", "column 2"]),
    ("0,1\n1.5,2\n3,\n", ["0", "1"]), (",0,1\n0,1.5,2\n1,3,\n", ["0", "1"]),
    (',ax,ay\n0,1.5,2\n1,3,\n', ["ax", "ay"]), ('"ax","ay"\n"1.5","2"\n\n3,""\n', ["ax", "ay"])])
def test_tables_of_many_countries(tmp_path, lines, names):
    (tmp_path / "a.csv").write_text(lines, "utf-8-sig")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, numbers = table(tmp_path / "a.csv")
    assert found == names and numbers.shape == (2, 2) and numbers[:, 0].tolist() == [1.5, 2]
    assert numbers[0, 1] == 3 and np.isnan(numbers[1, 1])


@pytest.mark.parametrize("lines, sentence", [
    ("time,ax\n2020-01-01,1\n", "'2020-01-01' in the column 'time' is no number"), ("", "is empty"),
    ("ax,,ay\n1,7,2\n3,7,4\n", "column 2 has no name"), (",ax\n5,1\n5,2\n", "column 1 has no name"),
    ("ax;ay\n1.000,5;2\n", "'1.000,5'"), ("ax,ay\n1,2\n3\n", "have 1 to 2 columns")])
def test_tables_that_are_none(tmp_path, lines, sentence):
    (tmp_path / "a.csv").write_text(lines)
    with pytest.raises(UserError, match=sentence): table(tmp_path / "a.csv")


def test_series_in_capital_letters(tmp_path):
    (tmp_path / "walk").mkdir()
    (tmp_path / "walk" / "1.CSV").write_text(",ax\n0,1\n1,2\n")
    (tmp_path / "walk" / "._1.CSV").write_bytes(b"\0")
    data, said = left_out(lambda: series_folder(tmp_path))
    assert data.sensors == ["ax"] and data.x.tolist() == [[[1, 2]]] and "counts the lines" in said
