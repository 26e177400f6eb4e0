from farrier.jax import ArrayInfo, donatable

BIG = 1 << 20


def leaf(argument=None, donated=False, shape=(512, 512), dtype="float32"):
    return ArrayInfo(shape, dtype, BIG, argument, donated)


def test_arguments_matching_results_are_donatable():
    found = donatable([leaf(0), leaf(0), leaf(1, shape=(8,))], [leaf(), leaf(), leaf(shape=())])
    assert found.arguments == {0: 2 * BIG}
    assert "2 MiB are held twice" in str(found)
    assert "JAX then deletes the arguments" in str(found)
    assert "donate_argnums=(0,)" in str(found)


def test_donated_arguments_are_matched_first():
    assert not donatable([leaf(0, donated=True), leaf(1)], [leaf()]).arguments
    assert "nothing more to donate" in str(donatable([leaf(0, donated=True)], [leaf()]))


def test_other_shapes_dtypes_and_small_arguments_are_ignored():
    assert not donatable([leaf(0)], [leaf(dtype="bfloat16")]).arguments
    assert not donatable([leaf(0)], []).arguments
    assert not donatable([ArrayInfo((2,), "float32", 8, 0)], [ArrayInfo((2,), "float32", 8)]).arguments


def test_the_threshold_counts_all_arrays_of_an_argument():
    def half(argument=None):
        return ArrayInfo((7,), "float32", BIG // 2, argument)

    few = donatable([half(0)], [half()])
    assert not few.arguments
    assert "1 MiB or more" in str(few), "the text must not claim that no argument is held twice"
    assert donatable([half(0), half(0), half(1)], [half(), half(), half()]).arguments == {0: BIG}


def test_arguments_by_name():
    assert "donate_argnames=('state',)" in str(donatable([leaf("state")], [leaf()]))
