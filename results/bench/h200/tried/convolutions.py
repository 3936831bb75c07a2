import sys, time, copy, torch, torch.nn.functional as F
from torch import nn

torch.backends.cudnn.benchmark = True
dev = "cuda"
bf = torch.bfloat16
cl = torch.channels_last
out = open(sys.argv[1], "w")


def say(*a):
    print(*a, flush=True)
    print(*a, file=out, flush=True)


def timed(f, n=20, rep=10):
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(n):
            f()
    for _ in range(3):
        g.replay()
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(rep):
        g.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - t) / rep / n * 1e6


def T(*s):
    return torch.randn(*s, device=dev, dtype=bf)


def C(t):
    return t.contiguous(memory_format=cl)


for B in (128, 512):
    for c, h in ((64, 32), (128, 16), (256, 8), (512, 4)):
        x = C(T(B, c, h, h))
        w = C(T(c, c, 3, 3))
        b = T(c)
        g = C(T(B, c, h, h))
        wf = C(w.flip(2, 3).transpose(0, 1))
        fl = 2 * B * h * h * c * c * 9
        f = timed(lambda: F.conv2d(x, w, padding=1))
        fb = timed(lambda: F.conv2d(x, w, b, padding=1))
        d = timed(
            lambda: torch.ops.aten.convolution_backward(g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])[0]
        )
        df = timed(lambda: F.conv2d(g, wf, padding=1))
        fr = timed(lambda: torch.cudnn_convolution_relu(x, w, b, (1, 1), (1, 1), (1, 1), 1))
        rel = timed(lambda: F.relu(x))
        far = timed(lambda: torch.cudnn_convolution_add_relu(x, w, g, 1.0, b, (1, 1), (1, 1), (1, 1), 1))
        say(
            f"B{B} c{c}@{h}: fprop {f:.1f} +bias {fb:.1f} +bias+relu fused {fr:.1f} add_relu fused {far:.1f} relu alone {rel:.1f} dgrad {d:.1f} dgrad-as-fprop {df:.1f} us; fprop {fl / f / 1e6:.0f} TF"
        )
        if c <= 128:
            for m, (kh, kw) in ((2, (3, 4)), (4, (3, 6))):
                wp = torch.zeros(c * m, c, 3, kw, device=dev, dtype=bf)
                for i in range(m):
                    wp[i * c : (i + 1) * c, :, :, i : i + 3] = w
                wp = C(wp)
                bp = b.repeat(m)
                f2 = timed(lambda: F.conv2d(x, wp, stride=(1, m), padding=1))
                z = F.conv2d(x, wp, stride=(1, m), padding=1)
                y = z.permute(0, 2, 3, 1).reshape(B, h, h, c).permute(0, 3, 1, 2)
                err = (y.float() - F.conv2d(x, w, padding=1).float()).abs().max().item()
                fr2 = timed(lambda: torch.cudnn_convolution_relu(x, wp, bp, (1, m), (1, 1), (1, 1), 1))
                say(f"   pair{m}: {f2:.1f} fused relu {fr2:.1f} us, err {err:.3f}, view {y.is_contiguous(memory_format=cl)}")
    # strided and shortcuts
    for c, h in ((64, 32), (128, 16), (256, 8)):
        x = C(T(B, c, h, h))
        w = C(T(2 * c, c, 3, 3))
        g = C(T(B, 2 * c, h // 2, h // 2))
        w1 = C(T(2 * c, c, 1, 1))
        a = timed(lambda: F.conv2d(x, w, stride=2, padding=1))
        d = timed(
            lambda: torch.ops.aten.convolution_backward(g, x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])[0]
        )
        a1 = timed(lambda: F.conv2d(x, w1, stride=2))
        d1 = timed(
            lambda: torch.ops.aten.convolution_backward(g, x, w1, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False])[0]
        )
        say(f"B{B} {c}->{2 * c}@{h}/2: fprop {a:.1f} dgrad {d:.1f}; 1x1 fprop {a1:.1f} dgrad {d1:.1f}")
    x = C(T(B, 8, 32, 32))
    w = C(T(64, 8, 3, 3))
    g = C(T(B, 64, 32, 32))
    wf = C(w.flip(2, 3).transpose(0, 1))
    wp = torch.zeros(128, 8, 3, 4, device=dev, dtype=bf)
    wp = C(wp)
    say(
        f"B{B} stem 8->64: fprop {timed(lambda: F.conv2d(x, w, padding=1)):.1f} pair {timed(lambda: F.conv2d(x, wp, stride=(1, 2), padding=1)):.1f} dgrad {timed(lambda: torch.ops.aten.convolution_backward(g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])[0]):.1f} dgrad-as-fprop {timed(lambda: F.conv2d(g, wf, padding=1)):.1f}"
    )
    # wgrad variants: 64@32


