"""The estimate of a TPU program counts loops by trips, and attention kernels by their sizes."""

from dataclasses import fields

import pytest

from imagefleet.worker.engine.placement.tpu_hosts import GENERATIONS
from tools.tpu.estimate import (
    Estimate,
    all_kernel_cycles,
    program_cycles,
    program_products,
)
from tools.tpu.kernel_cycles import (
    FEED_FORWARD_FACTOR,
    FEED_FORWARD_NORM_CYCLES,
    PACKED_CYCLES,
    SOFTMAX_CYCLES,
    STAGING_CYCLES,
    SUMMING_CYCLES,
    kernel_cycles,
)

LOOPS = """
%fused.1 (x: f32[8]) -> f32[8] {
  ROOT %x = f32[8] parameter(0)
}

%inner_condition.2 (s: (s32[], f32[8])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(3)
  ROOT %less = pred[] compare(%i, %constant.1), direction=LT
}

%inner.3 (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = f32[8] fusion(%x), calls=%fused.1, backend_config={"estimated_cycles":"10"}
}

%outer_condition.4 (s: (s32[], f32[8])) -> pred[] {
  %constant.2 = s32[]{:T(128)} constant(4)
  ROOT %less = pred[] compare(%i, %constant.2), direction=LT
}

%outer.5 (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %b = f32[8] fusion(%x), calls=%fused.1, backend_config={"estimated_cycles":"100"}
  %loop = (s32[], f32[8]) while(%t), condition=%inner_condition.2, body=%inner.3
}

ENTRY %main.6 (x: f32[8]) -> f32[8] {
  %c = f32[8] fusion(%x), calls=%fused.1, backend_config={"estimated_cycles":"1000"}
  %loop.1 = (s32[], f32[8]) while(%t), condition=%outer_condition.4, body=%outer.5
}
"""

CONDITIONS = """
%long.1 (s: f32[8]) -> f32[8] {
  %a = f32[8] fusion(%s), calls=%fused.9, backend_config={"estimated_cycles":"30"}
}

%short.2 (s: f32[8]) -> f32[8] {
  %b = f32[8] fusion(%s), backend_config={"estimated_cycles":"4"}
}

%fused.9 (x: f32[8]) -> f32[8] {
  ROOT %x = f32[8] parameter(0)
}

ENTRY %main.6 (x: f32[8]) -> f32[8] {
  %c = f32[8] fusion(%x), calls=%fused.9, backend_config={"estimated_cycles":"100"}
  %d = f32[8] conditional(%is_short, %x, %x), BRANCHES, metadata={op_name="cond"}
}
"""

KERNEL = (
    '%k = bf16[2,8,4096,40]{3,2,1,0} custom-call(%q, %k, %v), custom_call_target="tpu_custom_call",'
    " operand_layout_constraints={bf16[2,8,4096,40]{3,2,1,0}, bf16[2,8,1024,40]{3,2,1,0}, "
    "bf16[2,8,1024,40]{3,2,1,0}}, frontend_attributes={kernel_metadata={}}, "
    'metadata={op_name="jit(f)/shard_map/jit(flash_attention)/pallas_call"}'
)

CONVOLUTION = (
    "%k = bf16[1,64,64,512]{3,2,1,0} custom-call(%x, %x, %x, %w, %b), "
    'custom_call_target="tpu_custom_call", operand_layout_constraints={bf16[1,64,64,512]{3,2,1,0}, '
    "bf16[1,64,64,512]{3,2,1,0}, bf16[1,64,64,512]{3,2,1,0}, bf16[3,1536,128]{2,1,0}, "
    "f32[1,128]{1,0}}, frontend_attributes={kernel_metadata={}}, "
    'metadata={op_name="jit(decode)/shard_map/convolution_of_rows/pallas_call"}'
)


