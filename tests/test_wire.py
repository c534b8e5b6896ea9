import itertools
import json
import math
import struct
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import save

from fedbook.engine.errors import UserError
from fedbook.engine.wire import (Ledger, Msg, Refused, decode, encode, expect, from_bits, gather, header,
                                 pack, scatter, to_bits, unpack)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
          torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
          torch.float8_e5m2]


def raw(t):
    return (t.contiguous().flatten().view(torch.uint8).tolist() if t.dtype != torch.bool
            else t.flatten().tolist())


@st.composite
def tensors(draw):
    "Any bit pattern, in any dtype, at any density and shape."
    dtype = draw(st.sampled_from(DTYPES + [torch.bool]))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    n = int(np.prod(shape))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype == torch.bool: return torch.from_numpy(np.asarray(rng.random(shape) < draw(st.floats(0, 1))))
    entries = rng.integers(0, 256, (n, dtype.itemsize), dtype=np.uint8)
    entries[rng.random(n) < draw(st.floats(0, 1))] = 0
    return (torch.from_numpy(entries.reshape(-1).copy()).view(dtype).reshape(shape) if n
            else torch.zeros(shape, dtype=dtype))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda s: s != "__metadata__"), tensors(),
                       max_size=4), st.dictionaries(st.text(max_size=5),
                                                    st.none() | st.integers(-2**53, 2**53)
                                                    | st.floats(allow_nan=False) | st.text(max_size=5)
                                                    | st.lists(st.integers()), max_size=3))
def test_any_message_comes_back_bit_for_bit(named, meta):
    msg = Msg(named, meta)
    data = pack(msg)
    back = unpack(data)
    assert back.meta == meta and back.tensors.keys() == named.keys()
    for name, t in named.items():
        got = back.tensors[name]
        assert (got.dtype, got.shape, raw(got)) == (t.dtype, t.shape, raw(t))
    assert msg.nbytes == len(data) and pack(back) == data
    sizes = [spec["data_offsets"] for name, spec in header(data).items() if name != "__metadata__"]
    assert msg.payload_bytes == sum(end - start for start, end in sizes)


@settings(max_examples=100, deadline=None)
@given(tensors())
def test_encoded_form_is_never_longer(t):
    sent, note = encode(t)
    dense = t.nbytes if t.dtype != torch.bool else t.numel()
    assert sent.nbytes <= dense
    assert raw(decode(sent, note)) == raw(t)


def test_special_floats_survive_in_the_sparse_form():
    t = torch.zeros(1000)
    t[:5] = torch.tensor([-0.0, math.nan, math.inf, -math.inf, 1e-45])
    t[5] = struct.unpack("<f", struct.pack("<I", 0x7FC12345))[0]
    sent, note = encode(t)
    assert note is not None and sent.nbytes == 125 + 6 * 4
    assert raw(decode(sent, note)) == raw(t)


