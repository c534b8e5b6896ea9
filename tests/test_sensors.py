"Rendered machines: what a fault changes, who shares a unit, what a reader refuses, kernels by hand."
import math

import numpy as np
import pytest
import torch

from fedbook.engine.errors import UserError
from fedbook.datasets.sensors import (LOADS, MACHINES, MINUTES, SENSOR_CLASSES, SENSORS, STATES, Series,
                                      drawn_load, drawn_unit, kernel_features, lagged, machine_sensors,
                                      own_sensors, random_kernels, render_minute, scaled_like, series_folder,
                                      series_of, sound_minute)


def rng(*key): return np.random.default_rng(key)


def write(folder, kind, number, header, rows):
    file = folder / kind / f"{number}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([header, *rows]) + "\n")


# -- the world -----------------------------------------------------------------------------------------------
def test_a_series_depends_on_its_key_alone():
    few, many, other = machine_sensors(3, 32, 1), machine_sensors(6, 32, 1), machine_sensors(3, 32, 2)
    assert torch.equal(few.x[:3], many.x[:3]) and torch.equal(few.x[3:6], many.x[6:9])
    assert not torch.equal(few.x, other.x) and few.x.abs().max() <= 1 and few.x.dtype == torch.float32
    assert few.classes == [" ".join(names) for names in SENSOR_CLASSES] and len(few) == 75


def test_no_unit_is_in_two_classes_or_in_both_parts():
    train, test = machine_sensors(2 * MINUTES, 32, 0), machine_sensors(MINUTES, 32, 0, "test")
    assert not set(train.unit.tolist()) & set(test.unit.tolist())
    sizes = train.unit.unique(return_counts=True)[1]
    assert (sizes == MINUTES).all() and len(sizes) == 50


@pytest.mark.parametrize("machine", MACHINES)
def test_a_fault_does_nothing_at_no_severity_and_shows_under_load(machine):
    for state, fault in STATES.items():
        moved = []
        for severity in (0.0, 1.0):
            minute, sound = (sound_minute(MACHINES[machine], rng(3), 128) for _ in range(2))
            fault(minute, MACHINES[machine], severity, rng(4))
            moved.append(np.abs(minute.readings - sound.readings).max())
        assert moved[0] < 1e-12 and (moved[1] > 0.05) == (state != "healthy"), state


def test_loads_are_a_staircase():
    t = np.arange(4000) / 4000
    for s in range(20):
        load = drawn_load(rng(s), t)
        near = np.min(np.abs(load[:, None] - np.array(LOADS)), axis=1) < 0.01
        assert near.mean() > 0.6 and load.min() > 0.19 and load.max() < 1.01


def test_lag_is_the_exact_answer_to_a_step():
    drive = np.r_[0.0, np.ones(999)]
    t = np.arange(1000) / 1000
    assert np.allclose(lagged(drive, 0.2)[1:], 1 - np.exp(-(t[1:] - t[1]) / 0.2), atol=1e-12)


def test_the_knock_of_a_bearing_has_its_rate():
    "At full load the knocking is periodic: its spectrum peaks at knocks times turns."
    machine = MACHINES["compressor"]
    for s in range(200):
        minute = sound_minute(machine, rng(s), 1024)
        if np.ptp(minute.load) < 1e-6 and minute.load[0] == 1.0: break
    else: pytest.fail("no minute at full load")
    before = minute.readings[1].copy()
    STATES["bearing"](minute, machine, 1.0, rng(1))
    spectrum = np.abs(np.fft.rfft(minute.readings[1] - before - (minute.readings[1] - before).mean()))
    assert abs(int(spectrum.argmax()) - machine.knocks * machine.turns) <= 1


def test_wishes_that_cannot_be_granted():
    for bad, sentence in ((dict(per_class=0), "per_class=0"), (dict(per_class=2, steps=8), "steps=8"),
                          (dict(per_class=1, seed=-1), "seed=-1"), 
                          (dict(per_class=1, split="val"), "split='val'")):
        with pytest.raises(UserError, match=sentence): machine_sensors(**bad)


# -- series that fit together, and that do not ------------------------------------------------------------
def test_a_gap_gets_one_sentence():
    holed = [np.zeros((2, 5)), np.zeros((2, 5))]
    holed[1][1, 3] = np.nan
    with pytest.raises(UserError,
                       match=r"series 1 of mine has a gap: step 3 of sensor 'bar' is no finite number \(1 in"):
        series_of(holed, [0, 0], ["a"], ["volt", "bar"], "mine")


def test_unequal_lengths_get_one_sentence():
    sentence = r"series 0 and 1 of mine have shapes \(2, 5\) and \(2, 4\), expected one"
    with pytest.raises(UserError, match=sentence):
        series_of([np.zeros((2, 5)), np.zeros((2, 4))], [0, 0], ["a"], ["volt", "bar"], "mine")
    with pytest.raises(UserError, match="readings of mine are empty"):
        series_of([], [], ["a"], ["volt"], "mine")


