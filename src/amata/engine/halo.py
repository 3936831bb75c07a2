"""A 3x3 convolution for Hopper GPUs with the pointwise work around it, in Gluon.

One warp loads, two groups of four warps multiply. Each group has its own tiles: one multiplies
while the other runs its epilogue. A slot of shared memory holds the rows of a tile and one more
above and below, shifted by one of three columns. The three taps of that column read it at three
offsets, so each pixel is loaded three times and not nine. With 64 channels the weights stay in
shared memory; with more they are streamed. Images of fewer than 8 columns load each tap separately.

Tensors are (N, H, W, C) in bf16. Weights are (C_out, 3, 3, C_in); with FLIP the kernel computes the
input gradient of their convolution. The kinds, with s and t BatchNorm's scale and shift:

1  a = relu(conv(x) + t)
2  y = conv(x) + r and a = relu(s y + t)
3  the same without y
4  y = conv(x) where m is positive
5  y = s conv(x) where m is positive, plus r

Kinds 1 to 3 write the signs of a to m, one bit each. Kinds 4 and 5 read m: with BITS these bits,
else an activation.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def _producer(
    x_desc, w_desc, a_bufs, b_bufs, a_full, a_empty, b_full, b_empty, pairs,
    C: gl.constexpr, CO: gl.constexpr, H: gl.constexpr, W: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, HALO: gl.constexpr, RESIDENT: gl.constexpr, NA: gl.constexpr,
    NB: gl.constexpr, FLIP: gl.constexpr,
):  # fmt: skip
    TILES_N: gl.constexpr = CO // BN
    CHUNKS: gl.constexpr = C // 64
    SLOTS: gl.constexpr = 3 * CHUNKS if HALO else 9 * CHUNKS
    TAPS: gl.constexpr = 3 if HALO else 1
    ROWS: gl.constexpr = BM // W + 2 if HALO else 1
    if RESIDENT:
        mbarrier.expect(b_full.index(0), 9 * BN * 64 * 2)
        for tap in gl.static_range(9):
            column = (8 - tap if FLIP else tap) * 64
            tma.async_copy_global_to_shared(w_desc, [0, column], b_full.index(0), b_bufs.index(tap))
    count_a = 0
    count_b = 0
    for pair in range(gl.program_id(0), pairs * TILES_N, gl.num_programs(0)):
        off_n = (pair % TILES_N) * BN
        first = (pair // TILES_N) * 2 * BM
        for s in range(SLOTS):
            chunk = s // (9 // TAPS)
            part = s % (9 // TAPS)
            for which in gl.static_range(2):
                pixel = first + which * BM
                image = pixel // (H * W)
                row = (pixel % (H * W)) // W
                slot = count_a % NA
                ring = which * NA + slot
                full = a_full.index(ring)
                mbarrier.wait(a_empty.index(ring), ((count_a // NA) & 1) ^ 1)
                mbarrier.expect(full, ROWS * W * 128 if HALO else BM * 128)
                if HALO:
                    for i in gl.static_range(ROWS // 2):
                        box = a_bufs.index(ring * ROWS + 2 * i)
                        box = box._reinterpret(gl.bfloat16, [1, 2, W, 64], x_desc.layout)
                        tma.async_copy_global_to_shared(
                            x_desc, [image, row - 1 + 2 * i, part - 1, chunk * 64], full, box
                        )
                else:
                    box = a_bufs.index(ring)
                    box = box._reinterpret(gl.bfloat16, x_desc.block_shape, x_desc.layout)
                    tma.async_copy_global_to_shared(
                        x_desc, [image, row + part // 3 - 1, part % 3 - 1, chunk * 64], full, box
                    )
            count_a += 1
            if not RESIDENT:
                for i in gl.static_range(TAPS):
                    tap = i * 3 + part if HALO else part
                    slot_b = count_b % NB
                    mbarrier.wait(b_empty.index(slot_b), ((count_b // NB) & 1) ^ 1)
                    mbarrier.expect(b_full.index(slot_b), BN * 64 * 2)
                    if FLIP:
                        at = [chunk * 64, (8 - tap) * CO + off_n]
                    else:
                        at = [off_n, tap * C + chunk * 64]
                    tma.async_copy_global_to_shared(
                        w_desc, at, b_full.index(slot_b), b_bufs.index(slot_b)
                    )
                    count_b += 1


@gluon.jit
def _consumer(
    which: gl.constexpr, a_bufs, b_bufs, a_full, a_empty, b_full, b_empty, pairs,
    y_ptr, a_ptr, r_ptr, m_ptr, s_ptr, t_ptr, pixels,
    C: gl.constexpr, CO: gl.constexpr, W: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    HALO: gl.constexpr, RESIDENT: gl.constexpr, NA: gl.constexpr, NB: gl.constexpr,
    KIND: gl.constexpr, FLIP: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    TILES_N: gl.constexpr = CO // BN
    CHUNKS: gl.constexpr = C // 64
    SLOTS: gl.constexpr = 3 * CHUNKS if HALO else 9 * CHUNKS
    TAPS: gl.constexpr = 3 if HALO else 1
    ROWS: gl.constexpr = BM // W + 2 if HALO else 1
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16]
    )
    A: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [4, 1], [1, 0])
    BYTE: gl.constexpr = gl.BlockedLayout([1, 1], [256 // BN, BN // 8], [4, 1], [1, 0])
    EIGHTS: gl.constexpr = gl.BlockedLayout(
        [1, 1, 8], [256 // BN, BN // 8, 1], [4, 1, 1], [2, 1, 0]
    )
    if RESIDENT:
        mbarrier.wait(b_full.index(0), 0)
    count_a = 0
    count_b = 0
    for pair in range(gl.program_id(0), pairs * TILES_N, gl.num_programs(0)):
        off_n = (pair % TILES_N) * BN
        first = (pair // TILES_N) * 2 * BM + which * BM
        acc = gl.zeros((BM, BN), gl.float32, layout=MMA)
        rows = first + gl.arange(0, BM, layout=gl.SliceLayout(1, OUT))
        columns = off_n + gl.arange(0, BN, layout=gl.SliceLayout(0, OUT))
        at = gl.expand_dims(rows, 1) * CO + gl.expand_dims(columns, 0)
        inside = gl.expand_dims(rows < pixels, 1)
        byte_rows = first + gl.arange(0, BM, layout=gl.SliceLayout(1, BYTE))
        byte_columns = off_n // 8 + gl.arange(0, BN // 8, layout=gl.SliceLayout(0, BYTE))
        byte_at = gl.expand_dims(byte_rows, 1) * (CO // 8) + gl.expand_dims(byte_columns, 0)
        byte_inside = gl.expand_dims(byte_rows < pixels, 1)
        READS: gl.constexpr = KIND == 2 or KIND == 3 or KIND == 5
        EARLY: gl.constexpr = BM * BN <= 128 * 64  # while there are registers for it
        if READS and EARLY:
            r = gl.load(r_ptr + at, mask=inside, other=0.0)
        if KIND >= 4 and BITS:
            packed = gl.load(m_ptr + byte_at, mask=byte_inside, other=0)
        for s in range(SLOTS):
            part = s % (9 // TAPS)
            ring = which * NA + count_a % NA
            mbarrier.wait(a_full.index(ring), (count_a // NA) & 1)
            for i in gl.static_range(TAPS):
                a = a_bufs.index(ring * ROWS + i)._reinterpret(gl.bfloat16, [BM, 64], A)
                if RESIDENT:
                    b = b_bufs.index(i * 3 + part)
                else:
                    slot_b = (count_b + i) % NB
                    mbarrier.wait(b_full.index(slot_b), ((count_b + i) // NB) & 1)
                    b = b_bufs.index(slot_b)
                if not FLIP:
                    b = b.permute((1, 0))
                acc = warpgroup_mma(a, b, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(a_empty.index(ring), count=1)
            if not RESIDENT:
                for i in gl.static_range(TAPS):
                    mbarrier.arrive(b_empty.index((count_b + i) % NB), count=1)
            count_a += 1
            count_b += TAPS
        if READS and not EARLY:
            r = gl.load(r_ptr + at, mask=inside, other=0.0)
        if KIND == 1:
            t = gl.load(t_ptr + off_n + gl.arange(0, BN, layout=gl.SliceLayout(0, MMA)))
            acc = gl.maximum(acc + gl.expand_dims(t.to(gl.float32), 0), 0.0)
        conv = gl.convert_layout(acc.to(gl.bfloat16), OUT)
        if KIND <= 3:
            a = conv
            if KIND >= 2:
                y = conv.to(gl.float32) + r.to(gl.float32)
                if KIND == 2:
                    gl.store(y_ptr + at, y.to(gl.bfloat16), mask=inside)
                scale = gl.expand_dims(gl.load(s_ptr + columns), 0)
                shift = gl.expand_dims(gl.load(t_ptr + columns), 0)
                a = gl.maximum(y * scale + shift, 0.0).to(gl.bfloat16)
            gl.store(a_ptr + at, a, mask=inside)
            bits = (a > 0).to(gl.int32).reshape((BM, BN // 8, 8))
            bits = gl.convert_layout(bits, EIGHTS)
            powers = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, EIGHTS)))
            powers = gl.expand_dims(gl.expand_dims(powers, 0), 1)
            packed = gl.convert_layout(gl.sum(bits << powers, axis=2).to(gl.uint8), BYTE)
            gl.store(m_ptr + byte_at, packed, mask=byte_inside)
        else:
            if BITS:
                bytes = gl.convert_layout(packed, gl.SliceLayout(2, EIGHTS)).to(gl.int32)
                powers = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, EIGHTS)))
                powers = gl.expand_dims(gl.expand_dims(powers, 0), 1)
                bits = (gl.expand_dims(bytes, 2) >> powers) & 1
                positive = gl.convert_layout(bits.reshape((BM, BN)), OUT) != 0
            else:
                positive = gl.load(m_ptr + at, mask=inside, other=0.0) > 0
            g = conv.to(gl.float32)
            if KIND == 5:
                g = g * gl.expand_dims(gl.load(s_ptr + columns), 0)
            g = gl.where(positive, g, 0.0)
            if KIND == 5:
                g = g + r.to(gl.float32)
            gl.store(y_ptr + at, g.to(gl.bfloat16), mask=inside)


@gluon.jit(do_not_specialize=["pixels", "pairs"])
def halo_kernel(
    x_desc, w_desc, y_ptr, a_ptr, r_ptr, m_ptr, s_ptr, t_ptr, pixels, pairs,
    C: gl.constexpr, CO: gl.constexpr, H: gl.constexpr, W: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, HALO: gl.constexpr, RESIDENT: gl.constexpr, NA: gl.constexpr,
    NB: gl.constexpr, KIND: gl.constexpr, FLIP: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = BM // W + 2 if HALO else 1
    UNIT: gl.constexpr = W if HALO else BM
    A: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    a_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * NA * ROWS, UNIT, 64], A)
    b_bufs = gl.allocate_shared_memory(gl.bfloat16, [NB] + w_desc.block_shape, w_desc.layout)  # noqa: RUF005
    a_full = gl.allocate_shared_memory(gl.int64, [2 * NA, 1], mbarrier.MBarrierLayout())
    a_empty = gl.allocate_shared_memory(gl.int64, [2 * NA, 1], mbarrier.MBarrierLayout())
    b_full = gl.allocate_shared_memory(gl.int64, [NB, 1], mbarrier.MBarrierLayout())
    b_empty = gl.allocate_shared_memory(gl.int64, [NB, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * NA):
        mbarrier.init(a_full.index(i), count=1)
        mbarrier.init(a_empty.index(i), count=1)
    for i in gl.static_range(NB):
        mbarrier.init(b_full.index(i), count=1)
        mbarrier.init(b_empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consumer, (
                0, a_bufs, b_bufs, a_full, a_empty, b_full, b_empty, pairs, y_ptr, a_ptr, r_ptr,
                m_ptr, s_ptr, t_ptr, pixels, C, CO, W, BM, BN, HALO, RESIDENT, NA, NB, KIND,
                FLIP, BITS,
            )),
            (_consumer, (
                1, a_bufs, b_bufs, a_full, a_empty, b_full, b_empty, pairs, y_ptr, a_ptr, r_ptr,
                m_ptr, s_ptr, t_ptr, pixels, C, CO, W, BM, BN, HALO, RESIDENT, NA, NB, KIND,
                FLIP, BITS,
            )),
            (_producer, (
                x_desc, w_desc, a_bufs, b_bufs, a_full, a_empty, b_full, b_empty, pairs,
                C, CO, H, W, BM, BN, HALO, RESIDENT, NA, NB, FLIP,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