# LeNet
class L(nn.Module):
    def __init__(s, pad):
        super().__init__()
        s.pad = pad
        s.c1 = nn.Conv2d(8 if pad else 1, 24 if pad else 20, 5)
        s.c2 = nn.Conv2d(24 if pad else 20, 56 if pad else 50, 5)
        s.f1 = nn.Linear(800, 500)
        s.f2 = nn.Linear(500, 10)

    def forward(s, x):
        x = x.to(bf)
        if s.pad:
            x = F.pad(x, (0, 0, 0, 0, 0, 7)).contiguous(memory_format=cl)
        x = F.max_pool2d(F.relu(s.c1(x)), 2)
        x = F.max_pool2d(F.relu(s.c2(x)), 2)
        if s.pad:
            x = x[:, :50]
        return s.f2(F.relu(s.f1(x.flatten(1)))).float()


class M(nn.Module):
    "convolutions as matrix products of unfolded patches"

    def __init__(s):
        super().__init__()
        s.w1 = nn.Parameter(torch.randn(32, 24) * 0.1)
        s.w2 = nn.Parameter(torch.randn(25 * 24, 56) * 0.1)
        s.b1 = nn.Parameter(torch.zeros(24))
        s.b2 = nn.Parameter(torch.zeros(56))
        s.f1 = nn.Linear(800, 500)
        s.f2 = nn.Linear(500, 10)

    def forward(s, x):
        x = x.to(bf)
        B = len(x)
        u = x[:, 0].unfold(1, 5, 1).unfold(2, 5, 1).reshape(B, 24, 24, 25)
        h = F.relu(F.pad(u, (0, 7)) @ s.w1 + s.b1)  # B 24 24 24
        h = h.view(B, 12, 2, 12, 2, 24).amax((2, 4))  # B 12 12 24
        u = h.unfold(1, 5, 1).unfold(2, 5, 1)  # B 8 8 24 5 5
        u = u.permute(0, 1, 2, 4, 5, 3).reshape(B, 8, 8, 600)
        h = F.relu(u @ s.w2 + s.b2).view(B, 4, 2, 4, 2, 56).amax((2, 4))[..., :50]
        return s.f2(F.relu(s.f1(h.permute(0, 3, 1, 2).reshape(B, 800)))).float()


def asc(model, B=256):
    model = model.to(dev).to(bf).requires_grad_(False)
    x0 = torch.rand(B, 1, 28, 28, device=dev)
    y = torch.randint(10, (B,), device=dev)
    f = torch.compile(lambda x, y: F.cross_entropy(model(x), y, reduction="sum"), dynamic=False)

    def step():
        x = x0.detach().requires_grad_()
        (g,) = torch.autograd.grad(f(x, y), x)
        return (x + 0.01 * g.sign()).clamp(0, 1)

    return timed(step, n=5), step


for name, m in (
    ("as is nchw", L(False)),
    ("as is channels_last", L(False).to(memory_format=cl)),
    ("padded channels_last", L(True).to(memory_format=cl)),
    ("padded nchw", L(True)),
    ("matmul", M()),
):
    try:
        t, step = asc(m)
        say(f"LeNet ascent {name}: {t:.1f} us")
        if name in ("as is nchw", "padded channels_last", "matmul"):
            from torch.profiler import profile, ProfilerActivity

            with profile(activities=[ProfilerActivity.CUDA]) as p:
                for _ in range(3):
                    step()
                torch.cuda.synchronize()
            for e in sorted(p.key_averages(), key=lambda e: -e.self_device_time_total)[:14]:
                say(f"{e.self_device_time_total / 3:8.1f} us x{e.count // 3:3d}  {e.key[:110]}")
    except Exception as e:
        say(name, "FAILED", type(e).__name__, str(e)[:300])
# reference in eval and train mode
from amata import recipes
from amata.schedules import Control
from amata.studies.bench import Case, _time

for mode in ("eval", "train"):
    r = recipes.load("cifar10-pgd10", [f"train.attack_mode={mode}"])
    for B in (128, 512):
        t = _time(Case(r, B, Control(10, 2 / 255)), "reference", torch.device(dev), 3.0)
        say(f"reference {mode} B{B}: {t['seconds_per_step'] * 50000 / B:.2f} s, worst {t['seconds_per_step_worst'] * 50000 / B:.2f}")
r = recipes.load("mnist-pgd40")
t = _time(Case(r, 256, Control(40, 0.01)), "reference", torch.device(dev), 3.0)
say(f"lenet reference {t['seconds_per_step'] * 60000 / 256:.2f}")
