//! No sequence of log entries makes replay panic. The input has one JSON entry per line.
#![no_main]

use farrier_fleet::fleet::Entry;
use farrier_fleet::fleet::replay::Replay;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut replay = Replay::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(entry) = serde_json::from_slice::<Entry>(line) else { continue };
        if replay.apply(entry).is_err() {
            return;
        }
    }
    let _ = replay.finish();
});