def test_mask_and_values_are_taken_where_they_save_more_than_the_note():
    for n in range(1, 200, 7):
        for zeros in range(n + 1):
            t = (torch.arange(n) >= zeros).float()
            assert (encode(t)[1] is not None) == ((n + 7) // 8 + (n - zeros) * 4 + 64 < n * 4)


def test_bits_agree_with_python():
    flags = torch.tensor([True, False, True, True, False, False, False, True, False, True])
    assert to_bits(flags).tolist() == [sum(int(f) << i for i, f in enumerate(flags[k:k + 8])) for k in (0, 8)]
    assert torch.equal(from_bits(to_bits(flags), 10), flags)


def test_tied_and_strided_tensors_are_copied():
    w = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    back = unpack(pack(Msg({"a": w, "b": w, "c": w.T, "d": w[:, ::2]})))
    assert torch.equal(back.tensors["c"], w.T) and torch.equal(back.tensors["d"], w[:, ::2])
    back.tensors["a"].zero_()
    assert torch.equal(back.tensors["b"], w)


def note(notes, **tensors): return save(tensors, {"fedbook": json.dumps({"meta": {}, "notes": notes})})


U8 = torch.zeros(4, dtype=torch.uint8)


@pytest.mark.parametrize("data", [
    b"", b"\x80\x04K\x01.", b"\xff" * 64, pack(Msg({"w": torch.ones(9)}))[:-1],
    pack(Msg({"w": torch.ones(9)})) + b"x", save({"w": U8}), save({"w": U8}, {"fedbook": "{"}),
    save({"w": U8}, {"fedbook": "[]"}), save({"w": U8}, {"fedbook": '{"meta":{}}'}),
    save({"w": U8}, {"fedbook": '{"meta":3,"notes":{}}'}),
    note({"w": [[10**9]]}, w=U8), note({"w": [[-8]]}, w=U8), note({"w": [["x"]]}, w=U8), note({"w": 7}, w=U8),
    note({"w": []}, w=U8), note({"w": [[8], "load"]}, w=U8),
    note({"w": [[8], "float33"]}, w=U8), note({"w": [[8], "float32"]}, w=U8), note({"w": [[8], 5]}, w=U8),
    note({"w": [[0, 10**30]]}, w=U8), note({"w": [[32]]}, w=torch.zeros(4)),
    note({"w": [[True]]}, w=U8)])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(Refused): unpack(data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_never_raises_anything_else(place, value):
    data = bytearray(pack(Msg({"w": torch.arange(50.0), "m": torch.arange(50) % 3 == 0}, {"n": 3})))
    data[place % len(data)] = value
    try: unpack(bytes(data))
    except Refused: pass


def test_a_hostile_header_is_counted_and_refused():
    ledger = Ledger()
    for text in (b"[" * 100_000, b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[1000000000,0]}}',
                 b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,1e99]}}'):
        data = len(text).to_bytes(8, "little") + text
        assert ledger.record(0, "up", 0, "fit", data).tensors == ()
        with pytest.raises(Refused): unpack(data)


def test_meta_must_be_plain():
    with pytest.raises(UserError, match="a key is not a text"): pack(Msg({}, {"counts": {3: 10}}))
    with pytest.raises(UserError) as error: pack(Msg({}, {"n": [torch.zeros(9999)] * 999}))
    assert len(str(error.value)) < 300
    with pytest.raises(UserError, match="plain numbers"): pack(Msg({}, {"n": np.int64(3)}))


# ---- what outlives a round

@st.composite
def generators(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**40)))
    torch.rand(draw(st.integers(0, 9)), generator=generator)
    return generator


keys = st.integers(-9, 9) | st.text(alphabet="a/'0", max_size=3) | st.tuples(st.integers(0, 3),
                                                                             st.text(alphabet="ab",
                                                                                     max_size=1))
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
held = st.recursive(plain | tensors() | generators() | st.sets(keys, max_size=4),
                    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
                    | st.dictionaries(keys, inner, max_size=4), max_leaves=8)


def written(value):
    "A text that is equal only for values of one kind and the same bits."
    if isinstance(value, torch.Generator): return f"generator {value.get_state().tolist()}"
    if isinstance(value, torch.Tensor): return f"{value.dtype} {tuple(value.shape)} {raw(value)}"
    if isinstance(value, dict): return str([(written(k), written(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)): return f"{type(value).__name__} {[written(v) for v in value]}"
    return f"set {sorted(map(written, value))}" if isinstance(value,
                                                              set) else f"{type(value).__name__} {value!r}"


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(alphabet="ab", min_size=1, max_size=3), held, max_size=4))
def test_what_is_gathered_is_scattered(attributes):
    owner, other = SimpleNamespace(**attributes), SimpleNamespace()
    data = pack(gather(owner, tuple(attributes)))
    scatter(other, unpack(data))
    assert list(map(written, vars(other).values())) == [written(vars(owner)[name]) for name in vars(other)]
    assert vars(other).keys() == attributes.keys() and pack(gather(other, tuple(attributes))) == data


