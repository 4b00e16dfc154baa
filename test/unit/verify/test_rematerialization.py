"""The partitioner's messages about values that it makes whole."""

from __future__ import annotations

from autoshard.verify.rematerialization import read_rematerializations

MESSAGE = (
    "W1121 03:42:25.205264    7735 spmd_partitioner.cc:656] [SPMD] Involuntary full"
    " rematerialization. The compiler cannot go from sharding {devices=[2,2,2]<=[2,2,2]T(0,2,1)"
    " last_tile_dim_replicate} to {devices=[8,1]<=[2,2,2]T(1,0,2)} efficiently for HLO operation"
    " %NAME = f32[12,16]{1,0} copy(%exp.3), sharding={devices=[2,2,2]<=[2,2,2]T(0,2,1)"
    ' last_tile_dim_replicate}, metadata={op_name="jit(f)/sharding_constraint" stack_frame_id=1}.'
    " As the last resort, SPMD will replicate the tensor and then partition it to obtain the target"
    " sharding, which is inefficient."
)

TEXT = """HloModule m, num_partitions=8

FileNames
1 "model.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=8 end_column=8}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


ENTRY %main (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}
"""


def test_a_message_names_op_line_type_and_shardings() -> None:
    (found,) = read_rematerializations(MESSAGE.replace("NAME", "copy.2"), TEXT)
    assert (found.name, found.opcode, found.type) == ("copy.2", "copy", "f32[12,16]")
    assert found.before == "{devices=[2,2,2]<=[2,2,2]T(0,2,1) last_tile_dim_replicate}"
    assert found.after == "{devices=[8,1]<=[2,2,2]T(1,0,2)}"
    assert (found.op_name, found.place) == ("jit(f)/sharding_constraint", "model.py:9")
    assert found.count == 1


def test_messages_that_are_alike_are_one() -> None:
    log = "\n".join(
        ["I0000 other words", MESSAGE.replace("NAME", "copy.2"), MESSAGE.replace("NAME", "copy.5")]
    )
    (found,) = read_rematerializations(log)
    assert (found.name, found.count, found.place) == ("copy.2", 2, None)


def test_the_wording_of_earlier_releases_is_read() -> None:
    (found,) = read_rematerializations(
        "2025-01-01 E spmd_partitioner.cc:630] [spmd] Involuntary full rematerialization. The"
        " compiler was not able to go from sharding {devices=[4,1]<=[4]} to {devices=[1,4]<=[4]}"
        " without doing a full rematerialization of the tensor for HLO operation: %dot.1 ="
        " bf16[8,8]{1,0} dot(%a, %b), sharding={devices=[4,1]<=[4]},"
        ' metadata={op_name="jit(f)/dot_general" source_file="model.py" source_line=3}. You'
        " probably want to enrich the sharding annotations to prevent this from happening."
    )
    assert (found.opcode, found.before, found.after) == (
        "dot",
        "{devices=[4,1]<=[4]}",
        "{devices=[1,4]<=[4]}",
    )
    assert found.place == "model.py:3"


def test_a_message_in_other_words_still_counts() -> None:
    (found,) = read_rematerializations("W [SPMD] Involuntary full rematerialization! Sorry.")
    assert (found.name, found.message[:8]) == ("", "W [SPMD]")


def test_a_log_without_messages_has_none() -> None:
    assert read_rematerializations("all is well\n") == ()
