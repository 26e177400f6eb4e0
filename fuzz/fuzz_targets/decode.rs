//! Decoding a log in chunks gives the same events as decoding it at once.
#![no_main]

use farrier_facts::FactSet;
use farrier_facts::decode::{Decoder, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, log) = input;
    let facts = &FactSet::embedded().xids;
    let whole = decode(facts, log);
    let mut decoder = Decoder::new(facts);
    let mut pieces = Vec::new();
    for chunk in log.chunks(usize::from(cut) + 1) {
        decoder.feed(chunk, |event| pieces.push(event));
    }
    decoder.finish(|event| pieces.push(event));
    assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
});