PACKED = (
    '%k = bf16[2,384,4096]{2,1,0} custom-call(%q, %k, %v), custom_call_target="tpu_custom_call",'
    " operand_layout_constraints={bf16[2,384,4096]{2,1,0}, bf16[2,1024,384]{2,1,0}, "
    "bf16[2,384,1024]{2,1,0}}, frontend_attributes={kernel_metadata={}}, "
    'metadata={op_name="jit(step)/shard_map/packed_attention_8x40/pallas_call"}'
)


XLA_SOFTMAX = (
    "%online-softmax = bf16[16,4096,40]{2,1,0} custom-call(%scores, %v), "
    'custom_call_target="tpu_custom_call", operand_layout_constraints={bf16[16,4096,4096]{2,1,0}, '
    'bf16[16,4096,40]{2,1,0}}, frontend_attributes={tiling="1024,1024"}, '
    'metadata={op_name="online-softmax"}'
)


def test_the_cycles_of_a_loop_count_once_for_each_trip() -> None:
    assert program_cycles(LOOPS) == 1000 + 4 * (100 + 3 * 10)


def test_a_kernel_in_a_loop_counts_once_for_each_trip() -> None:
    v5e = GENERATIONS["v5e"]
    kernels = LOOPS.replace("  %a =", f"  {KERNEL}\n  %a =").replace(
        "  %c =", f"  {KERNEL}\n  %c ="
    )
    [once] = kernel_cycles(KERNEL, v5e)
    assert once is not None
    assert list(all_kernel_cycles(kernels, v5e)) == [pytest.approx(n * once) for n in (1, 4 * 3)]


@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%long.1, %short.2}",
        "true_computation=%short.2, false_computation=%long.1",
    ],
)
def test_of_a_condition_one_branch_counts(branches: str) -> None:
    v5e = GENERATIONS["v5e"]
    text = CONDITIONS.replace("BRANCHES", branches)
    assert program_cycles(text) == 100 + 30
    assert program_cycles(text, min) == 100 + 4
    text = text.replace("  %a =", f"  {KERNEL}\n  %a =").replace("  %b =", f"  {PACKED}\n  %b =")
    for pick, kernel in ((max, KERNEL), (min, PACKED)):
        assert [*all_kernel_cycles(text, v5e, pick)] == [*kernel_cycles(kernel, v5e)]


def test_an_estimate_of_few_blocks_grows_with_each_block() -> None:
    """Temporaries are those of the largest program, but its code grows."""
    numbers = dict.fromkeys((each.name for each in fields(Estimate)), 3)
    least = Estimate(**numbers | {"temporary_bytes": 500, "code_bytes": 100})
    double = Estimate(**dict.fromkeys(numbers, 5) | {"temporary_bytes": 700, "code_bytes": 110})
    single = Estimate(**dict.fromkeys(numbers, 4) | {"temporary_bytes": 600, "code_bytes": 101})
    whole = least.with_blocks([(double, 7), (single, 20)])
    assert whole.flops == whole.cycles == whole.collectives == 3 + 7 * 2 + 20
    assert whole.code_bytes == 100 + 7 * 10 + 20
    assert whole.temporary_bytes == (700 - 110) + whole.code_bytes


def test_products_are_compared_with_the_matrix_unit() -> None:
    """One of two products has few rows, so that it is limited by its weights."""
    text = """
%inner.1 (x: bf16[512,1024], w: bf16[1024,256]) -> bf16[512,256] {
  %w = bf16[1024,256]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %p = bf16[512,256]{1,0} convolution(%x, %w), dim_labels=bf_io->bf
}

ENTRY %main.6 (x: bf16[512,1024], w: bf16[1024,256]) -> bf16[512,256] {
  %v = bf16[1024,256]{1,0} parameter(1)
  %a = bf16[512,256] fusion(%x, %v), calls=%inner.1, backend_config={"estimated_cycles":"9000"}
  %b = bf16[8,256] convolution(%y, %v), dim_labels=bf_io->bf, c={"estimated_cycles":"70"}
}
"""
    estimated, floor = program_products(text, GENERATIONS["v5e"])
    assert estimated == 9000
    assert floor == 2 * 512 * 1024 * 256 / (4 * 2 * 128 * 128)