def test_a_generator_stays_the_same_object_and_goes_on_the_same_way():
    one, other = (SimpleNamespace(own=torch.Generator().manual_seed(s), by_id={3: torch.Generator()})
                  for s in (0, 1))
    torch.rand(7, generator=one.own)
    before, nested = other.own, other.by_id[3]
    scatter(other, gather(one, ("own", "by_id")))
    assert other.own is before and other.by_id[3] is nested
    assert torch.equal(torch.rand(5, generator=one.own), torch.rand(5, generator=before))


def test_gathered_tensors_are_copies():
    owner = SimpleNamespace(w=torch.zeros(3))
    msg = gather(owner, ["w"])
    owner.w += 1
    scatter(owner, msg)
    owner.w += 2
    assert msg.tensors["w"].tolist() == [0, 0, 0] and owner.w.tolist() == [2, 2, 2]


def test_the_order_of_a_dict_is_kept():
    owner = SimpleNamespace(state=OrderedDict(z=torch.ones(1), a=torch.zeros(2), m=3))
    scatter(owner, unpack(pack(gather(owner, ("state",)))))
    assert list(owner.state) == ["z", "a", "m"]


class Foo: pass


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("value, what", [(Foo(), "Foo"), ({"x": [Foo()]}, "Foo"),
                                         (torch.nn.Parameter(torch.ones(1)), "Parameter with a gradient"),
                                         (torch.ones(1, requires_grad=True), "Tensor with a gradient"),
                                         (np.zeros(2), "ndarray"), (b"x", "bytes"), (Pair(1, 2), "Pair"),
                                         (torch.nn.Linear(1, 1), "Linear"),
                                         (np.random.default_rng(0), "Generator"), ({Foo: 1}, "type")])
def test_what_cannot_be_carried_is_named(value, what):
    owner = Foo()
    owner.c = value
    with pytest.raises(UserError, match=f"attribute 'c' of Foo holds a {what}, which no message can carry; "
                       "keep tensors, generators"):
        gather(owner, ("c",))


def test_names_are_checked():
    with pytest.raises(UserError, match="Foo has no attribute 'c'"): gather(Foo(), ("c",))
    with pytest.raises(UserError, match=r"expected a tuple: \('c',\)"): gather(Foo(), "c")


@pytest.mark.parametrize("meta", [{}, {"kept": 3}, {"kept": {"a": ["tensor", "x"]}},
                                  {"kept": {"a": ["magic", []]}}, {"kept": {"a": ["generator", "w"]}},
                                  {"kept": {"a": []}}, {"kept": {"a": ["dict", [[["list", []], 1]]]}},
                                  {"kept": {"a": ["set", [["list", []]]]}},
                                  {"kept": {"b": 1, "a": ["dict", 7]}}])
def test_what_gather_did_not_make_is_refused_and_changes_nothing(meta):
    owner = SimpleNamespace(b=0)
    with pytest.raises(Refused, match="not gathered attributes"):
        scatter(owner, Msg({"w": torch.ones(3)}, meta))
    assert vars(owner) == {"b": 0}


@pytest.mark.parametrize("bad, why", [
    ({"w": torch.zeros(2, 3)}, "missing"), ({"w": torch.zeros(2, 3), "b": torch.zeros(3),
                                             "c": torch.zeros(1)}, "unexpected"),
    ({"w": torch.zeros(3, 2), "b": torch.zeros(3)}, "shape"),
    ({"w": torch.zeros(2, 3), "b": torch.zeros(3).double()}, "dtype"),
    ({"w": torch.zeros(2, 3), "b": torch.tensor([0, math.nan, 0])}, "finite"),
    ({"w": torch.zeros(2, 3), "b": torch.tensor([0, math.inf, 0])}, "finite")])
def test_expect_says_what_is_wrong(bad, why):
    like = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
    expect(Msg(like), like)
    with pytest.raises(Refused, match=why): expect(Msg(bad), like)