def test_fields_that_do_not_fit_get_one_sentence():
    x, y = torch.zeros(3, 2, 5), torch.tensor([0, 1, 1])
    fields = dict(x=x, labels=y, classes=["a", "b"], sensors=["v", "w"], name="mine")
    assert len(Series(**fields)) == 3
    for wrong, sentence in ((dict(x=x.double()), "x=float64"), 
                            (dict(sensors=["v"]), r"must be float32 \(3, 1, steps\)"),
                            (dict(classes=["a"]), r"labels=0..1 must be positions in the 1"),
                            (dict(unit=torch.zeros(2)), "unit has 2 entries, expected 3")):
        with pytest.raises(UserError, match=sentence): Series(**fields | wrong)


# -- readings of your own ------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    for split in ("train", "test"):
        for kind, high in (("calm", 1), ("wild", 9)):
            for n in range(2):
                write(tmp_path / "sensors" / split, kind, n, "amp,bar",
                      [f"{high * t},{10 + n}" for t in range(4)])
    return tmp_path


def test_tables_are_read(folder):
    data = series_folder(folder / "sensors" / "train")
    assert data.classes == ["calm", "wild"] and data.sensors == ["amp", "bar"] and data.x.shape == (4, 2, 4)
    assert data.x[2, 0].tolist() == [0, 9, 18, 27] and data.labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("header, rows, sentence", [
    ("amp,bar", ["1,2", "3,", "5,6", "7,8"], "gap: step 1 of sensor 'bar'"),
    ("amp,bar", ["1,2", "3,4"], "have shapes"), ("amp,psi", ["1,2"] * 4, "has the sensors"),
    ("amp,bar", ["1,2,3"] * 4, "has 2 names and 3 columns"), ("amp,bar", ["1,2", "3"], "is not a table"),
    ("amp,bar", [], "0 columns")])
def test_tables_that_do_not_fit_get_one_sentence(folder, header, rows, sentence):
    write(folder / "sensors" / "train", "wild", 9, header, rows)
    with pytest.raises(UserError, match=sentence): series_folder(folder / "sensors" / "train")


def test_folders_without_tables_get_one_sentence(tmp_path):
    with pytest.raises(UserError, match="is not a folder of classes"): series_folder(tmp_path / "nowhere")
    (tmp_path / "calm").mkdir()
    with pytest.raises(UserError, match="holds no table CLASS"): series_folder(tmp_path)


def test_own_sensors_are_scaled_by_their_training_part(folder, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(folder))
    train, test = own_sensors("train"), own_sensors("test")
    assert train.x.amin() == -1 and train.x.amax() == 1 and torch.equal(train.x, test.x)
    for file in (folder / "sensors" / "test").rglob("*.csv"): file.write_text("amp,bar\n" + "99,11\n" * 4)
    assert own_sensors("test").x[:, 0].eq(1).all(), "cut at what training has seen"
    for file in (folder / "sensors" / "test").rglob("*.csv"): file.write_text("amp,bar\n" + "1,11\n" * 6)
    with pytest.raises(UserError, match="other classes, sensors or lengths"): own_sensors("test")


def test_without_the_folder_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    assert own_sensors("train") is None


def test_a_sensor_that_never_moves_is_scaled_all_the_same():
    data = series_of([np.ones((1, 4))], [0], ["a"], ["v"], "mine")
    assert scaled_like(data, data).x.isfinite().all()


# -- random kernels -----------------------------------------------------------------------------------------
def by_hand(x, kernel):
    "Share of positive answers and largest answer of one kernel on one series (sensors, steps), with loops."
    weights, bias, dilation, padding = kernel
    weights = weights[0].numpy().astype(float)
    line = np.pad(np.asarray(x, float), ((0, 0), (padding, padding)))
    length = weights.shape[1]
    answers = [bias + sum(weights[s, k] * line[s, t + k * dilation] for s in range(len(line))
                          for k in range(length))
               for t in range(line.shape[1] - (length - 1) * dilation)]
    return np.mean(np.array(answers) > 0), max(answers)


@pytest.mark.parametrize("sensors, steps", [(1, 16), (6, 32)])
def test_features_are_those_of_loops(sensors, steps):
    x = torch.from_numpy(rng(5).normal(size=(3, sensors, steps)).astype(np.float32))
    kernels = random_kernels(sensors, steps, 9, seed=2)
    found = kernel_features(x, kernels)
    assert found.shape == (3, 18 + sensors)
    for i in range(3):
        wanted = [v for kernel in kernels for v in by_hand(x[i], kernel)]
        assert np.allclose(found[i, :18].numpy(), wanted, atol=1e-4)
    assert torch.allclose(found[:, 18:], x.mean(2))


def test_kernels_sum_to_nothing_and_fit_into_the_series():
    for seed in range(20):
        for weights, bias, dilation, padding in random_kernels(4, 20, 10, seed):
            assert weights.sum(2).abs().max() < 1e-5 and -1 <= bias <= 1
            reach = (weights.shape[2] - 1) * dilation
            assert reach <= 19 and padding in (0, reach // 2)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(random_kernels(4, 20, 5, 1),
                                                       random_kernels(4, 20, 5, 1)))


def test_severity_moves_the_readings():
    unit = drawn_unit(rng(6))
    mild, bad = (render_minute("pump", "leak", unit, [6], 64, severity) for severity in (0.1, 1.0))
    pressure = SENSORS.index("pressure")
    assert bad[pressure].mean() < mild[pressure].mean() - 0.1
    assert math.isclose(bad[0].mean(), mild[0].mean(), abs_tol=1e-6)
