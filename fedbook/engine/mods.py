"""Mods: pairs of functions on the replies of clients, handed to an experiment as a list, in the order in which they act."""

from collections.abc import Sequence
from typing import Any, Protocol

from fedbook.engine.errors import Unfit
from fedbook.engine.local import State
from fedbook.engine.wire import Msg, Refused


class Mod(Protocol):
    """What happens to the change of a client's weights on its way to the server.

    `leave(change, client)` is what leaves in its place, `arrive(sent, weights)` the change for which that
    stands (`weights`: those that the client was sent; it raises `Refused` for what it cannot have written). A
    mod is `lossy` if the two are not the same, and `protects` if nothing else may leave beside the change."""

    lossy: bool
    protects: bool

    def leave(self, change: State, client: Any) -> State: ...

    def arrive(self, sent: State, weights: State) -> State: ...


def weights_of(msg: Msg) -> State:
    "The float tensors of a message: what a client may train from."
    tensors = msg.tensors.items()
    return {name: t for name, t in tensors if t.is_floating_point()}


def leaving(client: Any, sent: Msg, reply: Msg) -> Msg:
    """The `reply` of `client` to the message `sent`, as its `mods` let it leave. They act on the weights that
    came back: float tensors of a name and shape that the message has. The rest travels as it is. Under a
    mod that protects, whole numbers of the message go back as they came, and anything else beside the
    weights raises `Unfit`."""
    mods = getattr(client, "mods", ())
    if not mods:
        return reply
    start = weights_of(sent)
    back = {
        name: t
        for name, t in reply.tensors.items()
        if name in start and t.shape == start[name].shape
    }
    beside = {name: t for name, t in reply.tensors.items() if name not in back}
    guards = [mod for mod in mods if mod.protects]
    if guards:
        known = beside.keys() & sent.tensors.keys()
        beside |= {name: sent.tensors[name] for name in known}
    more = beside.keys() - sent.tensors.keys()
    if guards and more:
        raise Unfit(
            f"mods={guards[0]} covers the weights alone, and {type(client).__name__} sends "
            f"{sorted(more)[:3]} beside them; take a method without, or leave the mod out"
        )
    change = {name: t.cpu() - start[name] for name, t in back.items()}
    for mod in mods:
        change = mod.leave(change, client) if back else change
    return Msg({**change, **beside}, reply.meta)


def arriving(mods: Sequence[Mod], sent: Msg, reply: Msg) -> Msg:
    """The reply for which `reply`, as `mods` let it leave, stands; `sent` is the message that was answered.
    Raises `Refused` for what they cannot have written."""
    start = weights_of(sent)
    written = {
        name: t
        for name, t in reply.tensors.items()
        if _of_a_weight(name, start)
    }
    beside = {
        name: t for name, t in reply.tensors.items() if name not in written
    }
    if not written:
        return reply
    for mod in reversed(mods):
        written = mod.arrive(written, start)
    odd = [
        name
        for name, t in written.items()
        if name not in start or t.shape != start[name].shape
    ]
    if odd:
        raise Refused(
            f"{odd[:3]} are no changes of the weights that were sent"
        )
    whole = {name: start[name] + change for name, change in written.items()}
    return Msg({**whole, **beside}, reply.meta)


def _of_a_weight(name: str, start: State) -> bool:
    "Whether `name` is that of a weight, perhaps behind words such as `scale/left/`."
    while name not in start and "/" in name:
        name = name.partition("/")[2]
    return name in start


def check_fits(server: Any, aggregate: Any, mods: Sequence[Mod]) -> None:
    """Raise `Unfit` where `server` can take no `aggregate` (None: the mean), or none of the `mods`, and says
    why."""
    reasons = getattr(server, "refuses", {})
    kind = type(server).__name__
    if aggregate and "aggregate" in reasons:
        raise Unfit(
            f"aggregate={aggregate} does not fit {kind}: {reasons['aggregate']}; take the mean"
        )
    for mod in mods:
        if mod.lossy and "mods" in reasons:
            raise Unfit(
                f"mods={mod} does not fit {kind}: {reasons['mods']}; leave it out"
            )
