"""For authors: judge kept results anew by today's rules, from their rows and values. Nothing is measured.

    python tools/judge.py [FOLDER]"""
import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedbook.engine.errors import UserError
from fedbook.evidence.claims import judged_again, Results, verdict_counts
from fedbook.evidence.fedcbdr import fedcbdr_attack_claims, fedcbdr_claims, fedcbdr_streams_claims
from fedbook.evidence.fedgtea import fedgtea_attack_claims, fedgtea_claims, fedgtea_streams_claims
from fedbook.evidence.fedklpr import fedklpr_claims
from fedbook.evidence.fedmox import fedmox_claims
from fedbook.evidence.fedreplay import fedreplay_attack_claims, fedreplay_claims
from fedbook.kit.report import read_results, results_files

HEADLINES: dict[str, Sequence[Callable[[Results], object]]] = {
    "evidence/fedreplay": [fedreplay_claims],
    "evidence/fedmox": [fedmox_claims],
    "evidence/fedklpr": [fedklpr_claims],
    "evidence/fedcbdr": [fedcbdr_claims],
    "evidence/fedgtea": [fedgtea_claims],
    "evidence/streams": [fedcbdr_streams_claims, fedgtea_streams_claims],
    "privacy/attack": [fedreplay_attack_claims, fedcbdr_attack_claims, fedgtea_attack_claims],
}


def judge(results: Results) -> None:
    "Judge the claims of `results` anew: the papers' from its rows, our own from their values."
    own = [claim for claim in results.claims if claim["own"]]
    results.claims = []
    for papers in HEADLINES.get(results.facts["name"], ()): papers(results)
    results.claims += [judged_again(claim, claim["values"]) for claim in own]


def main(argv: Sequence[str] | None = None) -> int:
    "Judge every results file of a folder, write it, say how its claims came out, and return the exit code."
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="results")
    folder = Path(parser.parse_args(argv).folder)
    files = results_files(folder)
    if not files:
        print(f"judge: {folder} holds no kept results", file=sys.stderr)
        return 2
    for path in files:
        try:
            read_results(path)
            results = Results.read(path)
            judge(results)
        except UserError as error:
            print(f"judge: {path.name}: {error}", file=sys.stderr)
            return 2
        results.save()
        print(f"{path.stem:<70} {verdict_counts(results.claims)}")
    return 0


if __name__ == "__main__": sys.exit(main())
