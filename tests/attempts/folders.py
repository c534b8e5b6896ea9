"Attempts at the exercises of datasets/folders: wrong ones that `check` must catch, right ones written another way."
from fedbook.datasets.folders import read_name


def leaking__wrong_counts_plants(train, test): return len(set(train) & set(test))


def leaking__wrong_counts_training_pictures(train, test): return sum(plant in test for plant in train)


def leaking__wrong_share(train, test): return leaking__right_one_by_one(train, test) / max(len(test), 1)


def leaking__right_one_by_one(train, test): return len([plant for plant in test if train.count(plant)])


def corners__wrong_not_clipped(box, width, height):
    x, y, w, h = box
    return [x, y, x + w, y + h]


def corners__wrong_size_is_clipped_alone(box, width, height):
    x, y, w, h = box
    return [max(x, 0), max(y, 0), max(x, 0) + min(w, width), max(y, 0) + min(h, height)]


def corners__wrong_empty_boxes_stay(box, width, height):
    x, y, w, h = box
    clip = lambda value, most: min(max(value, 0), most)
    return [clip(x, width), clip(y, height), clip(x + w, width), clip(y + h, height)]


def corners__right_by_clipping_places(box, width, height):
    x, y, w, h = box
    clip = lambda value, most: min(max(value, 0), most)
    found = [clip(x, width), clip(y, height), clip(x + w, width), clip(y + h, height)]
    return found if found[0] != found[2] and found[1] != found[3] else None


def _pairs(names): return [pair for pair in map(read_name, names) if pair]


def two_cameras__wrong_counts_junk(names):
    pairs = set(_pairs(names))
    return sum(len({c for i, c in pairs if i == who}) > 1 for who in {i for i, _ in pairs})


def two_cameras__wrong_counts_pictures(names):
    people = [i for i, _ in _pairs(names) if i > 0]
    return sum(people.count(who) > 1 for who in set(people))


def two_cameras__wrong_counts_cameras(names): return len({c for i, c in _pairs(names) if i > 0})


def two_cameras__right_by_sorting(names):
    people = [i for i, _ in sorted(set(_pairs(names))) if i > 0]
    return len({i for i in people if people.count(i) > 1})
