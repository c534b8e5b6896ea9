"""Numbers of things (clients, rounds, ranks, shares) come from numpy too, and all are checked alike."""
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from fedbook.deploy.buffered import Buffered, OnNodes
from fedbook.deploy.scale import TwoLevel, drawn_part, mixed_groups
from fedbook.engine.errors import UserError
from fedbook.engine.federation import Client, Server
from fedbook.engine.local import build, generator
from fedbook.engine.stacked import Stacked
from fedbook.fedcbdr import FedCBDRClient
from fedbook.privacy.compress import in_factors
from fedbook.privacy.robust import alie_z, krum, trimmed_mean
from fedbook.privacy.secagg import SecureClient, SecureServer, split_secret

WEIGHTS = {"w": torch.ones(4, 4)}
TAKES = {
    "together": lambda n: Stacked(None, n), "size": lambda n: Buffered(None, None, n),
    "size, on nodes": lambda n: OnNodes(None, n), "rank": lambda n: in_factors(WEIGHTS, n),
    "threshold": lambda n: split_secret(b"s" * 31, n, 5, b"k" * 32),
    "threshold, client": lambda n: SecureClient(None, n), "threshold, server": lambda n: SecureServer(None, n),
    "liars": lambda n: trimmed_mean(torch.ones(9, 2), n), "liars, Krum": lambda n: krum(torch.ones(9, 2), n),
    "many": lambda n: krum(torch.ones(9, 2), 2, n), "liars, ALIE": lambda n: alie_z(9, n),
    "count": lambda n: drawn_part([np.arange(9)], 0, 0, n, 1.0), "inner": lambda n: TwoLevel(None, [0], n),
    "groups": lambda n: mixed_groups([0, 1, 1, 2], n), "per_round": lambda n: Server(nn.Linear(1, 1), n),
    "cid": lambda n: FedCBDRClient(n, torch.zeros(1, 1, 2, 2), torch.zeros(1).long())}


@pytest.mark.parametrize("name", TAKES)
def test_each_number_of_things_may_be_numpys_and_is_refused_alike(name):
    take, said = TAKES[name], name.split(",")[0]
    for two in (2, np.int64(2), torch.tensor(2)): take(two)
    for bad in (2.0, "2", True, -1, math.nan, [2]):
        value = re.escape(repr(bad))
        with pytest.raises(UserError, match=rf"^{said}={value} must be a whole number of at least \d"):
            take(bad)


@pytest.mark.parametrize("seed", [-1, 0.5, "one", None])
def test_a_seed_that_is_none_is_said_wherever_something_is_drawn(seed):
    for use in (lambda: generator(0, seed), lambda: build(lambda: nn.Linear(1, 1), seed),
                lambda: Client(0, nn.Linear(1, 1), torch.zeros(1, 1), torch.zeros(1), seed)):
        with pytest.raises(UserError, match=r"^seeds=\(.* must be whole numbers of at least 0$"): use()
