"""An exchange of a TPU program counts once, and is hidden if the devices compute beside it."""

from tools.tpu.estimate import program_exchanges

PROGRAM = """
%async_collective.1 (x: bf16[8,4]) -> bf16[8,8] {
  %g.1 = bf16[8,8]{1,0} all-gather(%x), channel_id=1, dimensions={1}
}

%fused.2 (x: bf16[8,4]) -> bf16[8,8] {
  %g.2 = bf16[8,8]{1,0} all-gather(%x), channel_id=1, dimensions={1}
  ROOT %dot = bf16[8,8] convolution(%y, %z)
}

ENTRY %main.3 (x: bf16[8,4]) -> bf16[8,8] {
  %begin = (bf16[8,4], bf16[8,8]) fusion(%x), calls=%async_collective.1
  %middle = bf16[8,8] fusion(%begin), calls=%fused.2, backend_config={"estimated_cycles":"9"}
  %all = bf16[8,16]{1,0} all-gather(%y), channel_id=2, dimensions={1}
  %sums = (f32[8]{0}, f32[8]{0}) all-reduce(%a, %b), channel_id=3, to_apply=%add
  %start = (bf16[8,4]{1,0}, bf16[8,4]{1,0}, u32[]) collective-permute-start(%x), channel_id=4
  %done = bf16[8,4]{1,0} collective-permute-done(%start)
}
"""


def test_an_exchange_in_parts_counts_once_and_is_hidden_by_what_is_computed_beside_it() -> None:
    exchanges = program_exchanges(PROGRAM, devices_per_copy=2)
    assert exchanges.count == 4
    assert exchanges.hidden_bytes == 8 * 4 * 2 + 8 * 4 * 2  # half of the gathered, and the moved
    assert exchanges.awaited_bytes == 8 * 8 * 2 + 2 * 8 * 4  # each sum is sent and comes back


def test_of_four_devices_each_receives_three_parts() -> None:
    exchanges = program_exchanges(PROGRAM, devices_per_copy=4)
    assert exchanges.awaited_bytes == 8 * 12 * 2 + 2 * 2 * 8 * 4 * 3 // 4


def test_exchanges_of_the_program_itself_may_share_a_channel() -> None:
    again = PROGRAM.replace(
        "  %sums =", "  %more = f32[8]{0} all-reduce(%a), channel_id=3\n  %sums ="
    )
    assert program_exchanges(again, devices_per_copy=2).count == 5