def test_a_softmax_of_xla_takes_the_bundles_of_its_schedule() -> None:
    """One grid step is 1,024 queries and keys. It has 5,193 bundles on v5e, 2,584 on v6e and 5,188
    on each of the two cores of v5p, beside the loop's own."""
    for kind, bundles in (("v5e", 5193), ("v6e", 2584), ("v5p", 5188 / 2)):
        [cycles] = kernel_cycles(XLA_SOFTMAX, GENERATIONS[kind])
        assert cycles == pytest.approx(16 * 4 * 4 * bundles, rel=0.02)


@pytest.mark.parametrize(
    "text",
    [
        XLA_SOFTMAX.replace("online-softmax", "another-kernel"),
        XLA_SOFTMAX.replace(', metadata={op_name="online-softmax"}', ""),
        PACKED.replace("packed_attention_8x40", "another"),
        XLA_SOFTMAX.replace("bf16[16,4096,4096]{2,1,0}", "s32[]").replace("softmax", "sort"),
    ],
)
def test_a_kernel_that_nobody_has_counted_is_none_and_no_error(text: str) -> None:
    uncounted, counted = all_kernel_cycles(f"{text}\n{KERNEL}", GENERATIONS["v5e"])
    assert (uncounted, counted) == (None, *kernel_cycles(KERNEL, GENERATIONS["v5e"]))


def test_odd_numbers_of_keys_are_counted() -> None:
    one, odd, many = (PACKED.replace("1024", keys) for keys in ("1024", "1000", "10000"))
    for kind in GENERATIONS:
        cycles = [*kernel_cycles(f"{odd}\n{one}\n{many}", GENERATIONS[kind])]
        assert None not in cycles
        assert cycles == sorted(cycles, key=lambda count: count or 0)


@pytest.mark.parametrize("kind", GENERATIONS)
@pytest.mark.parametrize(("heads", "head_dim", "rows"), [(9, 40, 48), (10, 64, 80)])
def test_packed_heads_take_no_less_than_the_matrix_unit(
    kind: str, heads: int, head_dim: int, rows: int
) -> None:
    """The scores are products over 128 lanes, and the attended values have rows for the sums."""
    v, per_tile = GENERATIONS[kind], 128 // head_dim
    lanes = heads // per_tile * 128
    text = PACKED.replace("8x40", f"{heads}x{head_dim}").replace("384", str(lanes))
    side = 256 if kind == "v6e" else 128
    for keys in (1024, 4096):
        products = 2 * 2 * heads * 4096 * keys * (side + rows) / v.flops_per_cycle
        # A unit of v6e takes the 128 lanes as 256.
        [cycles] = kernel_cycles(text.replace("1024", str(keys)), v)
        assert cycles is not None
        assert cycles >= products


@pytest.mark.parametrize(("kind", "lanes", "most"), [("v5e", 128, 1.2), ("v6e", 256, 1.5)])
def test_wide_heads_take_no_less_than_the_matrix_unit(kind: str, lanes: int, most: float) -> None:
    """A unit of v6e takes the 128 channels of the scores, and those of the values, as 256."""
    joint = "bf16[1,4608,3840]{2,1,0}"
    text = (
        f"%k = {joint} custom-call(%counts, %q, %k, %v, %mask), "
        'custom_call_target="tpu_custom_call", operand_layout_constraints={s32[1,4]{1,0}, '
        f"{joint}, {joint}, {joint}, s32[1,1,4608]{{2,1,0}}}}, "
        'metadata={op_name="jit(step)/shard_map/wide_attention/pallas_call"}'
    )
    products = 2 * 2 * 30 * 4608**2 * lanes / GENERATIONS[kind].flops_per_cycle
    [cycles] = kernel_cycles(text, GENERATIONS[kind])
    assert cycles is not None
    assert 1 <= cycles / products < most
    assert [*kernel_cycles(text, GENERATIONS["v4"])] == [None]


