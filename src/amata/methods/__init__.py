"""Training methods, one file each. To add one: write its file, give it a name here, a recipe and a
row in tests/test_methods.py."""

from amata.methods.atta import ATTA
from amata.methods.awp import AWP
from amata.methods.contract import Memory, Method, Net
from amata.methods.dat import DAT
from amata.methods.erm import ERM
from amata.methods.fast import Fast
from amata.methods.fat import FAT
from amata.methods.fgsm_pgi import FGSMPGI
from amata.methods.free import Free
from amata.methods.mart import MART
from amata.methods.nfgsm import NFGSM
from amata.methods.nuat import NuAT
from amata.methods.pgd import PGD
from amata.methods.planned import Planned, planned_evals
from amata.methods.trades import TRADES
from amata.methods.yopo import YOPO

METHODS: dict[str, type[Method]] = {
    "erm": ERM,
    "pgd": PGD,
    "free": Free,
    "fast": Fast,
    "nfgsm": NFGSM,
    "yopo": YOPO,
    "atta": ATTA,
    "fat": FAT,
    "dat": DAT,
    "trades": TRADES,
    "mart": MART,
    "nuat": NuAT,
    "fgsm-pgi": FGSMPGI,
}

__all__ = [
    "ATTA",
    "AWP",
    "DAT",
    "ERM",
    "FAT",
    "FGSMPGI",
    "MART",
    "METHODS",
    "NFGSM",
    "PGD",
    "TRADES",
    "YOPO",
    "Fast",
    "Free",
    "Memory",
    "Method",
    "Net",
    "NuAT",
    "Planned",
    "planned_evals",
]