def test_expect_knows_open_sizes():
    like = {"x": ((None, 4), torch.float32)}
    for n in (0, 1, 7): expect(Msg({"x": torch.zeros(n, 4)}), like)
    with pytest.raises(Refused): expect(Msg({"x": torch.zeros(4)}), like)


def test_ledger_counts_every_byte():
    ledger, sent = Ledger(), []
    for r in range(3):
        for client in range(2):
            for way in ("down", "up"):
                data = pack(Msg({"w": torch.ones(10 + r), "m": torch.ones(9, dtype=torch.bool)}, {"r": r}))
                sent.append((r, way, client, len(data)))
                ledger.record(r, way, client, "fit", data)
    assert ledger.total() == sum(n for *_, n in sent) == sum(ledger.so_far.values())
    assert ledger.total(way="up", round=2) == sum(n for r, way, _, n in sent if (r, way) == (2, "up"))
    assert ledger.total(round=(0, 1)) == ledger.total(round=[0, 1])
    assert ledger.total(round=[0, 1], client=1) == sum(n for r, _, c, n in sent if r < 2 and c == 1)
    assert ledger.payload(round=0, way="up", client=0) == 10 * 4 + 2
    assert {row["tensor"]: row["bytes"] for row in ledger.table("tensor")} == {"w": 4 * 4 * (10 + 11 + 12),
                                                                               "m": 4 * 6}
    ledger.miss(1, 0, "fit", "gone")
    back = Ledger.from_json(ledger.to_json())
    assert (back.entries, back.absent, back.so_far) == (ledger.entries, ledger.absent, ledger.so_far)
    back.record(0, "up", 5, "fit", b"no message at all")
    assert back.entries[-1].tensors == () and back.total(client=5) == 17
    with pytest.raises(UserError, match="choose one of"): ledger.where(day=3)
    for by in ("way", "verb", "client", "tensor"):
        axes = ledger.plot(by).axes[0]
        assert axes.get_xlabel() == "rounds done" and len(axes.lines) == len(ledger.table(by))
    for ask in (ledger.table, ledger.plot):
        with pytest.raises(UserError, match="choose one of"): ask("foo")


def test_the_envelope_stands_beside_the_bytes_and_is_kept():
    ledger, data = Ledger(), pack(Msg({"w": torch.ones(9), "b": torch.ones(3)}))
    for client, envelope in ((0, 700), (0, 50), (1, 3)): ledger.record(0, "up", client, "fit", data, envelope)
    ledger.record(0, "down", 1, "fit", data)
    assert ledger.total() == sum(ledger.so_far.values()) == 4 * len(data)
    assert [e.envelope for e in ledger.where(way="up")] == [700, 50, 3]
    assert [row["envelope"] for row in ledger.table("client")] == [750, 3]
    assert [row["envelope"] for row in ledger.table("way")] == [0, 753]
    assert [row["messages"] for row in ledger.table("client")] == [2, 2]
    assert all("envelope" not in row for row in ledger.table("tensor"))
    back = Ledger.from_json(ledger.to_json())
    assert (back.entries, back.so_far, back.table("client", "way")) == (ledger.entries, ledger.so_far,
                                                                        ledger.table("client", "way"))
    plain = json.loads(ledger.to_json())
    plain["entries"] = [row[:6] for row in plain["entries"]]
    before = Ledger.from_json(json.dumps(plain))
    assert before.entries == [entry._replace(envelope=0) for entry in ledger.entries]
    assert all("envelope" not in row for row in before.table("client"))


# ---- the ledger's memory is bounded

def messages(rounds=6, clients=5):
    "Messages of many layouts: (round, way, client, verb, data, envelope)."
    for r in range(rounds):
        for verb, way, client in itertools.product(("sketch", "fit"), ("down", "up"), range(clients)):
            tensors = {"w": torch.ones(1 + (r + client) % 4), verb: torch.ones(3)}
            yield r, way, client, verb, pack(Msg(tensors, {"r": r})), 7 * client


