"""What a run reads of its sizes. A field that nothing reads is a promise that nobody keeps: `-p` of it
changes the run's name and nothing else."""
import dataclasses
import sys
from contextlib import contextmanager
from dataclasses import fields

from fedbook.engine.sizes import Profile, choose

CHOOSE, SIZES = choose.__code__, choose.__code__.co_filename
PACKAGE = SIZES.removesuffix("engine/sizes.py")     # what the library itself chooses, as a server its defaults, is no profile


class Spy:
    """The fields of profiles, name of the class to names of the fields, that were `asked` for since the sizes
    were chosen.

    `replace(sizes, lr=1.0)` asks for no field, and to ask the copy for `lr` is not to ask the sizes for it:
    each copy knows which fields it has `carried` over from what was chosen."""

    def __init__(self): self.asked, self.chosen, self.moved = {}, set(), {}

    def unread(self):
        "Class name to the names of its fields that nobody asked for, of the profiles that were chosen."
        lacking = {kind: [field.name for field in fields(kind) if field.name not in self.asked.get(kind, ())]
                   for kind in self.chosen}
        return {kind.__name__: names for kind, names in lacking.items() if names}

    def born(self, sizes):
        "Note of new `sizes` which of their fields are the chosen ones."
        frame = sys._getframe(2)
        while frame.f_code.co_name in ("__post_init__", "__init__"): frame = frame.f_back
        carried = self.moved.pop(id(frame), set())
        by_a_choice = frame.f_code.co_name == "replace" and frame.f_back.f_code is CHOOSE
        if by_a_choice and not carried and not frame.f_back.f_back.f_code.co_filename.startswith(PACKAGE):
            self.chosen.add(type(sizes))
            carried = {field.name for field in fields(sizes)}
        vars(sizes)["_carried"] = carried

    def note(self, sizes, name):
        frame = sys._getframe(2)
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        of_itself = function.startswith("__") and isinstance(frame.f_locals.get("self"), Profile)
        if name not in vars(sizes).get("_carried", ()): return
        if file == dataclasses.__file__ and function == "replace":
            self.moved.setdefault(id(frame), set()).add(name)
        elif file not in (dataclasses.__file__, SIZES) and not of_itself:
            self.asked.setdefault(type(sizes), set()).add(name)


@contextmanager
def spied():
    "A `Spy` on all profiles that are chosen inside."
    spy, plain = Spy(), Profile.__post_init__

    def post_init(self):
        spy.born(self)
        plain(self)

    def get(self, name):
        if name[0] != "_": spy.note(self, name)
        return object.__getattribute__(self, name)

    Profile.__post_init__, Profile.__getattribute__ = post_init, get
    try: yield spy
    finally:
        Profile.__post_init__ = plain
        del Profile.__getattribute__
