import pytest

from farrier.torch.lengths import Lengths, LruCache, TooLong, bucket


def test_a_bucket_is_at_most_an_eighth_longer():
    for length in range(64, 9000):
        padded = bucket(length)
        assert length <= padded <= length * (1 + 1 / 8) + 1
        assert bucket(padded) == padded


def test_an_octave_has_eight_buckets():
    assert len({bucket(length) for length in range(1025, 2049)}) == 8
    assert [bucket(n) for n in (1024, 1025, 1152, 1153)] == [1024, 1152, 1152, 1280]


def test_short_lengths_share_a_bucket_and_the_maximum_holds():
    assert bucket(3) == 64
    assert bucket(2000, longest=2010) == 2010
    with pytest.raises(TooLong, match="exceeds the maximum"):
        bucket(2011, longest=2010)
    with pytest.raises(ValueError, match="1 or more"):
        bucket(0)


def test_lengths_need_a_tensor():
    with pytest.raises(ValueError, match="pad is empty"):
        Lengths(pad={})


def test_the_least_recently_used_evictable_entry_is_chosen():
    recent = LruCache(2)
    recent.put("a", 1)
    assert not recent.full
    recent.put("b", 2)
    assert recent.full
    assert recent.get("a") == 1
    assert recent.eviction_candidate(lambda _: True) == "b"
    assert recent.eviction_candidate(lambda value: value == 1) == "a"
    assert recent.eviction_candidate(lambda _: False) is None
    assert recent.pop("b") == 2
    assert recent.pop("b") is None
    assert recent.get("b") is None
    assert recent.clear() == [1]
    with pytest.raises(ValueError, match="1 or more"):
        LruCache(0)
