import sys, time, torch
from dataclasses import replace
from amata import recipes
from amata.schedules import Control
from amata.studies.bench import Case
from amata.engine import ascent, fast
from amata.engine.graphs import Graph
from amata.engine.ascent import STRIDE

torch.backends.cudnn.benchmark = True
dev = torch.device("cuda")
out = open(sys.argv[1], "w")


def say(*a):
    print(*a, flush=True)
    print(*a, file=out, flush=True)


LANES = 1
STREAMS = [torch.cuda.Stream() for _ in range(4)]


class Laned(ascent.AscentGraph):
    def __init__(self, attack, move, region, x, y, alpha, touches, pool):
        from dataclasses import fields

        self.names = [f.name for f in fields(region) if isinstance(getattr(region, f.name), torch.Tensor)]
        self.fixed = replace(region, **{n: getattr(region, n).clone() for n in self.names})
        size = len(x) // LANES
        parts = [slice(i * size, (i + 1) * size) for i in range(LANES)]
        regions = [replace(self.fixed, **{n: getattr(self.fixed, n)[p] for n in self.names}) for p in parts]

        def climb(x, y, count):
            here = torch.cuda.current_stream()
            for s in STREAMS[: LANES - 1]:
                s.wait_stream(here)
            for i, (p, r) in enumerate(zip(parts, regions)):
                with torch.cuda.stream(here if i == 0 else STREAMS[i - 1]):
                    a, b = x[p], y[p]
                    for _ in range(count):
                        g, _ = attack(a, b)
                        a.copy_(move(r, a, g, alpha))
            for s in STREAMS[: LANES - 1]:
                here.wait_stream(s)
            return x

        self.one = Graph(lambda x, y: climb(x, y, 1), (x, y), touches=touches, pool=pool)
        self.many = Graph(lambda x, y: climb(x, y, STRIDE), self.one.inputs, touches=touches, pool=pool, own=True)


fast.AscentGraph = Laned


def timeit(f, n=40):
    for _ in range(5):
        f()
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(n):
        f()
    torch.cuda.synchronize()
    return (time.perf_counter() - t) / n * 1e6


def one(name, recipe, B, alpha, lanes):
    global LANES
    LANES = lanes
    t0 = time.time()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    case = Case(recipe, B, (Control(10, alpha),))
    net = case.net("fast", case.model(dev))
    b = case.batches(dev, 1)[0]
    region = recipe.ball.around(b.x)
    x = net.ascent(region, b.x, b.y, 5, alpha).clone()
    t = timeit(lambda: net.ascent(region, b.x, b.y, 10, alpha)) / 10
    free, total = torch.cuda.mem_get_info()
    say(
        f"{name} B={B} lanes={lanes}: ascent step {t:.1f} us; sum {x.double().sum().item():.6f}; memory {(total - free) / 2**20:.0f} MiB; took {time.time() - t0:.0f} s"
    )


pgd = recipes.load("cifar10-pgd10")
mnist = recipes.load("mnist-pgd40")
for B, ls in ((128, (1, 2, 4)), (512, (1, 2, 4)), (256, (1, 2))):
    for l in ls:
        one("prn", pgd, B, 2 / 255, l)
for l in (1, 2, 4):
    one("lenet", mnist, 256, 0.01, l)
