import sys, time, torch
from torch.profiler import profile, ProfilerActivity
from amata import recipes
from amata.schedules import Control
from amata.studies.bench import Case
from amata.engine import layers

torch.backends.cudnn.benchmark = True
dev = torch.device("cuda")
out = open(sys.argv[1], "w")


def say(*a):
    print(*a, flush=True)
    print(*a, file=out, flush=True)


def timeit(f, n=50):
    for _ in range(5):
        f()
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(n):
        f()
    torch.cuda.synchronize()
    return (time.perf_counter() - t) / n * 1e6


def one(tag, recipe, B, K, alpha, top=45):
    t0 = time.time()
    torch._dynamo.reset()
    case = Case(recipe, B, Control(K, alpha))
    model = case.model(dev)
    net = case.net("fast", model)
    b = case.batches(dev)[0]
    region = recipe.ball.around(b.x)
    x = net.ascent(region, b.x, b.y, 5, alpha)
    x = net.ascent(region, x, b.y, 5, alpha)
    say(f"== {tag} B={B}: ascent {timeit(lambda: net.ascent(region, x, b.y, 5, alpha)):.1f} us (took {time.time() - t0:.0f} s)")
    if top:
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(3):
                net.ascent(region, x, b.y, 5, alpha)
            torch.cuda.synchronize()
        ev = sorted(p.key_averages(), key=lambda e: -e.self_device_time_total)
        say(f"total {sum(e.self_device_time_total for e in ev) / 3:.0f} us, {sum(e.count for e in ev) // 3} kernels")
        for e in ev[:top]:
            say(f"{e.self_device_time_total / 3:8.1f} us x{e.count // 3:3d}  {e.key[:100]}")


pgd = recipes.load("cifar10-pgd10")
mnist = recipes.load("mnist-pgd40")
one("lenet", mnist, 256, 40, 0.01)
one("prn", pgd, 512, 10, 2 / 255)
suits = layers.WindowConv2d.suits
layers.WindowConv2d.suits = staticmethod(lambda c: False)
one("prn, no patches", pgd, 512, 10, 2 / 255, top=12)
one("prn, no patches", pgd, 128, 10, 2 / 255, top=0)
one("lenet, no patches", mnist, 256, 40, 0.01, top=0)
layers.WindowConv2d.suits = staticmethod(suits)
layers.ConvReLU.suits = staticmethod(lambda c: False)
one("prn, no convrelu", pgd, 512, 10, 2 / 255, top=0)