def test_a_kernel_takes_its_products_with_the_head_padded_and_its_softmax() -> None:
    v5e, scores = GENERATIONS["v5e"], 2 * 8 * 4096 * 1024
    products = scores * 2 * 2 * 128 / v5e.flops_per_cycle
    [cycles] = kernel_cycles(KERNEL, v5e)
    assert cycles == pytest.approx(products + scores * SOFTMAX_CYCLES["v5e"])


def test_packed_heads_take_the_cycles_of_their_schedule() -> None:
    queries, keys = 2 * 8 * 4096, 9216
    long = PACKED.replace("1024", str(keys))
    for kind, blocks in (("v5e", 6), ("v4", 9)):  # blocks of 1,536 and 1,024 keys
        narrow, wide = PACKED_CYCLES[kind]
        for text, schedule in ((long, narrow), (long.replace("8x40", "8x64"), wide)):
            cycles = keys * schedule.score_cycles + blocks * schedule.query_cycles
            assert list(kernel_cycles(text, GENERATIONS[kind])) == [pytest.approx(queries * cycles)]


def test_projected_heads_take_the_cycles_of_their_schedule() -> None:
    """A block of 1,024 pixels takes 9,917 cycles for three projections and 4,137 for one. With LoRA
    of 128 columns it is 16,044 and 7,220, and a layer has both."""
    together = dict[bool, float]()
    blocks = ((3, False, 9917), (1, False, 4137), (3, True, 16044), (1, True, 7220))
    for count, lora, block in blocks:
        of_one = ["bf16[320,384]{1,0}"]
        if lora:
            of_one += ["bf16[320,128]{1,0}", "bf16[128,384]{1,0}"]
        matrices = ", ".join(of_one * count + ["f32[2,1,128]{2,1,0}"] * count * lora)
        text = (
            '%f = (bf16[2,384,4096]{2,1,0}) custom-call(%x), custom_call_target="tpu_custom_call",'
            " operand_layout_constraints={bf16[2,4096,320]{2,1,0}, bf16[1,320]{1,0},"
            f" bf16[1,320]{{1,0}}, {matrices}}}"
            ', metadata={op_name="jit(f)/head_projection/pallas_call"}'
        )
        [cycles] = kernel_cycles(text, GENERATIONS["v5e"])
        assert cycles == pytest.approx(8 * block, rel=0.12 if lora else 0.01)
        together[lora] = together.get(lora, 0) + (cycles or 0)
        assert [*kernel_cycles(text, GENERATIONS["v4"])] == [None]
    assert together[True] == pytest.approx(8 * (16044 + 7220), rel=0.01)


@pytest.mark.parametrize(("host", "channels", "padded"), [("v6e", 1280, 1280), ("v5e", 320, 384)])
def test_the_feed_forward_kernel_counts_its_three_products(
    host: str, channels: int, padded: int
) -> None:
    of_weights = f"bf16[{channels},{8 * channels}]{{1,0}}"
    text = (
        '%f = bf16[2048,1280]{1,0} custom-call(%x), custom_call_target="tpu_custom_call",'
        f" operand_layout_constraints={{bf16[2048,{channels}]{{1,0}}, f32[1,{channels}]{{1,0}},"
        f" f32[1,{channels}]{{1,0}}, {of_weights}, {of_weights}}}"
        ', metadata={op_name="jit(f)/feed_forward/pallas_call"}'
    )
    products = 3 * 2 * 2048 * padded * 4 * channels / GENERATIONS[host].flops_per_cycle
    normalized = 2048 * channels * FEED_FORWARD_NORM_CYCLES
    (cycles,) = kernel_cycles(text, GENERATIONS[host])
    assert cycles == pytest.approx(FEED_FORWARD_FACTOR[host] * products + normalized)


def test_a_convolution_stages_the_lanes_that_its_channels_take() -> None:
    v5e = GENERATIONS["v5e"]
    narrow = CONVOLUTION.replace("64,64,512]", "64,64,320]")
    [wide_cycles], [narrow_cycles] = ([*kernel_cycles(text, v5e)] for text in (CONVOLUTION, narrow))
    saved = 64 * 64 * (512 - 384) * 10 / 8 * STAGING_CYCLES["v5e"]
    assert wide_cycles is not None
    assert narrow_cycles is not None
    assert wide_cycles - narrow_cycles == pytest.approx(saved)


