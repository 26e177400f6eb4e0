import pytest

from farrier.torch.allocator import choose, parse, unparse

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def test_expandable_segments_by_default():
    choice = choose({}, (2, 11), "linux")
    assert choice.variables == {NEW: "expandable_segments:True"}
    assert choice.expandable
    assert choose({}, (2, 8), "linux").variables == {OLD: "expandable_segments:True"}


@pytest.mark.parametrize("use", ["ipc", "rdma", "nccl_registered"])
def test_classic_segments_for_shared_memory(use):
    choice = choose({}, (2, 11), "linux", **{use: True})
    assert not choice.expandable
    assert choice.value == ""
    assert "classic_pool()" in str(choice)


def test_no_expandable_segments_outside_linux():
    assert not choose({}, (2, 11), "win32").expandable


def test_user_settings_keep_their_variable_name():
    choice = choose({OLD: "max_split_size_mb:128, roundup_power2_divisions:[256:1,512:2,>:4]"}, (2, 11), "linux")
    assert choice.variables == {
        OLD: "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:True"
    }
    assert f"{OLD} was already set and is kept" in choice.reasons


@pytest.mark.parametrize(
    ("settings", "expandable"),
    [("expandable_segments:False", False), ("expandable_segments:True", True), ("backend:cudaMallocAsync", False)],
)
def test_user_settings_take_precedence(settings, expandable):
    choice = choose({NEW: settings}, (2, 11), "linux", ipc=True)
    assert choice.variables == {NEW: settings}
    assert choice.expandable is expandable
    assert "by the user" in choice.reasons[-1]
    assert (choice.warning is not None) is expandable, "only a real conflict is warned about"


def test_a_conflict_with_existing_expandable_segments_is_warned():
    choice = choose({OLD: "expandable_segments:True"}, (2, 11), "linux", ipc=True, rdma=True)
    for word in (OLD, "stay on", "CUDA IPC, RDMA was requested", "classic_pool()", "expandable_segments:False"):
        assert word in choice.warning
    assert f"warning: {choice.warning}" in str(choice)
    assert choose({OLD: "expandable_segments:True"}, (2, 11), "linux").warning is None


def test_both_variable_names_get_the_same_value():
    choice = choose(
        {OLD: "expandable_segments:True,max_split_size_mb:64", NEW: "expandable_segments:False"}, (2, 11), "linux"
    )
    assert choice.variables == dict.fromkeys((OLD, NEW), "expandable_segments:False,max_split_size_mb:64")


def test_settings_round_trip():
    text = "a:1,b:[x:1,y:2],c:True"
    assert parse(text) == {"a": "1", "b": "[x:1,y:2]", "c": "True"}
    assert unparse(parse(text)) == text
    assert parse("") == {}
    assert parse(" , a : 1 ,") == {"a": "1"}
    with pytest.raises(ValueError, match="has no value"):
        parse("expandable_segments")
    with pytest.raises(ValueError, match="unclosed bracket"):
        parse("a:[1,b:2")