def ledgers(bound):
    whole, short = Ledger(), Ledger(bound)
    for message in messages():
        whole.record(*message)
        short.record(*message)
    return whole, short


@pytest.mark.parametrize("bound", [1, 2, 10, 60, 119])
def test_sums_are_those_of_single_entries(bound):
    whole, short = ledgers(bound)
    assert short.so_far == whole.so_far and len(whole.entries) == 120
    for view in (("round", "way", "verb"), ("way", "client", "verb")):
        for n in range(4):
            for by in itertools.permutations(view, n): assert short.table(*by) == whole.table(*by), by
    for by in (("tensor",), ("tensor", "way"), ("verb", "tensor")): assert short.table(*by) == whole.table(*by)
    for wanted in ({}, {"way": "up"}, {"round": range(1, 4), "verb": "fit"}, {"client": [0, 3], "way": "down"},
                   {"verb": {"fit", "sketch"}, "round": 0}, {"client": 9}):
        for ask in ("messages", "total", "payload", "envelope"):
            assert getattr(short, ask)(**wanted) == getattr(whole, ask)(**wanted), (ask, wanted)
    assert whole.messages(client=1) == len(whole.where(client=1)) == 24


def test_newest_entries_are_there_and_older_ones_refused():
    whole, short = ledgers(60)
    assert short.where(round=5, verb="fit", way="up") == whole.where(round=5, verb="fit", way="up") != []
    assert short.total(round=5, client=2, way="up") == whole.total(round=5, client=2, way="up") > 0
    assert short.where(client=77) == [] == short.where(round=6)
    asks = [lambda: short.entries, lambda: short.where(way="up"), lambda: short.where(client=1),
            lambda: short.where(round=0, client=1), lambda: short.total(round=0, client=1),
            lambda: short.table("round", "client"), lambda: short.plot("tensor")]
    for ask in asks:
        with pytest.raises(UserError, match="bound=60 the ledger adds older"): ask()
    assert len(short.plot("way").axes[0].lines) == 2
    for bound in (0, -1, 2.5, True, None):
        with pytest.raises(UserError, match="whole number of at least 1"): Ledger(bound)


@pytest.mark.parametrize("bound", [1, 10, 60, 1000])
def test_a_ledger_that_goes_on_from_its_text_ends_the_same(bound):
    whole, resumed = Ledger(bound), Ledger(bound)
    for i, message in enumerate(messages()):
        for ledger in (whole, resumed):
            ledger.record(*message)
            if i % 3 == 0: ledger.miss(i, 0, "fit", "gone")
        resumed = Ledger.from_json(resumed.to_json())
        assert resumed.to_json() == whole.to_json() and resumed.so_far == whole.so_far
    assert resumed.missed == whole.missed == 40 and len(whole.absent) <= bound
    assert whole.absent == [dict(round=i, client=0, verb="fit", reason="gone")
                            for i in range(0, 120, 3)][40 - len(whole.absent):]


def test_the_text_does_not_grow_with_the_number_of_messages():
    sizes, data = [], [pack(Msg({f"layer{i}": torch.ones(n + 1) for i in range(5)})) for n in range(100)]
    ledger = Ledger(bound=300)
    for i in range(6000):
        ledger.record(0, "up", i % 10, "fit", data[i * 7 % 100])
        ledger.miss(0, i % 10, "fit", "gone")
        sizes.append(len(ledger.absent))
        if i == 2999: before = len(ledger.to_json())
    assert max(sizes) <= 300 and len(ledger.to_json()) < 2 * before
    assert ledger.messages() == ledger.missed == 6000


def test_text_of_an_older_ledger_is_read():
    ledger = Ledger()
    for message in messages(): ledger.record(*message)
    ledger.miss(0, 1, "fit", "gone")
    parts = json.loads(ledger.to_json())
    old = json.dumps({name: parts[name] for name in ("layouts", "entries", "absent")})
    back = Ledger.from_json(old)
    assert back.to_json() == ledger.to_json() and (back.missed, back.bound) == (1, ledger.bound)