@pytest.mark.parametrize(("generation", "width"), [("v5e", 128), ("v6e", 256)])
def test_a_convolution_takes_its_products_and_the_staging_of_its_map(
    generation: str, width: int
) -> None:
    chip = GENERATIONS[generation]
    products = 64 * 64 * 2 * 3 * 1536 * width / chip.flops_per_cycle
    staged, added_up = 64 * 64 * 512 * 10 / 8, 64 * 64 * 128
    attention, convolution = kernel_cycles(f"{KERNEL}\n{CONVOLUTION}", chip)
    expected = products + staged * STAGING_CYCLES[generation]
    expected += added_up * SUMMING_CYCLES[generation]
    assert convolution == pytest.approx(expected)
    assert [attention] == [*kernel_cycles(KERNEL, chip)]


def test_an_upsampling_convolution_has_four_products_and_sums_for_each_pixel() -> None:
    chip = GENERATIONS["v5e"]
    text = CONVOLUTION.replace("bf16[3,1536,128]{2,1,0}", "bf16[2,2,2,1024,128]{4,3,2,1,0}")
    [cycles] = kernel_cycles(text, chip)
    products = 64 * 64 * 2 * 8 * 1024 * 128 / chip.flops_per_cycle
    staged, added_up = 64 * 64 * 512 * 10 / 8, 4 * 64 * 64 * 128
    expected = products + staged * STAGING_CYCLES["v5e"] + added_up * SUMMING_CYCLES["v5e"]
    assert cycles == pytest.approx(expected)


NARROW = (
    "%k = bf16[1,512,3,512]{3,2,1,0} custom-call(%x, %x, %x, %w, %b), "
    'custom_call_target="tpu_custom_call", operand_layout_constraints={'
    "bf16[1,512,512,128]{3,2,1,0}, bf16[1,512,512,128]{3,2,1,0}, bf16[1,512,512,128]{3,2,1,0}, "
    "bf16[72,128]{1,0}, f32[1,8,1]{2,1,0}}, "
    'metadata={op_name="jit(decode)/shard_map/narrow_convolution/pallas_call"}'
)


@pytest.mark.parametrize(
    ("kind", "cycles"),  # a row of products, a row of the result, and what begins and ends a block
    [
        ("v4", (483, 92, 222)),
        ("v5e", (337, 47, 94)),
        ("v5p", (322, 58, 230)),
        ("v6e", (276, 44, 140)),
    ],
)
def test_a_convolution_to_a_few_channels_takes_its_schedule(
    kind: str, cycles: tuple[int, int, int]
) -> None:
    products, result, block = cycles
    cores = 2 if kind in ("v4", "v5p") else 1
    expected = 512 / 8 * (10 * products + 8 * result + block) / cores
    [counted] = kernel_cycles(NARROW, GENERATIONS[kind])
    assert counted == pytest.approx(expected, rel=0.03)
    if kind == "v5e":  # a map of 64x64x320, whose rows take 141 and 27 cycles, and a block 60
        text = NARROW.replace("[1,512,512,128]", "[1,64,64,320]")
        [counted] = kernel_cycles(text, GENERATIONS[kind])
        assert counted == pytest.approx(8 * (10 * 141 + 8 * 27 + 60), rel=0.12)
    assert [*kernel_cycles(NARROW, GENERATIONS["v2"])] == [None]


def test_the_peaks_are_those_that_the_vendor_states() -> None:
    stated = {"v2": 22.5e12, "v3": 61.5e12, "v4": 275e12, "v5e": 197e12, "v5p": 459e12}
    for name, flops in (stated | {"v6e": 918e12}).items():
        assert GENERATIONS[name].flops == pytest.approx(flops, rel=0.03)
